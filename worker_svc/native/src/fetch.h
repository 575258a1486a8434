// Memory that is asked for ahead of its use.
#pragma once
#include "vec.h"

namespace tetrad {

// Asks for pages while others are computed: the same line of each at a time, evenly over the calls of `some`. A processor takes
// only so many requests at once, and those that come in bursts hold up the loads behind them.
class Fetch {
 public:
  static constexpr int MAX_PAGES = 4;

  // What was asked for is done with.
  void clear() { num_pages_ = num_spans_ = 0; }
  void add_page(const void* page) { pages_[num_pages_++] = static_cast<const uint8_t*>(page); }
  // Of each page, `size` bytes from `begin` on.
  void add_span(int64_t begin, int64_t size) { spans_[num_spans_++] = {begin, begin + size}; }

  // There will be about as many calls as there were since the last start.
  void start() {
    int64_t num_lines = 0;
    for (int i = 0; i < num_spans_; i++) num_lines += (spans_[i].end - spans_[i].begin + LINE - 1) / LINE;
    const int64_t rate = num_calls_ ? (num_lines * ONE + num_calls_ - 1) / num_calls_ : ONE;
    rate_ = num_pages_ ? rate : 0;
    at_ = spans_[0].begin;
    credit_ = num_calls_ = span_ = 0;
  }

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
  int64_t num_calls_ = 0, at_ = 0, rate_ = 0, credit_ = 0;  // rate and credit: lines, in units of 1 / ONE
};

}  // namespace tetrad
