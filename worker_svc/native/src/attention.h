// Attention over KV pages, without copying them: each tile of query rows reads the pages of its sequence, STRIDE keys at a
// time, and keeps a running softmax.
//
// The rows of a tile are pairs (token, query head of the KV head), so that grouped heads share each key and value that is
// loaded. Strides of keys begin at key 0 and do not depend on the tile, so a row's result does not depend on the rows computed
// beside it. Slots that no row of the tile may attend to are not used, because a slot that was never written may hold any bits.
#pragma once
#include <algorithm>
#include <limits>
#include <vector>

#include "stride_float.h"
#include "stride_int8.h"

namespace tetrad {

#if defined(TETRAD_AVX512)
constexpr int TILE_ROWS = 6;
#else
constexpr int TILE_ROWS = 3;
#endif

// Maximum number of KV heads of a tile. A tile has several where that makes the pages of a sequence one long read.
constexpr int MAX_HEADS_TOGETHER = 4;

// Rows first .. first + count of the scheduled tokens of a sequence, for KV heads kv_head .. kv_head + num_kv_heads.
struct Tile {
  int32_t sequence, kv_head, num_kv_heads, first, count;
};

// Keys begin .. end of a sequence, for KV heads from kv_head on: the keys that the thread most likely reads next.
struct AheadKeys {
  const Sequence* sequence;
  int32_t kv_head;
  int64_t begin, end;
};

// Return the range of keys that the tile reads.
inline AheadKeys start_of(const Heads& heads, const Sequence* sequences, const Tile& tile) {
  const Sequence* sequence = &sequences[tile.sequence];
  const int64_t seen = sequence->num_computed + tile.first / heads.group() + 1;
  const int64_t hidden = heads.window && seen > heads.window ? seen - heads.window : 0;
  return {sequence, tile.kv_head, hidden / STRIDE * STRIDE, seen};
}

// Iterates over the strides of a tile: returns the location of each stride in the pages, and prefetches the next one.
template <typename Element>
class Walk {
 public:
  Walk(const Heads& heads, const Element* cache, const Sequence& sequence, const Tile& tile, const AheadKeys& following, int64_t begin,
       int64_t end)
      : heads_(heads), cache_(cache), sequence_(sequence), tile_(tile), following_(following), end_(end) {
    find(sequence, begin, end, next_);
  }

  // Return the stride that starts at key `begin`. The caller must ask for strides in ascending order.
  const Stride<Element>& stride(int64_t begin) {
    stride_.begin = begin;
    stride_.end = std::min(begin + STRIDE, end_);
    std::copy(next_, next_ + KEY_VECTORS, stride_.groups);
    const bool is_last = stride_.end == end_;
    is_last ? find(*following_.sequence, following_.begin, following_.end, next_) : find(sequence_, stride_.end, end_, next_);
    ask(is_last ? following_.kv_head : tile_.kv_head);
    return stride_;
  }

  const Heads& heads() const { return heads_; }
  int64_t kv_head(int h) const { return tile_.kv_head + h; }
  Fetch& fetch() { return fetch_; }

 private:
  // Find the location of each vector of keys. A vector behind the end gets that of the first one, and its scores are masked.
  void find(const Sequence& sequence, int64_t begin, int64_t end, Group<Element>* groups) const {
    for (int i = 0; i < KEY_VECTORS; i++) {
      const auto key = static_cast<uint32_t>(begin + i * LANES), size = static_cast<uint32_t>(heads_.block_size);
      groups[i] = key < end ? Group<Element>{cache_ + sequence.pages[key / size] * heads_.page_stride, key % size} : groups[0];
    }
  }

  // Start to prefetch the pages of the next stride that this stride does not use, for the tile's number of KV heads from
  // `kv_head` on.
  void ask(int64_t kv_head) {
    static_assert(KEY_VECTORS <= Fetch::MAX_PAGES);
    fetch_.clear();
    const Element* had = stride_.groups[KEY_VECTORS - 1].page;
    for (const auto& group : next_) {
      const bool is_behind_end = &group != next_ && group.page == next_[0].page;
      if (group.page != had && !is_behind_end) fetch_.add_page(had = group.page);
    }
    const int64_t num_heads = tile_.num_kv_heads, first = std::min(kv_head, heads_.num_kv_heads - num_heads);
    const int64_t heads_size = num_heads * heads_.head_dim * heads_.block_size * sizeof(Element);
    if (num_heads == heads_.num_kv_heads) {
      fetch_.add_span(0, heads_.page_size() * sizeof(Element));
    } else {
      fetch_.add_span(heads_.key_at(first) * sizeof(Element), heads_size);
      fetch_.add_span(heads_.value_at(first) * sizeof(Element), heads_size);
    }
    fetch_.start();
  }

  const Heads& heads_;
  const Element* cache_;
  const Sequence& sequence_;
  const Tile& tile_;
  const AheadKeys& following_;
  const int64_t end_;
  Stride<Element> stride_;
  Group<Element> next_[KEY_VECTORS];
  Fetch fetch_;
};

// The same for a block size that is no multiple of LANES: each stride is copied into pages with a block size of LANES.
template <typename Element>
class GatheringWalk {
 public:
  GatheringWalk(const Heads& heads, const Element* cache, const Sequence& sequence, const Tile& tile, int64_t end)
      : heads_(heads), gathered_(heads), cache_(cache), sequence_(sequence), tile_(tile), end_(end) {
    gathered_.num_kv_heads = tile.num_kv_heads;
    gathered_.block_size = LANES;
    pages_.resize(KEY_VECTORS * gathered_.page_size());
    for (int i = 0; i < KEY_VECTORS; i++) stride_.groups[i] = {pages_.data() + i * gathered_.page_size(), 0};
  }

  const Stride<Element>& stride(int64_t begin) {
    stride_.begin = begin;
    stride_.end = std::min(begin + STRIDE, end_);
    for (int64_t key = begin; key < stride_.end; key++) {
      const Element* page = cache_ + sequence_.pages[key / heads_.block_size] * heads_.page_stride;
      Element* to = pages_.data() + (key - begin) / LANES * gathered_.page_size();
      for (int h = 0; h < tile_.num_kv_heads; h++)
        copy_token(heads_, page, key % heads_.block_size, tile_.kv_head + h, gathered_, to, (key - begin) % LANES, h);
    }
    return stride_;
  }

  const Heads& heads() const { return gathered_; }
  int64_t kv_head(int h) const { return h; }
  Fetch& fetch() { return fetch_; }

 private:
  const Heads& heads_;
  Heads gathered_;
  const Element* cache_;
  const Sequence& sequence_;
  const Tile& tile_;
  const int64_t end_;
  std::vector<Element> pages_;
  Stride<Element> stride_;
  Fetch fetch_;
};

// Return the factor that normalizes a head's weighted sum of values: 1 / the sum of all weights, including the weight of the
// head's attention sink. `sum` is relative to the weight of the largest score, `top`.
inline float share_of_keys(const Heads& heads, int64_t head, float top, float sum) {
  if (!heads.sinks) return 1.0f / sum;
  const float sink = heads.sinks[head];
  if (sink <= top) return 1.0f / (sum + std::exp(sink - top));
  const float shrink = std::exp(top - sink);
  return shrink / (sum * shrink + 1.0f);
}

// Compute the attention of a tile with ROWS rows, for all of its KV heads.
template <int ROWS, typename Element>
inline void attend_rows(const Heads& heads, const Element* cache, const Sequence& sequence, const Tile& tile, const AheadKeys& following,
                        const float* queries, int64_t query_stride, float* output, int64_t output_stride) {
  const int64_t group = heads.group(), size = heads.head_dim;
  const auto token_of = [&](int row) { return (tile.first + row) / group; };
  const auto head_of = [&](int h, int row) { return (tile.kv_head + h) * group + (tile.first + row) % group; };
  Sight<ROWS> sight;
  int64_t last = 0;
  for (int row = 0; row < ROWS; row++) {
    const int64_t behind = sequence.num_computed + token_of(row) + 1;
    sight.seen[row] = sequence.ends ? sequence.ends[token_of(row)] : behind;
    sight.hidden[row] = heads.window && behind > heads.window ? behind - heads.window : 0;
    last = std::max(last, sight.seen[row]);
  }
  Queries<ROWS, Element> its_queries[MAX_HEADS_TOGETHER];
  Running<ROWS> states[MAX_HEADS_TOGETHER];
  for (int h = 0; h < tile.num_kv_heads; h++)
    for (int row = 0; row < ROWS; row++) {
      its_queries[h].take(row, queries + (sequence.first_token + token_of(row)) * query_stride + head_of(h, row) * size, size);
      states[h].tops[row] = -std::numeric_limits<float>::infinity();
      states[h].slopes[row] = heads.slopes ? heads.slopes[head_of(h, row)] : 0.0f;
      states[h].sums[row] = vf{};
      std::memset(states[h].totals[row], 0, size * sizeof(float));
    }
  const int64_t first = sight.hidden[0] / STRIDE * STRIDE;
  const auto go = [&](auto walk) {
    for (int64_t begin = first; begin < last; begin += STRIDE) {
      const Stride<Element>& stride = walk.stride(begin);
      for (int h = 0; h < tile.num_kv_heads; h++)
        attend_stride(walk.heads(), stride, walk.kv_head(h), sight, its_queries[h], walk.fetch(), states[h]);
    }
  };
  heads.block_size % LANES == 0 ? go(Walk<Element>(heads, cache, sequence, tile, following, first, last))
                                : go(GatheringWalk<Element>(heads, cache, sequence, tile, last));
  for (int h = 0; h < tile.num_kv_heads; h++)
    for (int row = 0; row < ROWS; row++) {
      float* out = output + (sequence.first_token + token_of(row)) * output_stride + head_of(h, row) * size;
      const float inverse = share_of_keys(heads, head_of(h, row), states[h].tops[row], sum(states[h].sums[row]));
      for (int64_t d = 0; d < size; d += LANES) store(out + d, load(states[h].totals[row] + d) * inverse);
    }
}

template <typename Element>
inline void attend_tile(const Heads& heads, const Element* cache, const Sequence& sequence, const Tile& tile, const AheadKeys& following,
                        const float* queries, int64_t query_stride, float* output, int64_t output_stride) {
  switch (tile.count) {
    case 1: return attend_rows<1>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
    case 2: return attend_rows<2>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
    case 3: return attend_rows<3>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
#if defined(TETRAD_AVX512)
    case 4: return attend_rows<4>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
    case 5: return attend_rows<5>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
    case 6: return attend_rows<6>(heads, cache, sequence, tile, following, queries, query_stride, output, output_stride);
#endif
  }
}

}  // namespace tetrad
