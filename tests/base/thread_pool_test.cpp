#include "base/thread_pool.h"

#include <atomic>
#include <chrono>
#include <vector>

#include "gtest/gtest.h"
#include "rapidcheck/gtest.h"

namespace aerie {
namespace {

void expect_each_index_once(ThreadPool& pool, size_t count, size_t grain) {
  // Plain ints: a race between two threads on one index is also something for the thread sanitizer to see.
  std::vector<int> hits(count, 0);
  std::atomic<size_t> too_small{0};
  pool.parallel_for(count, grain, [&](size_t begin, size_t end) {
    if (end - begin < grain && end != count) ++too_small;
    for (size_t i = begin; i < end; ++i) ++hits[i];
  });
  for (size_t i = 0; i < count; ++i) ASSERT_EQ(hits[i], 1) << "index " << i << " of " << count << ", grain " << grain;
  ASSERT_EQ(too_small.load(), 0u);
}

TEST(ThreadPool, CoversEveryIndexOnce) {
  for (int threads : {1, 2, 3, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (size_t count : {0, 1, 2, 3, 7, 16, 100, 1000, 4099}) {
      for (size_t grain : {1, 2, 5, 64, 5000}) expect_each_index_once(pool, count, grain);
    }
  }
}

RC_GTEST_PROP(ThreadPool, CoversEveryIndexOnceForRandomSizes, ()) {
  static ThreadPool pool(3);
  expect_each_index_once(pool, *rc::gen::inRange<size_t>(0, 3000), *rc::gen::inRange<size_t>(1, 100));
  RC_ASSERT(!::testing::Test::HasFatalFailure());
}

TEST(ThreadPool, ManyShortLoopsOnFarMoreThreadsThanCores) {
  // A worker that wakes late must not take pieces of a loop that has ended, nor see half of the next one's description.
  ThreadPool pool(16);
  for (size_t loop = 0; loop < 3000; ++loop) {
    const size_t count = 1 + loop % 37;
    std::vector<size_t> out(count, 0);
    pool.parallel_for(count, 1, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) out[i] += loop + i;
    });
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(out[i], loop + i);
  }
}

TEST(ThreadPool, WritesOfTheWorkersAreVisibleAfterTheLoop) {
  ThreadPool pool(2);
  std::vector<uint64_t> values(513, 1);
  for (int round = 0; round < 2000; ++round) {
    pool.parallel_for(values.size(), 16, [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) values[i] = values[i] * 3 + i;
    });
  }
  for (size_t i = 0; i < values.size(); ++i) {
    uint64_t expected = 1;
    for (int round = 0; round < 2000; ++round) expected = expected * 3 + i;
    ASSERT_EQ(values[i], expected);
  }
}

TEST(ThreadPool, WakesAfterSleepingAndEndsWhenIdle) {
  for (int round = 0; round < 20; ++round) {
    ThreadPool pool(4);
    if (round % 2 == 0) expect_each_index_once(pool, 100, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(round % 5));  // some pools end while spinning, some asleep
    if (round % 3 == 0) expect_each_index_once(pool, 100, 1);
  }
}

TEST(ThreadPool, PoolsNestInEachOther) {
  ThreadPool outer(2);
  std::vector<int> hits(40, 0);
  outer.parallel_for(4, 1, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ThreadPool inner(2);
      inner.parallel_for(10, 1, [&](size_t b, size_t e) {
        for (size_t j = b; j < e; ++j) ++hits[i * 10 + j];
      });
    }
  });
  for (int h : hits) EXPECT_EQ(h, 1);
}

TEST(ThreadPool, ThereIsAlwaysOneThread) { EXPECT_GE(default_thread_count(), 1); }

}  // namespace
}  // namespace aerie
