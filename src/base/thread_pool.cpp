#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aerie {
namespace {

// Long enough to bridge the serial work between two loops of a forward pass (some microseconds), short enough that a
// thread which is not needed gives its core back at once.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { worker_main(); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  shared_.epoch.fetch_add(1, std::memory_order_release);
  shared_.epoch.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(size_t count, size_t grain, Body body, void* context) {
  body_ = body;
  context_ = context;
  count_ = count;
  grain_ = grain;
  shared_.next.store(0, std::memory_order_relaxed);
  shared_.open.store(true);
  shared_.epoch.fetch_add(1, std::memory_order_release);
  shared_.epoch.notify_all();
  work();
  // All pieces are taken. Closing comes before reading `inside`, and a worker enters before it reads `open` (both sequentially
  // consistent): a worker that has not been counted here will find the loop closed and leave the description alone.
  shared_.open.store(false);
  int inside;
  for (int spins = 0; (inside = shared_.inside.load()) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      shared_.inside.wait(inside, std::memory_order_acquire);
    }
  }
}

void ThreadPool::work() {
  // Pieces shrink towards the end, each half a fair share of what is left: long runs through memory at first, and in the end no
  // thread waits for more than a small piece of another's, also when one of them was interrupted.
  const size_t shares = 2 * static_cast<size_t>(size());
  size_t begin = shared_.next.load(std::memory_order_relaxed);
  while (begin < count_) {
    const size_t end = std::min(count_, begin + std::max(grain_, (count_ - begin) / shares));
    if (!shared_.next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
    body_(context_, begin, end);
    begin = shared_.next.load(std::memory_order_relaxed);
  }
}

void ThreadPool::worker_main() {
  uint32_t seen = 0;
  for (;;) {
    uint32_t epoch;
    for (int spins = 0; (epoch = shared_.epoch.load(std::memory_order_acquire)) == seen; ++spins) {
      if (spins < kSpins) {
        relax();
      } else {
        shared_.epoch.wait(seen, std::memory_order_acquire);
      }
    }
    seen = epoch;
    if (stop_.load(std::memory_order_relaxed)) return;
    shared_.inside.fetch_add(1);
    if (shared_.open.load()) work();
    if (shared_.inside.fetch_sub(1) == 1) shared_.inside.notify_all();
  }
}

int default_thread_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
  // cgroup v2: "QUOTA PERIOD" or "max PERIOD" in microseconds.
  std::ifstream quota_file("/sys/fs/cgroup/cpu.max");
  double quota = 0, period = 0;
  if (quota_file >> quota >> period && period > 0) {
    count = std::min(count, std::max(1, static_cast<int>(std::ceil(quota / period))));
  }
  return std::max(1, count);
}

}  // namespace aerie
