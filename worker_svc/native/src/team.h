// Team: threads that work through a step together.
//
// A step is a list of phases. Each phase is cut into items that the threads take from a counter, so that one which loses its
// core to another process holds up no more than the item in its hands. Between phases they wait for one another: spinning
// first, because the wait is mostly shorter than a trip through the kernel, then giving the core away.
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

  // Run `work` on every thread, the calling one included, and return when all have.
  void run(const std::function<void()>& work) {
    if (size_ == 1) return work();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      work_ = &work;
      busy_.store(size_ - 1, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    }
    called_.notify_all();
    work();
    wait_until([this] { return busy_.load(std::memory_order_acquire) == 0; });
  }

  // Within `run`: wait for the others. Every thread must come.
  void meet() {
    if (size_ == 1) return;
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.fetch_add(1, std::memory_order_release);
    } else {
      wait_until([this, round] { return round_.load(std::memory_order_acquire) != round; });
    }
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
  static void wait_until(Done done) {
    for (int spin = 0; spin < SPINS; spin++) {
      if (done()) return;
      pause_core();
    }
    while (!done()) sched_yield();
  }

  void serve() {
    unsigned seen = 0;
    while (true) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        called_.wait(lock, [&] { return ended_ || generation_.load(std::memory_order_acquire) != seen; });
        if (ended_) return;
        seen = generation_.load(std::memory_order_acquire);
      }
      (*work_)();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int size_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable called_;
  bool ended_ = false;
  const std::function<void()>* work_ = nullptr;
  std::atomic<unsigned> generation_{0};
  std::atomic<int> busy_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<unsigned> round_{0};
};

// Items of one phase, handed out one after another.
struct alignas(64) Counter {
  std::atomic<int64_t> next{0};

  template <typename Item>
  void work_off(int64_t count, Item item) {
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) item(index);
  }
};

}  // namespace tetrad
