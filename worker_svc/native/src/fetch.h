// Prefetching of memory ahead of its use.
#pragma once
#include "vec.h"

namespace tetrad {

// Prefetches pages while others are computed: one cache line of each page at a time, spread evenly over the calls of `some`. A
// processor accepts a limited number of memory requests at once, and a burst of prefetches delays the loads that follow.
class Fetch {
 public:
  static constexpr int MAX_PAGES = 4;

  // Remove all pages and spans.
  void clear() { num_pages_ = num_spans_ = 0; }
  void add_page(const void* page) { pages_[num_pages_++] = static_cast<const uint8_t*>(page); }
  // Prefetch `size` bytes of each page, from byte `begin` on.
  void add_span(int64_t begin, int64_t size) { spans_[num_spans_++] = {begin, begin + size}; }

  // Start at the first line, at a rate that assumes as many calls of `some` as there were since the last start.
  void start() {
    int64_t num_lines = 0;
    for (int i = 0; i < num_spans_; i++) num_lines += (spans_[i].end - spans_[i].begin + LINE - 1) / LINE;
    const int64_t rate = num_calls_ ? (num_lines * ONE + num_calls_ - 1) / num_calls_ : ONE;
    rate_ = num_pages_ ? rate : 0;
    at_ = spans_[0].begin;
    credit_ = num_calls_ = span_ = 0;
  }

  // Prefetch the lines that are due in this call.
  void some() {
    num_calls_++;
    for (credit_ += rate_; credit_ >= ONE; credit_ -= ONE) {
      for (int i = 0; i < num_pages_; i++) prefetch(pages_[i] + at_);
      at_ += LINE;
      if (at_ < spans_[span_].end) continue;
      if (++span_ == num_spans_) {
        rate_ = credit_ = 0;
        return;
      }
      at_ = spans_[span_].begin;
    }
  }

 private:
  static constexpr int LINE = 64, MAX_SPANS = 2;
  static constexpr int64_t ONE = 1 << 12;

  struct Span {
    int64_t begin, end;
  };

  const uint8_t* pages_[MAX_PAGES];
  Span spans_[MAX_SPANS] = {};
  int num_pages_ = 0, num_spans_ = 0, span_ = 0;
  int64_t num_calls_ = 0, at_ = 0, rate_ = 0, credit_ = 0;  // rate_: lines per call; credit_: lines due; in units of 1 / ONE
};

}  // namespace tetrad
