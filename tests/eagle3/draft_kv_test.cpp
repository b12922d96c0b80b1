// Copies of a cache share blocks and never see each other's writes.
#include "eagle3/draft_kv.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace aerie {
namespace {

constexpr int kLayers = 2, kHeads = 2, kHeadDim = 8, kWidth = kHeads * kHeadDim;

/// Each layer gets a value of its own.
void append(DraftKv& kv, float value) {
  const int slot = kv.append();
  for (int layer = 0; layer < kLayers; ++layer) {
    const float own = value + 0.25f * static_cast<float>(layer);
    const std::vector<float> k(kWidth, own), v(kWidth, -own);
    kv.store(layer, slot, k.data(), v.data());
  }
}

/// What slot `slot` holds in a layer, without what append() added for it: the first key value of the layer's head 0 (f32 blocks:
/// keys as [head_dim][16]).
float key_at(const DraftKv& kv, int slot, int layer = 0) {
  const auto* block = static_cast<const float*>(kv.blocks()[slot / kernels::kKvBlock]);
  const size_t at = static_cast<size_t>(layer) * kernels::kv_block_elements(kHeads, kHeadDim);
  return block[at + static_cast<size_t>(slot % kernels::kKvBlock)] - 0.25f * static_cast<float>(layer);
}

TEST(DraftKv, AForkSharesItsBlocksUntilItWrites) {
  DraftKv kv(kernels::KvType::kF32, kLayers, kHeads, kHeadDim);
  for (int i = 0; i < 20; ++i) append(kv, static_cast<float>(i));
  DraftKv fork = kv.fork(18);
  EXPECT_EQ(fork.length(), 18);
  EXPECT_EQ(fork.blocks()[0], kv.blocks()[0]);
  EXPECT_EQ(fork.blocks()[1], kv.blocks()[1]);
  append(fork, 100);
  EXPECT_EQ(fork.blocks()[0], kv.blocks()[0]);
  EXPECT_NE(fork.blocks()[1], kv.blocks()[1]);
  EXPECT_EQ(key_at(fork, 18), 100);
  EXPECT_EQ(key_at(fork, 17), 17);
  EXPECT_EQ(key_at(kv, 18), 18);
}

TEST(DraftKv, LimitsAreClamped) {
  DraftKv kv(kernels::KvType::kF16, kLayers, kHeads, kHeadDim);
  append(kv, 1);
  kv.truncate(5);
  EXPECT_EQ(kv.length(), 1);
  EXPECT_EQ(kv.fork(7).length(), 1);
  EXPECT_EQ(kv.bytes(), kernels::kv_block_elements(kHeads, kHeadDim) * 2 * kLayers);
  kv.truncate(0);
  EXPECT_EQ(kv.bytes(), 0u);
}

RC_GTEST_PROP(DraftKv, BehavesLikeAnIndependentListHoweverForkedAndTruncated, ()) {
  std::vector<DraftKv> caches;
  std::vector<std::vector<float>> models(1);
  caches.emplace_back(kernels::KvType::kF32, kLayers, kHeads, kHeadDim);
  float next = 1;
  const int operations = *rc::gen::inRange(1, 120);
  for (int i = 0; i < operations; ++i) {
    const size_t which = *rc::gen::inRange<size_t>(0, caches.size());
    const int length = caches[which].length();
    switch (*rc::gen::inRange(0, 6)) {
      case 0: {
        const int to = *rc::gen::inRange(0, length + 1);
        caches[which].truncate(to);
        models[which].resize(static_cast<size_t>(to));
        break;
      }
      case 1: {
        const int to = *rc::gen::inRange(0, length + 1);
        caches.push_back(caches[which].fork(to));
        models.emplace_back(models[which].begin(), models[which].begin() + to);
        break;
      }
      case 2: {
        DraftKv copy = caches[which];
        caches.push_back(std::move(copy));
        models.push_back(std::vector<float>(models[which]));
        break;
      }
      default: {
        const int count = *rc::gen::inRange(1, 20);
        for (int j = 0; j < count; ++j) {
          append(caches[which], next);
          models[which].push_back(next++);
        }
      }
    }
  }
  for (size_t c = 0; c < caches.size(); ++c) {
    RC_ASSERT(caches[c].length() == static_cast<int>(models[c].size()));
    for (int slot = 0; slot < caches[c].length(); ++slot) {
      for (int layer = 0; layer < kLayers; ++layer) RC_ASSERT(key_at(caches[c], slot, layer) == models[c][static_cast<size_t>(slot)]);
    }
  }
}

}  // namespace
}  // namespace aerie
