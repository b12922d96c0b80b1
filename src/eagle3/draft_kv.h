// The drafter's KV cache of one sequence: blocks of 16 positions that copies share until one of them writes.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "kernels/kernels.h"

namespace aerie {

/// Slot j holds the rotated keys and the values of the j-th row that was appended, those of all layers: layer l's head h is head
/// l * kv_heads + h of a block. Copying is cheap and shares the blocks; a write into a shared block copies that block first, so that
/// no copy ever sees another one's writes. Not thread-safe, and caches that share blocks belong to one thread.
class DraftKv {
 public:
  /// head_dim: a multiple of 8, of keys and values alike.
  DraftKv(kernels::KvType type, int layers, int kv_heads, int head_dim)
      : type_(type), layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim) {}

  int length() const { return length_; }
  kernels::KvType type() const { return type_; }

  /// Makes room for one more position and returns its slot, which every layer is to store before anybody reads it.
  int append();
  /// A layer's k and v of a slot appended since the last copy or fork: kv_heads * head_dim floats each.
  void store(int layer, int slot, const float* k, const float* v);
  /// Forgets the slots from `length` on; 0 <= length <= length().
  void truncate(int length);
  /// A cache with the first `length` slots of this one, sharing their blocks.
  DraftKv fork(int length) const;

  /// blocks()[j / kernels::kKvBlock] holds slot j of all layers; valid until the next append or truncate.
  const void* const* blocks() const { return pointers_.data(); }
  size_t bytes() const { return blocks_.size() * block_bytes(); }

 private:
  struct Block;
  size_t layer_bytes() const;
  size_t block_bytes() const { return layer_bytes() * static_cast<size_t>(layers_); }
  std::shared_ptr<Block> new_block();

  kernels::KvType type_;
  int layers_, kv_heads_, head_dim_;
  int length_ = 0;
  std::vector<std::shared_ptr<Block>> blocks_;
  std::vector<const void*> pointers_;
  std::shared_ptr<Block> spare_;  // the block that the last truncate freed: a draft that crosses a border each cycle allocates nothing
};

}  // namespace aerie
