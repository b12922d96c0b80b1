#include "eagle3/draft_kv.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace aerie {
namespace {

constexpr std::align_val_t kAlignment{64};

struct AlignedFree {
  void operator()(std::byte* memory) const { ::operator delete(memory, kAlignment); }
};

}  // namespace

// Zeroed when made: a kernel may multiply positions that nobody has written by a weight of zero.
struct DraftKv::Block {
  explicit Block(size_t bytes) : memory(static_cast<std::byte*>(::operator new(bytes, kAlignment))) { std::memset(memory.get(), 0, bytes); }
  std::unique_ptr<std::byte, AlignedFree> memory;
};

size_t DraftKv::layer_bytes() const {
  const size_t element = kernels::kv_element_bytes(type_);
  return kernels::kv_block_elements(kv_heads_, head_dim_) * element;
}

std::shared_ptr<DraftKv::Block> DraftKv::new_block() {
  if (spare_ != nullptr && spare_.use_count() == 1) return std::move(spare_);
  return std::make_shared<Block>(block_bytes());
}

int DraftKv::append() {
  const size_t index = static_cast<size_t>(length_ / kernels::kKvBlock);
  if (index == blocks_.size()) {
    blocks_.push_back(new_block());
    pointers_.push_back(blocks_.back()->memory.get());
  } else if (blocks_[index].use_count() > 1) {
    auto copy = new_block();
    std::memcpy(copy->memory.get(), blocks_[index]->memory.get(), block_bytes());
    blocks_[index] = std::move(copy);
    pointers_[index] = blocks_[index]->memory.get();
  }
  return length_++;
}

void DraftKv::store(int layer, int slot, const float* k, const float* v) {
  std::byte* block = blocks_[static_cast<size_t>(slot / kernels::kKvBlock)]->memory.get() + static_cast<size_t>(layer) * layer_bytes();
  kernels::store_kv(type_, block, slot % kernels::kKvBlock, kv_heads_, head_dim_, k, v);
}

void DraftKv::truncate(int length) {
  length_ = std::clamp(length, 0, length_);
  const size_t keep = static_cast<size_t>((length_ + kernels::kKvBlock - 1) / kernels::kKvBlock);
  while (blocks_.size() > keep) {
    if (blocks_.back().use_count() == 1) spare_ = std::move(blocks_.back());
    blocks_.pop_back();
    pointers_.pop_back();
  }
}

DraftKv DraftKv::fork(int length) const {
  DraftKv out(type_, layers_, kv_heads_, head_dim_);
  out.length_ = std::clamp(length, 0, length_);
  const auto keep = static_cast<std::ptrdiff_t>((out.length_ + kernels::kKvBlock - 1) / kernels::kKvBlock);
  out.blocks_.assign(blocks_.begin(), blocks_.begin() + keep);
  out.pointers_.assign(pointers_.begin(), pointers_.begin() + keep);
  return out;
}

}  // namespace aerie
