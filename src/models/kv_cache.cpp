#include "models/kv_cache.h"

#include <utility>

namespace aerie {
namespace {

size_t block_bytes_of(int kv_heads, int head_dim, kernels::KvType type) {
  return kernels::kv_block_elements(kv_heads, head_dim) * kernels::kv_element_bytes(type);
}

}  // namespace

KvCache::KvCache(int layers, int kv_heads, int head_dim, kernels::KvType type)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), type_(type), tables_(static_cast<size_t>(layers)) {}

uint64_t KvCache::bytes_for(int positions, int layers, int kv_heads, int head_dim, kernels::KvType type) {
  const uint64_t blocks = (static_cast<uint64_t>(positions) + kernels::kKvBlock - 1) / kernels::kKvBlock;
  return blocks * static_cast<uint64_t>(layers) * block_bytes_of(kv_heads, head_dim, type);
}

Status KvCache::reserve(int positions) {
  if (positions <= capacity()) return {};
  const size_t block = block_bytes_of(kv_heads_, head_dim_, type_);
  const size_t added = static_cast<size_t>((positions - capacity() + kernels::kKvBlock - 1) / kernels::kKvBlock);
  PageMemory region(block * added * static_cast<size_t>(layers_));
  if (region.empty()) {
    return resource_error(
        "there is no memory for a KV cache of {} positions: it takes {} MiB and {} MiB are available; ask for fewer tokens", positions,
        bytes_for(positions, layers_, kv_heads_, head_dim_, type_) >> 20, available_memory() >> 20);
  }
  for (size_t layer = 0; layer < tables_.size(); ++layer) {
    for (size_t i = 0; i < added; ++i) tables_[layer].push_back(region.data() + (layer * added + i) * block);
  }
  regions_.push_back(std::move(region));
  return {};
}

}  // namespace aerie
