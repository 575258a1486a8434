// Shared orders: messages from the leader to each member of a group on one machine, through shared memory.
//
// Each member has a ring of bytes, with the number of bytes that the leader has written and of those that the member has read.
// The leader waits only while a ring is full. Python (shared_orders.py) calls the C functions below.
#pragma once
#include "shared_memory.h"

namespace tetrad {

class SharedOrders {
 public:
  static constexpr int64_t HEAD_BYTES = 16384;             // room for 64 ranks
  static constexpr uint32_t RING_BYTES = 2 * 1024 * 1024;  // a power of two, so that the counters can wrap

  static int64_t size_bytes(int32_t size) { return HEAD_BYTES + size * int64_t{RING_BYTES}; }

  explicit SharedOrders(const SharedPlace& place)
      : ranks_(static_cast<Rank*>(place.memory)), rings_(static_cast<char*>(place.memory) + HEAD_BYTES),
        file_(place.file), rank_(place.rank), size_(place.size), timeout_s_(place.timeout_s) {}

  // Write bytes for a member; only the leader calls it.
  SumStatus write(int32_t member, const char* bytes, int64_t num_bytes) {
    Rank& its = ranks_[member];
    const auto has_room = [&](uint32_t read) { return its.written.value.load(std::memory_order_relaxed) - read < RING_BYTES; };
    while (num_bytes > 0) {
      if (!has_room(its.read.value.load(std::memory_order_acquire))) {
        const auto is_lost = [&] { return has_left(member) || has_left(rank_); };
        const SumStatus status = wait_for(its.read, has_room, is_lost, timeout_s_, WRITER_LOOK_NS);
        if (status != SUMMED) return status;
      }
      const uint32_t written = its.written.value.load(std::memory_order_relaxed);
      const uint32_t room = RING_BYTES - (written - its.read.value.load(std::memory_order_acquire));
      const uint32_t part = piece(written, room, num_bytes);
      std::memcpy(ring(member) + written % RING_BYTES, bytes, part);
      its.written.announce(written + part);
      bytes += part, num_bytes -= part;
    }
    return SUMMED;
  }

  // Read bytes that the leader has written for this member; wait for them without a limit.
  SumStatus read(char* bytes, int64_t num_bytes) {
    Rank& own = ranks_[rank_];
    const auto has_more = [&](uint32_t written) { return written != own.read.value.load(std::memory_order_relaxed); };
    while (num_bytes > 0) {
      const auto is_lost = [&] { return has_left(0) || has_left(rank_); };
      const SumStatus status = wait_for(own.written, has_more, is_lost, 0, READER_LOOK_NS);
      if (status != SUMMED) return status;
      const uint32_t read = own.read.value.load(std::memory_order_relaxed);
      const uint32_t part = piece(read, own.written.value.load(std::memory_order_acquire) - read, num_bytes);
      std::memcpy(bytes, ring(rank_) + read % RING_BYTES, part);
      own.read.announce(read + part);
      bytes += part, num_bytes -= part;
    }
    return SUMMED;
  }

  // Leave the group: the waits of this rank end, and those of the others for it.
  void leave() {
    ranks_[rank_].has_left.store(1);
    for (int32_t rank = 0; rank < size_; rank++) {
      ranks_[rank].written.wake();
      ranks_[rank].read.wake();
    }
  }

 private:
  // The progress of a member's ring.
  struct Rank {
    SharedCounter written, read;  // bytes, by the leader and by the member
    alignas(64) std::atomic<uint32_t> has_left;
  };

  char* ring(int32_t rank) const { return rings_ + rank * int64_t{RING_BYTES}; }

  // The number of bytes that can be copied at once at a place of a ring.
  static uint32_t piece(uint32_t place, uint32_t available, int64_t wanted) {
    const uint32_t to_end = RING_BYTES - place % RING_BYTES;
    return static_cast<uint32_t>(std::min<int64_t>({available, to_end, wanted}));
  }

  bool has_left(int32_t rank) const { return ranks_[rank].has_left.load() || (rank != rank_ && has_ended(file_, rank)); }

  static constexpr long WRITER_LOOK_NS = 5 * 1000 * 1000;
  static constexpr long READER_LOOK_NS = 100 * 1000 * 1000;  // an idle member looks ten times a second

  Rank* ranks_;
  char* rings_;
  int32_t file_, rank_, size_;
  double timeout_s_;
};

}  // namespace tetrad

extern "C" {

// Bytes of the memory that `size` ranks share.
int64_t tetrad_orders_size_bytes(int32_t size) { return tetrad::SharedOrders::size_bytes(size); }

void tetrad_orders_leave(const tetrad::SharedPlace* place) { tetrad::SharedOrders(*place).leave(); }

// Write bytes for a member. Return a SumStatus.
int32_t tetrad_orders_write(const tetrad::SharedPlace* place, int32_t member, const char* bytes, int64_t num_bytes) {
  return tetrad::SharedOrders(*place).write(member, bytes, num_bytes);
}

// Read bytes that the leader has written for this rank. Return a SumStatus.
int32_t tetrad_orders_read(const tetrad::SharedPlace* place, char* bytes, int64_t num_bytes) {
  return tetrad::SharedOrders(*place).read(bytes, num_bytes);
}

}  // extern "C"
