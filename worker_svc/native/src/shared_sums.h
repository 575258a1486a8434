// Shared sums: adds and gathers the vectors of several processes (ranks) of one machine through shared memory.
//
// Each rank writes a chunk of its vector into its own buffer, announces it, waits for the other ranks' chunks and reads all of
// them in the order of the ranks, so sums have the same bits on every rank. A rank has two buffers, which it uses alternately: a
// rank that has announced chunk n + 1 has read all buffers of chunk n. Python (shared_sums.py) calls the C functions below.
#pragma once
#include "shared_memory.h"

namespace tetrad {

class SharedSums {
 public:
  static constexpr int64_t HEAD_BYTES = 8192;          // room for 64 ranks
  static constexpr int64_t CHUNK_BYTES = 256 * 1024;  // of a buffer

  static int64_t size_bytes(int32_t size) { return HEAD_BYTES + size * 2 * CHUNK_BYTES; }

  explicit SharedSums(const SharedPlace& place)
      : ranks_(static_cast<Rank*>(place.memory)), buffers_(static_cast<char*>(place.memory) + HEAD_BYTES),
        file_(place.file), rank_(place.rank), size_(place.size), timeout_s_(place.timeout_s) {}

  // Add the other ranks' values to x.
  SumStatus sum(float* x, int64_t count) {
    return exchange(x, count * int64_t{sizeof(float)}, [x](int32_t rank, const char* its, int64_t first, int64_t bytes) {
      float* target = x + first / int64_t{sizeof(float)};
      if (rank == 0) {
        std::memcpy(target, its, bytes);
      } else {
        const float* values = reinterpret_cast<const float*>(its);
        for (int64_t i = 0; i < bytes / int64_t{sizeof(float)}; i++) target[i] += values[i];
      }
    });
  }

  // Copy the bytes of all ranks, in their order, to `found`; only wait for them where that is null.
  SumStatus gather(const void* x, int64_t num_bytes, char* found) {
    return exchange(x, num_bytes, [=](int32_t rank, const char* its, int64_t first, int64_t bytes) {
      if (found) std::memcpy(found + rank * num_bytes + first, its, bytes);
    });
  }

  void leave() { ranks_[rank_].has_left.store(1, std::memory_order_relaxed); }

 private:
  struct Rank {
    SharedCounter num_chunks;  // announced
    alignas(64) std::atomic<uint32_t> has_left;
  };

  char* buffer(int32_t rank, uint32_t chunk) const { return buffers_ + (rank * 2 + (chunk & 1)) * CHUNK_BYTES; }

  // Write x chunk by chunk, and read(rank, bytes of the rank, offset, number of bytes) those of all ranks.
  template <typename Read>
  SumStatus exchange(const void* x, int64_t num_bytes, Read read) {
    for (int64_t first = 0; first < num_bytes; first += CHUNK_BYTES) {
      const int64_t bytes = std::min(CHUNK_BYTES, num_bytes - first);
      const uint32_t chunk = ranks_[rank_].num_chunks.value.load(std::memory_order_relaxed);
      std::memcpy(buffer(rank_, chunk), static_cast<const char*>(x) + first, bytes);
      ranks_[rank_].num_chunks.announce(chunk + 1);
      for (int32_t rank = 0; rank < size_; rank++) {
        const SumStatus status = wait_until_announced(rank, chunk + 1);
        if (status != SUMMED) return status;
        read(rank, buffer(rank, chunk), first, bytes);
      }
    }
    return SUMMED;
  }

  // Wait until a rank has announced so many chunks: spin first, because the other ranks are usually as far; then sleep.
  SumStatus wait_until_announced(int32_t rank, uint32_t num_chunks) {
    SharedCounter& its = ranks_[rank].num_chunks;
    const auto is_there = [&](uint32_t announced) { return static_cast<int32_t>(announced - num_chunks) >= 0; };
    for (int spin = 0; spin < SPINS; spin++) {
      if (is_there(its.value.load(std::memory_order_acquire))) return SUMMED;
      pause_core();
    }
    return wait_for(its, is_there, [&] { return has_left(rank) || has_left(rank_); }, timeout_s_, LOOK_NS);
  }

  bool has_left(int32_t rank) const {
    return ranks_[rank].has_left.load(std::memory_order_relaxed) || (rank != rank_ && has_ended(file_, rank));
  }

  static constexpr int SPINS = 4000;  // as in Team
  static constexpr long LOOK_NS = 5 * 1000 * 1000;

  Rank* ranks_;
  char* buffers_;
  int32_t file_, rank_, size_;
  double timeout_s_;
};

}  // namespace tetrad

using namespace tetrad;

extern "C" {

// Bytes of the memory that `size` ranks share.
int64_t tetrad_sums_size_bytes(int32_t size) { return SharedSums::size_bytes(size); }

void tetrad_sums_leave(const SharedPlace* place) { SharedSums(*place).leave(); }

// The AddUp whose first argument is a SharedPlace.
int32_t tetrad_sums_add(void* place, float* x, int64_t count) {
  return SharedSums(*static_cast<const SharedPlace*>(place)).sum(x, count);
}

// Gather so many bytes of each rank; `found` is null on ranks that read nothing. Return a SumStatus.
int32_t tetrad_sums_gather(const SharedPlace* place, const void* x, int64_t num_bytes, char* found) {
  return SharedSums(*place).gather(x, num_bytes, found);
}

}  // extern "C"
