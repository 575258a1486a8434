// Attention over KV pages, with nothing copied: a tile of query rows goes over the pages of its sequence, STRIDE keys at a
// time, with the running softmax of Milakov and Gimelshein (2018), as FlashAttention has it.
//
// Rows of a tile: (token, query head of the KV head) pairs, so that grouped heads share each key and value that is loaded.
// A page of a layer: keys [KV heads][head_dim][block_size], then values [KV heads][block_size][head_dim]. Keys are transposed:
//   the scores of LANES keys are LANES lanes, and nothing is summed across a vector.
// Keys are taken in strides that begin at key 0 and do not depend on the tile, so a row's result does not depend on what is
//   computed beside it. What a row may not see has weight 0; what no row of the tile may see is not touched, since a slot that
//   was never written may hold anything.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "vec.h"

namespace tetrad {

constexpr int KEY_VECTORS = 4;
constexpr int STRIDE = KEY_VECTORS * LANES;
#if defined(TETRAD_AVX512)
constexpr int TILE_ROWS = 6;
#else
constexpr int TILE_ROWS = 3;
#endif
constexpr int MAX_HEAD_DIM = 256;

struct Heads {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  int32_t window;   // 0: all keys
  int32_t is_half;  // whether keys and values are kept in half precision
  int32_t rotary_dim;  // how many dimensions of a head turn with the position
  int64_t page_stride;  // elements from a layer's page to its next one, behind those of all other layers

  int64_t group() const { return num_heads / num_kv_heads; }
  int64_t page_size() const { return int64_t(2) * num_kv_heads * block_size * head_dim; }
  int64_t key_at(int64_t kv_head) const { return kv_head * head_dim * block_size; }
  int64_t value_at(int64_t kv_head) const { return (num_kv_heads + kv_head) * head_dim * block_size; }
};

// KV heads are walked together where that makes a sequence's pages one long read.
constexpr int MAX_HEADS_TOGETHER = 4;

// Rows first .. first + count of a sequence's chunk, for KV heads kv_head .. kv_head + num_kv_heads.
struct Tile {
  int32_t sequence, kv_head, num_kv_heads, first, count;
};

struct Sequence {
  const int32_t* pages;
  int64_t first_token;   // in the step
  int64_t num_computed;  // position of that token
};

// Keys begin .. end of a sequence, for KV heads from kv_head on: what a thread most likely reads next.
struct AheadKeys {
  const Sequence* sequence;
  int32_t kv_head;
  int64_t begin, end;
};

// The first keys that the tile reads.
inline AheadKeys start_of(const Heads& heads, const Sequence* sequences, const Tile& tile) {
  const Sequence* sequence = &sequences[tile.sequence];
  const int64_t seen = sequence->num_computed + tile.first / heads.group() + 1;
  const int64_t hidden = heads.window && seen > heads.window ? seen - heads.window : 0;
  return {sequence, tile.kv_head, hidden / STRIDE * STRIDE, seen};
}

template <typename Element>
inline void write_key_value(const Heads& heads, Element* cache, int64_t slot, const float* keys, const float* values) {
  Element* page = cache + slot / heads.block_size * heads.page_stride;
  const int64_t offset = slot % heads.block_size, size = heads.head_dim;
  for (int64_t head = 0; head < heads.num_kv_heads; head++) {
    Element* key = page + heads.key_at(head) + offset;
    Element* value = page + heads.value_at(head) + offset * size;
    for (int64_t d = 0; d < size; d++) {
      put(key + d * heads.block_size, keys[head * size + d]);
      put(value + d, values[head * size + d]);
    }
  }
}

// scores[row][key] of the vectors of keys that `keys` points at, one pointer for each; those at `next_keys` come next.
template <int ROWS, typename Element>
inline void score(const float* const* queries, const Element* const* keys, const Element* const* next_keys, int64_t head_dim,
                  int64_t pitch, float (*scores)[STRIDE]) {
  vf totals[ROWS][KEY_VECTORS] = {};
  for (int64_t d = 0; d < head_dim; d++) {
    vf key[KEY_VECTORS];
    for (int i = 0; i < KEY_VECTORS; i++) {
      key[i] = load(keys[i] + d * pitch);
      prefetch(next_keys[i] + d * pitch);
    }
    for (int row = 0; row < ROWS; row++) {
      const vf query = splat(queries[row][d]);
      for (int i = 0; i < KEY_VECTORS; i++) totals[row][i] += query * key[i];
    }
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < KEY_VECTORS; i++) store(scores[row] + i * LANES, totals[row][i]);
}

// out[row][dims] += weights[row][key] * value[key][dims] for DIMS vectors of dimensions and keys first_key .. num_keys; the values
// at `next_values` come next. The stride is summed by itself first: beside a sum over thousands of keys, products lose digits.
template <int ROWS, int DIMS, typename Element>
inline void add_values(const float (*weights)[STRIDE], const Element* const* values, const Element* const* next_values, int first_key,
                       int num_keys, int64_t at, float (*out)[MAX_HEAD_DIM]) {
  vf totals[ROWS][DIMS] = {};
  for (int key = first_key; key < num_keys; key++) {
    vf value[DIMS];
    for (int i = 0; i < DIMS; i++) {
      value[i] = load(values[key] + at + i * LANES);
      if (i * LANES * sizeof(Element) % 64 == 0) prefetch(next_values[key] + at + i * LANES);
    }
    for (int row = 0; row < ROWS; row++) {
      const vf weight = splat(weights[row][key]);
      for (int i = 0; i < DIMS; i++) totals[row][i] += weight * value[i];
    }
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < DIMS; i++) {
      float* to = out[row] + at + i * LANES;
      store(to, load(to) + totals[row][i]);
    }
}

// Blocks that are no multiple of LANES: LANES keys from `begin`, as if they lay in such a block.
template <typename Element>
inline void gather_keys(const Heads& heads, const Element* cache, const Sequence& sequence, int64_t kv_head, int64_t begin,
                        int64_t end, float* out) {
  std::memset(out, 0, heads.head_dim * LANES * sizeof(float));
  for (int64_t key = begin; key < end && key < begin + LANES; key++) {
    const Element* page = cache + sequence.pages[key / heads.block_size] * heads.page_stride;
    const Element* from = page + heads.key_at(kv_head) + key % heads.block_size;
    for (int64_t d = 0; d < heads.head_dim; d++) out[d * LANES + key - begin] = to_float(from[d * heads.block_size]);
  }
}

// A tile's rows under one KV head: the softmax so far.
template <int ROWS>
struct Running {
  const float* queries[ROWS];
  alignas(64) float totals[ROWS][MAX_HEAD_DIM];
  float tops[ROWS];
  vf sums[ROWS];
};

// Which keys a row sees: hidden .. seen.
template <int ROWS>
struct Sight {
  int64_t seen[ROWS], hidden[ROWS];
};

// Turn the scores of a stride into weights, and take what the rows have so far to the new largest score.
template <int ROWS>
inline void weigh(const Sight<ROWS>& sight, int64_t begin, int64_t head_dim, float scale, float (*scores)[STRIDE], Running<ROWS>& state) {
  const float nothing = -std::numeric_limits<float>::infinity();
  vf lanes;
  for (int lane = 0; lane < LANES; lane++) lanes[lane] = static_cast<float>(lane);
  for (int row = 0; row < ROWS; row++) {
    if (sight.seen[row] <= begin || sight.hidden[row] >= begin + STRIDE) {  // all of the stride is hidden from this row
      std::memset(scores[row], 0, sizeof scores[row]);
      continue;
    }
    vf top = splat(state.tops[row]);
    for (int i = 0; i < KEY_VECTORS; i++) {
      vf value = load(scores[row] + i * LANES) * scale;
      const vf position = lanes + static_cast<float>(begin + i * LANES);
      value = position < static_cast<float>(sight.seen[row]) ? value : splat(nothing);
      value = position >= static_cast<float>(sight.hidden[row]) ? value : splat(nothing);
      // A score that is no number stays one and reaches the output.
      top = value > top || value != value ? value : top;
      store(scores[row] + i * LANES, value);
    }
    const float new_top = largest(top);
    if (new_top != state.tops[row]) {
      const float shrink = std::exp(state.tops[row] - new_top);
      state.sums[row] *= shrink;
      for (int64_t d = 0; d < head_dim; d += LANES) store(state.totals[row] + d, load(state.totals[row] + d) * shrink);
      state.tops[row] = new_top;
    }
    for (int i = 0; i < KEY_VECTORS; i++) {
      const vf weight = exponential(load(scores[row] + i * LANES) - new_top);
      state.sums[row] += weight;
      store(scores[row] + i * LANES, weight);
    }
  }
}

// Take a tile's rows over the keys begin .. end, at most STRIDE of them, of one KV head.
template <int ROWS, typename Element>
inline void attend_stride(const Heads& heads, const Element* cache, const Sequence& sequence, int64_t kv_head,
                          const Sight<ROWS>& sight, int64_t begin, int64_t end, const AheadKeys& ahead, Running<ROWS>& state) {
  const int64_t size = heads.head_dim, block_size = heads.block_size;
  const auto key_of = [&](const Sequence& its, int64_t head, int64_t key) {
    return cache + its.pages[key / block_size] * heads.page_stride + heads.key_at(head) + key % block_size;
  };
  // Pointers to the values of keys from .. to, a division a page.
  const auto find_values = [&](const Sequence& its, int64_t head, int64_t from, int64_t to, const Element** found) {
    for (int64_t key = from; key < to;) {
      const Element* page = cache + its.pages[key / block_size] * heads.page_stride + heads.value_at(head);
      for (int64_t slot = key % block_size; slot < block_size && key < to; slot++, key++) *found++ = page + slot * size;
    }
  };
  alignas(64) float scores[ROWS][STRIDE];
  if (block_size % LANES == 0) {
    const Element *keys[KEY_VECTORS], *next_keys[KEY_VECTORS];
    for (int i = 0; i < KEY_VECTORS; i++) {
      // Vectors behind the end are read from the last page that there is, and masked.
      const int64_t key = begin + i * LANES, next = ahead.begin + i * LANES;
      keys[i] = key_of(sequence, kv_head, key < end ? key : begin);
      next_keys[i] = next < ahead.end ? key_of(*ahead.sequence, ahead.kv_head, next) : keys[i];
    }
    score<ROWS>(state.queries, keys, next_keys, size, block_size, scores);
  } else {
    alignas(64) float gathered[KEY_VECTORS][MAX_HEAD_DIM * LANES];
    const float* keys[KEY_VECTORS];
    for (int i = 0; i < KEY_VECTORS; i++) {
      gather_keys(heads, cache, sequence, kv_head, begin + i * LANES, end, gathered[i]);
      keys[i] = gathered[i];
    }
    score<ROWS>(state.queries, keys, keys, size, LANES, scores);
  }
  weigh<ROWS>(sight, begin, size, 1.0f / std::sqrt(static_cast<float>(size)), scores, state);
  const Element *values[STRIDE], *next_values[STRIDE];
  const int num_keys = static_cast<int>(end - begin);
  const int first_key = static_cast<int>(sight.hidden[0] > begin ? sight.hidden[0] - begin : 0);
  const int num_next = static_cast<int>(std::min<int64_t>(ahead.end - ahead.begin, num_keys));
  find_values(sequence, kv_head, begin, end, values);
  find_values(*ahead.sequence, ahead.kv_head, ahead.begin, ahead.begin + num_next, next_values);
  for (int key = num_next; key < num_keys; key++) next_values[key] = values[key];
  int64_t d = 0;
  for (; d + 4 * LANES <= size; d += 4 * LANES)
    add_values<ROWS, 4>(scores, values, next_values, first_key, num_keys, d, state.totals);
  for (; d < size; d += LANES) add_values<ROWS, 1>(scores, values, next_values, first_key, num_keys, d, state.totals);
}

template <int ROWS, typename Element>
inline void attend_rows(const Heads& heads, const Element* cache, const Sequence& sequence, const Tile& tile, const AheadKeys& following,
                        const float* queries, int64_t query_stride, float* output, int64_t output_stride) {
  const int64_t group = heads.group(), size = heads.head_dim;
  const auto token_of = [&](int row) { return (tile.first + row) / group; };
  const auto head_of = [&](int kv_head, int row) { return (tile.kv_head + kv_head) * group + (tile.first + row) % group; };
  Sight<ROWS> sight;
  for (int row = 0; row < ROWS; row++) {
    sight.seen[row] = sequence.num_computed + token_of(row) + 1;
    sight.hidden[row] = heads.window && sight.seen[row] > heads.window ? sight.seen[row] - heads.window : 0;
  }
  Running<ROWS> states[MAX_HEADS_TOGETHER];
  for (int h = 0; h < tile.num_kv_heads; h++)
    for (int row = 0; row < ROWS; row++) {
      states[h].queries[row] = queries + (sequence.first_token + token_of(row)) * query_stride + head_of(h, row) * size;
      states[h].tops[row] = -std::numeric_limits<float>::infinity();
      states[h].sums[row] = vf{};
      std::memset(states[h].totals[row], 0, size * sizeof(float));
    }
  const int64_t last = sight.seen[ROWS - 1];
  for (int64_t begin = sight.hidden[0] / STRIDE * STRIDE; begin < last; begin += STRIDE) {
    const int64_t end = begin + STRIDE < last ? begin + STRIDE : last;
    for (int h = 0; h < tile.num_kv_heads; h++) {
      AheadKeys ahead = end < last ? AheadKeys{&sequence, tile.kv_head, end, last} : following;
      ahead.kv_head = std::min(ahead.kv_head + h, heads.num_kv_heads - 1);
      attend_stride<ROWS>(heads, cache, sequence, tile.kv_head + h, sight, begin, end, ahead, states[h]);
    }
  }
  for (int h = 0; h < tile.num_kv_heads; h++)
    for (int row = 0; row < ROWS; row++) {
      float* out = output + (sequence.first_token + token_of(row)) * output_stride + head_of(h, row) * size;
      const float inverse = 1.0f / sum(states[h].sums[row]);
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
