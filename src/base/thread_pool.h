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
/// an idle pool, or a pool that shares its cores with other work, costs nothing and does not collapse. As long as nothing disturbs
/// them, threads compute the same part of a loop every time.
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
  void work(size_t self);
  void worker_main(size_t self);

  /// What is left of a thread's own share of the loop: its first grain and the one behind its last, in 32 bits each. The owner takes
  /// pieces from the front; who has finished his own share takes half of what is left of another's, from the back. On a line of its
  /// own, so that taking a piece costs nothing as long as nobody steals.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  // The running loop. Written only by the caller, while the loop is not open and no worker is inside, and read together.
  struct alignas(64) Loop {
    std::atomic<uint32_t> epoch{0};  // counts loops; workers wait for it to change
    std::atomic<bool> open{false};   // the description below is that of a running loop
    Body body = nullptr;
    void* context = nullptr;
    size_t grain = 1, count = 0;
  };
  Loop loop_;
  alignas(64) std::atomic<int> inside_{0};  // workers that may be reading the description of the loop
  std::atomic<bool> stop_{false};
  std::vector<Share> shares_;  // [threads], the caller's first
  std::vector<std::thread> workers_;
};

/// Threads worth starting here: the CPUs this process may run on (affinity mask and cgroup quota).
int default_thread_count();

}  // namespace aerie
