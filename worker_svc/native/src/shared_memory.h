// Shared memory: waits and locks by which processes (ranks) of one machine use one file in memory; see shared_sums.h and
// shared_orders.h.
//
// A rank holds a lock on one byte of the file; the system releases the lock when the process ends. Python (shared_memory.py)
// calls the C functions below.
#pragma once
#include <fcntl.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstring>

#include "operation.h"
#include "team.h"

namespace tetrad {

// A rank's access to the shared memory; fields as in structures.py.
struct SharedPlace {
  void* memory;
  double timeout_s;  // longest wait for another rank
  int32_t file;      // descriptor of the memory
  int32_t rank, size;
};

// A counter of one rank on which other ranks wait, on a separate cache line.
struct alignas(64) SharedCounter {
  std::atomic<uint32_t> value;  // wraps
  std::atomic<uint32_t> num_waiting;

  // Set the value and wake the ranks that wait for it.
  void announce(uint32_t to) {
    value.store(to);  // before num_waiting is read: a waiting rank increments that before it reads the value
    if (num_waiting.load()) wake();
  }

#if defined(__linux__)
  void wake() { syscall(SYS_futex, word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }

  // Sleep while the value is `seen`, for at most so many nanoseconds.
  void sleep(uint32_t seen, long longest_ns) {
    const timespec longest = {0, longest_ns};
    syscall(SYS_futex, word(), FUTEX_WAIT, seen, &longest, nullptr, 0);
  }

  uint32_t* word() { return reinterpret_cast<uint32_t*>(&value); }
#else
  void wake() {}
  void sleep(uint32_t, long) { sched_yield(); }
#endif
};

inline double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

// Wait until a counter's value fulfils `is_there`. Every `look_ns`, check whether a rank `is_lost`. A `timeout_s` of 0 is none.
template <typename Done, typename Lost>
SumStatus wait_for(SharedCounter& counter, Done is_there, Lost is_lost, double timeout_s, long look_ns) {
  const double start = now_s();
  counter.num_waiting.fetch_add(1);
  SumStatus status = SUMMED;
  while (true) {
    const uint32_t seen = counter.value.load();
    if (is_there(seen)) break;
    counter.sleep(seen, look_ns);
    if (is_there(counter.value.load())) break;
    if (is_lost()) {
      status = is_there(counter.value.load()) ? SUMMED : RANK_LOST;
      break;
    }
    if (timeout_s > 0 && now_s() - start > timeout_s) {
      status = TIMED_OUT;
      break;
    }
  }
  counter.num_waiting.fetch_sub(1);
  return status;
}

// The lock on a rank's byte.
inline struct flock lock_of(int32_t rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

// Whether the process of a rank has ended, that is, holds its lock no more.
inline bool has_ended(int32_t file, int32_t rank) {
#ifdef F_OFD_GETLK
  struct flock lock = lock_of(rank);
  return fcntl(file, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
#else
  return true;
#endif
}

}  // namespace tetrad

extern "C" {

// Whether this system has locks that are released when a process ends.
int32_t tetrad_shared_is_possible() {
#ifdef F_OFD_SETLK
  return 1;
#else
  return 0;
#endif
}

// Lock a rank's byte of the file until the file is closed. Return 0 on success.
int32_t tetrad_shared_join(int32_t file, int32_t rank) {
#ifdef F_OFD_SETLK
  struct flock lock = tetrad::lock_of(rank);
  return fcntl(file, F_OFD_SETLK, &lock);
#else
  return -1;
#endif
}

}  // extern "C"
