// The keys and values of one sequence, for every block of a target.
#pragma once

#include <cstdint>
#include <vector>

#include "base/page_memory.h"
#include "base/status.h"
#include "kernels/kernels.h"

namespace aerie {

/// Memory is taken by reserve(), in blocks of 16 positions; a forward pass never allocates. The blocks of one layer that were
/// reserved together lie behind each other, since attention reads them so. Not thread-safe. Truncation is
/// free: positions at or beyond length() are simply overwritten.
class KvCache {
 public:
  KvCache(int layers, int kv_heads, int head_dim, kernels::KvType type);

  /// Makes room for positions [0, positions). kResource if the memory cannot be had.
  Status reserve(int positions);

  int capacity() const { return static_cast<int>(tables_[0].size()) * kernels::kKvBlock; }
  int length() const { return length_; }
  /// Forgets positions at or beyond `length`.
  void truncate(int length) { length_ = length < length_ ? length : length_; }
  /// Called by the forward pass once rows up to `length` are stored.
  void set_length(int length) { length_ = length; }

  kernels::KvType type() const { return type_; }
  /// The block of `layer` that holds `position`.
  void* block(int layer, int position) { return tables_[static_cast<size_t>(layer)][static_cast<size_t>(position / kernels::kKvBlock)]; }
  /// All blocks of `layer`, as kernels::AttendChunk wants them.
  const void* const* blocks(int layer) const { return tables_[static_cast<size_t>(layer)].data(); }

  /// Bytes that `positions` positions take.
  static uint64_t bytes_for(int positions, int layers, int kv_heads, int head_dim, kernels::KvType type);

 private:
  int layers_, kv_heads_, head_dim_;
  kernels::KvType type_;
  int length_ = 0;
  std::vector<PageMemory> regions_;         // one per reservation: [layer][block]; zeroed, for what is masked must be finite
  std::vector<std::vector<void*>> tables_;  // [layer][block]
};

}  // namespace aerie
