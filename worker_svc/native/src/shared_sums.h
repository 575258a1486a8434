// Shared sums: adds the vectors of several processes (ranks) of one machine through shared memory.
//
// Each rank writes a chunk of its vector into its own buffer, announces it, waits for the other ranks' chunks and adds all of
// them in the order of the ranks, so the sums have the same bits on every rank. A rank has two buffers, which it uses
// alternately: a rank that has announced chunk n + 1 has read all buffers of chunk n. A rank holds a lock on one byte of the
// file; the system releases the lock when the process ends. Python (shared_sums.py) calls the C functions below.
#pragma once
#include <fcntl.h>
#include <time.h>
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <atomic>
#include <climits>
#include <cstring>

#include "operation.h"
#include "team.h"

namespace tetrad {

// The progress of one rank, on a separate cache line at the beginning of the memory.
struct alignas(64) SharedRank {
  std::atomic<uint32_t> num_chunks;   // chunks announced; wraps
  std::atomic<uint32_t> num_waiting;  // number of ranks that wait for the next chunk of this one
  std::atomic<uint32_t> has_left;
};

// A rank's access to the shared memory; fields as in structures.py.
struct SumsPlace {
  void* memory;
  double timeout_s;  // longest wait for another rank
  int32_t file;      // descriptor of the memory
  int32_t rank, size;
};

class SharedSums {
 public:
  static constexpr int64_t HEAD_BYTES = 4096;  // room for 64 ranks
  static constexpr int64_t CHUNK = 64 * 1024;  // floats per buffer

  static int64_t size_bytes(int32_t size) { return HEAD_BYTES + size * 2 * CHUNK * int64_t{sizeof(float)}; }

  explicit SharedSums(const SumsPlace& place)
      : ranks_(static_cast<SharedRank*>(place.memory)),
        buffers_(reinterpret_cast<float*>(static_cast<char*>(place.memory) + HEAD_BYTES)),
        file_(place.file), rank_(place.rank), size_(place.size), timeout_s_(place.timeout_s) {}

  // Add the other ranks' values to x.
  SumStatus sum(float* x, int64_t count) {
    for (int64_t first = 0; first < count; first += CHUNK) {
      const SumStatus status = sum_chunk(x + first, count - first < CHUNK ? count - first : CHUNK);
      if (status != SUMMED) return status;
    }
    return SUMMED;
  }

 private:
  float* buffer(int32_t rank, uint32_t chunk) const { return buffers_ + (rank * 2 + (chunk & 1)) * CHUNK; }

  SumStatus sum_chunk(float* x, int64_t count) {
    const uint32_t chunk = ranks_[rank_].num_chunks.load(std::memory_order_relaxed);
    std::memcpy(buffer(rank_, chunk), x, count * sizeof(float));
    announce(chunk + 1);
    for (int32_t rank = 0; rank < size_; rank++) {
      const SumStatus status = wait_for(rank, chunk + 1);
      if (status != SUMMED) return status;
      const float* its = buffer(rank, chunk);
      if (rank == 0) {
        if (rank_ != 0) std::memcpy(x, its, count * sizeof(float));
      } else {
        for (int64_t i = 0; i < count; i++) x[i] += its[i];
      }
    }
    return SUMMED;
  }

  void announce(uint32_t num_chunks) {
    SharedRank& own = ranks_[rank_];
    own.num_chunks.store(num_chunks);  // before num_waiting is read: a waiting rank increments that before it reads num_chunks
    if (own.num_waiting.load()) wake(own.num_chunks);
  }

  // Wait until a rank has announced so many chunks: spin first, because the other ranks are usually as far; then sleep, and
  // check every LOOK_NS whether the rank's process still lives.
  SumStatus wait_for(int32_t rank, uint32_t num_chunks) {
    SharedRank& its = ranks_[rank];
    const auto is_there = [&] { return static_cast<int32_t>(its.num_chunks.load(std::memory_order_acquire) - num_chunks) >= 0; };
    for (int spin = 0; spin < SPINS; spin++) {
      if (is_there()) return SUMMED;
      pause_core();
    }
    its.num_waiting.fetch_add(1);
    const SumStatus status = sleep_until(is_there, rank);
    its.num_waiting.fetch_sub(1);
    return status;
  }

  template <typename Done>
  SumStatus sleep_until(Done is_there, int32_t rank) {
    const double start = now_s();
    while (true) {
      const uint32_t seen = ranks_[rank].num_chunks.load();
      if (is_there()) return SUMMED;
      sleep(ranks_[rank].num_chunks, seen);
      if (is_there()) return SUMMED;
      if (has_left(rank) || has_left(rank_)) return is_there() ? SUMMED : RANK_LOST;
      if (now_s() - start > timeout_s_) return TIMED_OUT;
    }
  }

#if defined(__linux__)
  static void wake(std::atomic<uint32_t>& word) {
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }

  // Sleep while the word has the value `seen`, for at most LOOK_NS.
  static void sleep(std::atomic<uint32_t>& word, uint32_t seen) {
    const timespec longest = {0, LOOK_NS};
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &longest, nullptr, 0);
  }
#else
  static void wake(std::atomic<uint32_t>&) {}
  static void sleep(std::atomic<uint32_t>&, uint32_t) { sched_yield(); }
#endif

  // Whether a rank has left or its process has ended.
  bool has_left(int32_t rank) const {
    if (ranks_[rank].has_left.load(std::memory_order_relaxed)) return true;
    if (rank == rank_) return false;
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
#ifdef F_OFD_GETLK
    return fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
#else
    return true;
#endif
  }

  static double now_s() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + now.tv_nsec * 1e-9;
  }

  static constexpr int SPINS = 4000;  // as in Team
  static constexpr long LOOK_NS = 5 * 1000 * 1000;

  SharedRank* ranks_;
  float* buffers_;
  int32_t file_, rank_, size_;
  double timeout_s_;
};

}  // namespace tetrad

using namespace tetrad;

extern "C" {

// Bytes of the memory that `size` ranks share; 0: this system has no locks that are released when a process ends.
int64_t tetrad_sums_size_bytes(int32_t size) {
#ifdef F_OFD_SETLK
  return SharedSums::size_bytes(size);
#else
  return 0;
#endif
}

// Lock a rank's byte of the file until the file is closed. Return 0 on success.
int32_t tetrad_sums_join(int32_t file, int32_t rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
#ifdef F_OFD_SETLK
  return fcntl(file, F_OFD_SETLK, &lock);
#else
  return -1;
#endif
}

void tetrad_sums_leave(void* memory, int32_t rank) {
  static_cast<SharedRank*>(memory)[rank].has_left.store(1, std::memory_order_relaxed);
}

// The AddUp whose first argument is a SumsPlace.
int32_t tetrad_sums_add(void* place, float* x, int64_t count) {
  return SharedSums(*static_cast<const SumsPlace*>(place)).sum(x, count);
}

}  // extern "C"
