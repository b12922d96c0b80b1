// A pool of threads for fine-grained work: a few microseconds a piece, hundreds of pieces a token.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace aerie {

/// Runs one parallel loop at a time. Not thread-safe: one owner calls it, and not from inside a loop of the same pool. Waiting
/// threads spin for a bounded time and then sleep, and a loop waits only for the threads that have taken a piece of it, so that
/// an idle pool, or a pool that shares its cores with other work, costs nothing and does not collapse.
class ThreadPool {
 public:
  /// `threads` in all, the caller included; at least 1.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(begin, end) on disjoint ranges that cover [0, count), in pieces of at least `grain`; returns when all are done.
  /// Which thread computes which piece is not defined: fn must give the same bytes whoever runs it.
  template <class Fn>
  void parallel_for(size_t count, size_t grain, Fn&& fn) {
    if (count == 0) return;
    if (workers_.empty() || count <= grain) {
      fn(size_t{0}, count);
      return;
    }
    run(
        count, grain, [](void* context, size_t begin, size_t end) { (*static_cast<std::remove_reference_t<Fn>*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  using Body = void (*)(void*, size_t, size_t);
  void run(size_t count, size_t grain, Body body, void* context);
  void work();
  void worker_main();

  struct alignas(64) Shared {
    std::atomic<uint32_t> epoch{0};             // counts loops; workers wait for it to change
    alignas(64) std::atomic<size_t> next{0};    // first index that nobody has taken yet
    alignas(64) std::atomic<int> inside{0};     // workers that may be reading the description of the loop
    alignas(64) std::atomic<bool> open{false};  // the description below is that of a running loop
  };
  Shared shared_;
  // The loop. Written only while it is not open and no worker is inside.
  Body body_ = nullptr;
  void* context_ = nullptr;
  size_t count_ = 0;
  size_t grain_ = 1;
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

/// Threads worth starting here: the CPUs this process may run on (affinity mask and cgroup quota).
int default_thread_count();

}  // namespace aerie
