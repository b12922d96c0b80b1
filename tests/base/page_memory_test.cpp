#include "base/page_memory.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"

namespace aerie {
namespace {

TEST(PageMemory, IsZeroedAlignedAndWritable) {
  for (const size_t bytes : {size_t{1}, size_t{4096}, (size_t{3} << 20) + 7}) {
    PageMemory memory(bytes);
    ASSERT_FALSE(memory.empty());
    EXPECT_EQ(memory.size(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % (size_t{2} << 20), 0u);
    EXPECT_TRUE(std::all_of(memory.data(), memory.data() + bytes, [](uint8_t b) { return b == 0; }));
    memory.data()[bytes - 1] = 7;
    const PageMemory moved = std::move(memory);
    EXPECT_EQ(moved.data()[bytes - 1], 7);
    EXPECT_TRUE(memory.empty());  // NOLINT: what is left of a moved one is part of the contract
  }
}

TEST(PageMemory, RefusesWhatTheSystemCouldNotKeep) {
  EXPECT_TRUE(PageMemory(0).empty());
  EXPECT_TRUE(PageMemory(SIZE_MAX).empty());
  const uint64_t available = available_memory();
  ASSERT_GT(available, 0u);
  if (available < (uint64_t{1} << 46)) {
    EXPECT_TRUE(PageMemory(available + (size_t{1} << 34)).empty());
  }
}

}  // namespace
}  // namespace aerie
