#include "models/kv_cache.h"

#include <cstring>

#include "gtest/gtest.h"

namespace aerie {
namespace {

TEST(KvCache, GrowsWithoutMovingWhatItHolds) {
  KvCache cache(3, 2, 16, kernels::KvType::kF16);
  ASSERT_TRUE(cache.reserve(20).ok());
  EXPECT_EQ(cache.capacity(), 32);  // whole blocks of 16 positions
  void* const first = cache.block(1, 0);
  std::memset(first, 1, 2);
  ASSERT_TRUE(cache.reserve(100).ok());
  EXPECT_EQ(cache.capacity(), 112);
  EXPECT_EQ(cache.block(1, 0), first);
  ASSERT_TRUE(cache.reserve(5).ok());
  EXPECT_EQ(cache.capacity(), 112);
  const size_t block = kernels::kv_block_elements(2, 16) * sizeof(uint16_t);
  for (int layer = 0; layer < 3; ++layer) {
    // What was reserved together lies together.
    EXPECT_EQ(static_cast<uint8_t*>(cache.block(layer, 16)), static_cast<uint8_t*>(cache.block(layer, 0)) + block);
    EXPECT_EQ(cache.blocks(layer)[6], cache.block(layer, 100));
  }
}

TEST(KvCache, RefusesMoreThanTheMachineHas) {
  KvCache cache(1000, 128, 128, kernels::KvType::kF32);
  const Status status = cache.reserve(1 << 24);
  EXPECT_EQ(status.code(), StatusCode::kResource);
  EXPECT_NE(status.message().find("MiB are available; ask for fewer tokens"), std::string::npos) << status.message();
  EXPECT_EQ(cache.capacity(), 0);
  EXPECT_TRUE(cache.reserve(16).ok());
}

}  // namespace
}  // namespace aerie
