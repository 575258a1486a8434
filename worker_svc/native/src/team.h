// Team: a pool of threads that compute a step together.
//
// A step is a list of phases, each divided into items that the threads take from a counter. A phase ends when its items are
// done, not when every thread has arrived: a thread that the system has suspended delays only its current item, and a thread
// that has not woken up delays nothing. The calling thread could compute all items alone.
#pragma once
#include <sched.h>

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
      for (int rank = 1; rank < size_; rank++) threads_.emplace_back([this] { serve(); });
    } catch (...) {
      end();
      throw;
    }
  }

  ~Team() { end(); }

  int size() const { return size_; }

  // Run `work` on the calling thread and on the other threads that wake up in time. Return when no thread runs it any more.
  void run(const std::function<void()>& work) {
    if (size_ == 1) return work();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      generation_.fetch_add(1, std::memory_order_release);
    }
    called_.notify_all();
    work();
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
  void serve() {
    unsigned seen = 0;
    while (true) {
      const std::function<void()>* work;
      spin_until([&] { return generation_.load(std::memory_order_acquire) != seen; });  // the next step usually follows at once
      {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return ended_ || (work_ && generation_.load(std::memory_order_relaxed) != seen); });
        if (ended_) return;
        seen = generation_.load(std::memory_order_relaxed);
        work = work_;
        inside_.fetch_add(1, std::memory_order_relaxed);
      }
      (*work)();
      inside_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable called_;
  bool ended_ = false;
  const std::function<void()>* work_ = nullptr;
  std::atomic<unsigned> generation_{0};
  alignas(64) std::atomic<int> inside_{0};
};

// The counters of one phase's items. Every thread calls `work_off` with the same count; the call returns when all items are
// done, by whichever thread.
struct alignas(64) Phase {
  std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int64_t> done{0};

  void begin() {
    next.store(0, std::memory_order_relaxed);
    done.store(0, std::memory_order_relaxed);
  }

  template <typename Item>
  void work_off(int64_t count, Item item) {
    int64_t mine = 0;
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count; mine++) item(index);
    if (mine) done.fetch_add(mine, std::memory_order_release);
    Team::wait_until([&] { return done.load(std::memory_order_acquire) >= count; });
  }
};

}  // namespace tetrad
