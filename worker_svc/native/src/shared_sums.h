// Shared sums: adds up the vectors of several processes of one machine through memory that all have mapped.
//
// Each rank writes a chunk of its vector into its own buffer, announces it, waits for the others' and adds all of them in the
// order of the ranks, so the sums have the same bits everywhere. A rank has two buffers, used in turns: one that has announced
// chunk n + 1 has read all of chunk n. A rank holds a lock on a byte of the file as long as it lives; the system releases it.
#pragma once
#include <fcntl.h>
#include <time.h>

#include <atomic>
#include <cstring>

#include "team.h"

namespace tetrad {

// What a rank has written; on a cache line of its own, at the beginning of the memory.
struct alignas(64) SharedRank {
  std::atomic<uint64_t> num_chunks;
  std::atomic<uint32_t> has_left;
};

enum SumStatus : int32_t { SUMMED = 0, RANK_LOST = 1, TIMED_OUT = 2 };

class SharedSums {
 public:
  static constexpr int64_t HEAD_BYTES = 4096;  // room for 64 ranks
  static constexpr int64_t CHUNK = 64 * 1024;  // floats of a buffer

  static int64_t size_bytes(int32_t size) { return HEAD_BYTES + size * 2 * CHUNK * int64_t{sizeof(float)}; }

  SharedSums(void* memory, int32_t file, int32_t rank, int32_t size, double timeout_s)
      : ranks_(static_cast<SharedRank*>(memory)),
        buffers_(reinterpret_cast<float*>(static_cast<char*>(memory) + HEAD_BYTES)),
        file_(file), rank_(rank), size_(size), timeout_s_(timeout_s) {}

  // Add the others' values to x.
  SumStatus sum(float* x, int64_t count) {
    for (int64_t first = 0; first < count; first += CHUNK) {
      const SumStatus status = sum_chunk(x + first, count - first < CHUNK ? count - first : CHUNK);
      if (status != SUMMED) return status;
    }
    return SUMMED;
  }

 private:
  float* buffer(int32_t rank, uint64_t chunk) const { return buffers_ + (rank * 2 + (chunk & 1)) * CHUNK; }

  SumStatus sum_chunk(float* x, int64_t count) {
    const uint64_t chunk = ranks_[rank_].num_chunks.load(std::memory_order_relaxed);
    std::memcpy(buffer(rank_, chunk), x, count * sizeof(float));
    ranks_[rank_].num_chunks.store(chunk + 1, std::memory_order_release);
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

  // Spin, then give the core away, then sleep, and look whether the rank lives.
  SumStatus wait_for(int32_t rank, uint64_t num_chunks) {
    const auto is_there = [&] { return ranks_[rank].num_chunks.load(std::memory_order_acquire) >= num_chunks; };
    for (int spin = 0; spin < SPINS; spin++) {
      if (is_there()) return SUMMED;
      pause_core();
    }
    const double start = now_s();
    while (!is_there()) {
      const double waited = now_s() - start;
      if (waited < YIELD_S) {
        sched_yield();
        continue;
      }
      if (has_left(rank) || has_left(rank_)) return is_there() ? SUMMED : RANK_LOST;
      if (waited > timeout_s_) return TIMED_OUT;
      const timespec pause = {0, SLEEP_NS};
      nanosleep(&pause, nullptr);
    }
    return SUMMED;
  }

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

  static constexpr int SPINS = 4000;  // as of a team
  static constexpr double YIELD_S = 2e-3;
  static constexpr long SLEEP_NS = 100 * 1000;

  SharedRank* ranks_;
  float* buffers_;
  int32_t file_, rank_, size_;
  double timeout_s_;
};

}  // namespace tetrad
