#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aerie {
namespace {

// Long enough to bridge the serial work between two loops of a forward pass (some microseconds), short enough that a
// thread which is not needed gives its core back at once.
constexpr int kSpins = 4000;

uint64_t packed(size_t first, size_t end) { return static_cast<uint64_t>(first) << 32 | end; }
size_t first_of(uint64_t share) { return share >> 32; }
size_t end_of(uint64_t share) { return share & 0xffffffff; }

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) : shares_(static_cast<size_t>(std::max(1, threads))) {
  for (size_t i = 1; i < shares_.size(); ++i) workers_.emplace_back([this, i] { worker_main(i); });
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  loop_.epoch.fetch_add(1, std::memory_order_release);
  loop_.epoch.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::run(size_t count, size_t grain, Body body, void* context) {
  // Shares are counted in grains, so that no piece but the last is smaller than one, and with 32 bits.
  grain = std::max(grain, count / std::numeric_limits<uint32_t>::max() + 1);
  const size_t threads = shares_.size(), grains = (count + grain - 1) / grain;
  for (size_t i = 0; i < threads; ++i) {
    shares_[i].left.store(packed(grains * i / threads, grains * (i + 1) / threads), std::memory_order_relaxed);
  }
  loop_.body = body;
  loop_.context = context;
  loop_.grain = grain;
  loop_.count = count;
  loop_.open.store(true);
  loop_.epoch.fetch_add(1, std::memory_order_release);
  loop_.epoch.notify_all();
  work(0);
  // All pieces are taken. Closing comes before reading `inside_`, and a worker enters before it reads `open` (both sequentially
  // consistent): a worker that has not been counted here will find the loop closed and leave the description alone.
  loop_.open.store(false);
  int inside;
  for (int spins = 0; (inside = inside_.load()) != 0; ++spins) {
    if (spins < kSpins) {
      relax();
    } else {
      inside_.wait(inside, std::memory_order_acquire);
    }
  }
}

void ThreadPool::work(size_t self) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    std::atomic<uint64_t>& left = shares_[(self + i) % shares_.size()].left;
    uint64_t now = left.load(std::memory_order_relaxed);
    while (first_of(now) < end_of(now)) {
      // Pieces shrink, each half of what is left: long runs through memory at first, and in the end no thread waits for more than a
      // small piece of another's, also when one of them was interrupted.
      const size_t first = first_of(now), end = end_of(now), piece = (end - first + 1) / 2;
      const size_t from = i == 0 ? first : end - piece;
      const uint64_t rest = i == 0 ? packed(first + piece, end) : packed(first, from);
      if (!left.compare_exchange_weak(now, rest, std::memory_order_relaxed)) continue;
      loop_.body(loop_.context, from * loop_.grain, std::min(loop_.count, (from + piece) * loop_.grain));
      now = left.load(std::memory_order_relaxed);
    }
  }
}

void ThreadPool::worker_main(size_t self) {
  uint32_t seen = 0;
  for (;;) {
    uint32_t epoch;
    for (int spins = 0; (epoch = loop_.epoch.load(std::memory_order_acquire)) == seen; ++spins) {
      if (spins < kSpins) {
        relax();
      } else {
        loop_.epoch.wait(seen, std::memory_order_acquire);
      }
    }
    seen = epoch;
    if (stop_.load(std::memory_order_relaxed)) return;
    inside_.fetch_add(1);
    if (loop_.open.load()) work(self);
    if (inside_.fetch_sub(1) == 1) inside_.notify_all();
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
