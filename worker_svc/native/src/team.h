// Team: a pool of threads that compute a step together.
//
// A step is a list of phases, each divided into items. Each thread first takes the items of its own part, in order, so that it
// can prefetch the data of the next one; then it takes items that are left in the parts of other threads. A phase ends when its
// items are done, not when every thread has arrived: a thread that the system has suspended delays only its current item, and a
// thread that has not woken up delays nothing. The calling thread could compute all items alone.
#pragma once
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tetrad {

inline void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class Team {
 public:
  explicit Team(int size) : size_(size < 1 ? 1 : size) {
    try {
      for (int rank = 1; rank < size_; rank++) threads_.emplace_back([this, rank] { serve(rank); });
    } catch (...) {
      end();
      throw;
    }
  }

  ~Team() { end(); }

  int size() const { return size_; }

  // Run `work` on the calling thread, which has rank 0, and on the other threads that wake up in time. Return when no thread runs
  // it any more.
  void run(const std::function<void(int rank)>& work) {
    if (size_ == 1) return work(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      generation_.fetch_add(1, std::memory_order_release);
    }
    called_.notify_all();
    work(0);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = nullptr;
    }
    wait_until([this] { return inside_.load(std::memory_order_acquire) == 0; });
  }

  // Wait until `done` returns true: spin first, which is usually faster than a system call, then yield the core.
  template <typename Done>
  static void wait_until(Done done) {
    if (!spin_until(done))
      while (!done()) sched_yield();
  }

 private:
  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    called_.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  static constexpr int SPINS = 4000;  // some 40 to 100 microseconds

  template <typename Done>
  static bool spin_until(Done done) {
    for (int spin = 0; spin < SPINS; spin++) {
      if (done()) return true;
      pause_core();
    }
    return false;
  }

  // The loop of a thread: wait for work and run it, until the team ends.
  void serve(int rank) {
    unsigned seen = 0;
    while (true) {
      const std::function<void(int)>* work;
      spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; });  // the next step usually follows at once
      {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return ended_ || (work_ && generation_.load(std::memory_order_relaxed) != seen); });
        if (ended_) return;
        seen = generation_.load(std::memory_order_relaxed);
        work = work_;
        inside_.fetch_add(1, std::memory_order_relaxed);
      }
      (*work)(rank);
      inside_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable called_;
  bool ended_ = false;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> inside_{0};
};

// The counters of one phase's items. Every thread calls `work_off` with the same count; the call returns when all items are
// done, by whichever thread.
class alignas(64) Phase {
 public:
  // Forget all items. Not while a thread is inside `work_off`.
  void begin(int num_threads) {
    num_parts_ = std::min(num_threads, MAX_PARTS);
    for (int part = 0; part < num_parts_; part++) parts_[part].next.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }

  template <typename Item>
  void work_off(int rank, int64_t count, Item item) {
    int64_t mine = 0;
    for (int i = 0; i < num_parts_; i++) mine += work_off_part((rank + i) % num_parts_, count, item);
    if (mine) done_.fetch_add(mine, std::memory_order_release);
    Team::wait_until([&] { return done_.load(std::memory_order_acquire) >= count; });
  }

 private:
  static constexpr int MAX_PARTS = 16;

  // A range of items. `next`: number of items that threads have taken, or more.
  struct alignas(64) Part {
    std::atomic<int64_t> next{0};
  };

  int64_t begin_of(int part, int64_t count) const { return (count * part + num_parts_ - 1) / num_parts_; }

  // Compute the items of a part that no other thread takes; return their number.
  template <typename Item>
  int64_t work_off_part(int part, int64_t count, Item item) {
    const int64_t begin = begin_of(part, count), size = begin_of(part + 1, count) - begin;
    std::atomic<int64_t>& next = parts_[part].next;
    if (next.load(std::memory_order_relaxed) >= size) return 0;
    int64_t mine = 0;
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < size; mine++) item(begin + index);
    return mine;
  }

  int num_parts_ = 1;
  Part parts_[MAX_PARTS];
  alignas(64) std::atomic<int64_t> done_{0};
};

// A phase, and the rank of the thread that works on it.
struct ThreadPhase {
  Phase& phase;
  int rank;

  // See Phase.
  template <typename Item>
  void work_off(int64_t count, Item item) const {
    phase.work_off(rank, count, item);
  }
};

}  // namespace tetrad
