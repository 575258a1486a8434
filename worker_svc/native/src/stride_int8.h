// Attention to one stride whose keys and values have 8 bits, and one scale per 32 dimensions, as in GGUF's Q8_0. Queries and
// weights are rounded to 16 bits, so all products are exact integers; scales are applied in float32, once per block.
#pragma once
#include "stride.h"

namespace tetrad {

template <int ROWS>
struct Queries<ROWS, int8_t> {
  alignas(64) int16_t quanta[ROWS][MAX_HEAD_DIM];
  float units[ROWS];

  void take(int row, const float* query, int64_t size) {
    vf top = {};
    vi is_odd = {};
    for (int64_t d = 0; d < size; d += LANES) {
      top = larger(absolute(load(query + d)), top);
      is_odd |= not_finite(load(query + d));
    }
    const float largest_value = largest(top);
    // With a value that is not finite, the unit is not a number.
    units[row] = any(is_odd) ? NAN : largest_value / MAX_INT16;
    const float inverse = any(is_odd) || largest_value < 1e-30f ? 0.0f : MAX_INT16 / largest_value;
    for (int64_t d = 0; d < size; d += LANES) store(quanta[row] + d, nearest(inverse ? load(query + d) * inverse : vf{}));
  }
};

// Pointers to the keys or values of one KV head and to their scales, one for each vector of keys.
struct Int8Pointers {
  const int8_t* quanta[KEY_VECTORS];
  const half_t* scales[KEY_VECTORS];

  Int8Pointers(const Heads& heads, const Group<int8_t>* groups, int64_t at, int64_t step, int64_t scale_at) {
    for (int i = 0; i < KEY_VECTORS; i++) {
      quanta[i] = groups[i].page + at + groups[i].slot * step;
      scales[i] = scales_of(heads, groups[i].page) + scale_at + groups[i].slot;
    }
  }
};

// Compute scores[row][key]. Dimensions of the keys are `pitch` elements apart.
template <int ROWS>
inline void score(const Queries<ROWS, int8_t>& queries, const Int8Pointers& keys, int64_t head_dim, int64_t pitch, Fetch& fetch,
                  float (*scores)[STRIDE]) {
  for (int64_t block = 0; block * SCALED < head_dim; block++) {
    const int64_t end = (block + 1) * SCALED < head_dim ? (block + 1) * SCALED : head_dim;
    vi dots[ROWS][KEY_VECTORS] = {};
    for (int64_t d = block * SCALED; d < end; d += 2) {
      vp key[KEY_VECTORS];
      for (int i = 0; i < KEY_VECTORS; i++) key[i] = load_pairs(keys.quanta[i] + d * pitch);
      fetch.some();
      for (int row = 0; row < ROWS; row++) {
        const vp query = splat_pair(queries.quanta[row] + d);
        for (int i = 0; i < KEY_VECTORS; i++) dots[row][i] = add_products(dots[row][i], key[i], query);
      }
    }
    for (int i = 0; i < KEY_VECTORS; i++) {
      const vf scale = load(keys.scales[i] + block * pitch);
      for (int row = 0; row < ROWS; row++) {
        float* to = scores[row] + i * LANES;
        const vf so_far = block ? load(to) : vf{};
        store(to, so_far + to_float(dots[row][i]) * (scale * queries.units[row]));
      }
    }
  }
}

// Return the largest of KEY_VECTORS vectors of scales, or NaN if one is not finite.
inline float largest_scale(const vf* scales) {
  vf top = {};
  vi is_odd = {};
  for (int i = 0; i < KEY_VECTORS; i++) {
    top = larger(scales[i], top);
    is_odd |= not_finite(scales[i]);
  }
  return any(is_odd) ? NAN : largest(top);
}

// Round the products of the rows' weights and the scales of one block of values to 16 bits: multiples of one unit per row. A
// slot that was never written may hold any scale, so a row's unit depends only on the scales that the row sees.
template <int ROWS>
inline void quantize_weights(const Sight<ROWS>& sight, int64_t begin, const float (*weights)[STRIDE], const float* largest_weights,
                             const half_t* const* scales, int64_t scale_at, int16_t (*quanta)[STRIDE], float* units, Fetch& fetch) {
  vf its_scales[KEY_VECTORS];
  for (int i = 0; i < KEY_VECTORS; i++) its_scales[i] = load(scales[i] + scale_at);
  const float of_all = largest_scale(its_scales);
  for (int row = 0; row < ROWS; row++) {
    float largest_seen = of_all;
    if (!sight.sees_all(row, begin)) {
      vf seen[KEY_VECTORS];
      for (int i = 0; i < KEY_VECTORS; i++) seen[i] = sight.seen_of(row, begin + i * LANES, its_scales[i], 0.0f);
      largest_seen = largest_scale(seen);
    }
    const float bound = largest_weights[row] * largest_seen, inverse = bound > 1e-30f ? MAX_INT16 / bound : 0.0f;
    units[row] = bound / MAX_INT16;
    fetch.some();
    for (int i = 0; i < KEY_VECTORS; i++) {
      const vf weight = load(weights[row] + i * LANES);
      store(quanta[row] + i * LANES, nearest(weight == 0.0f || inverse == 0.0f ? vf{} : weight * its_scales[i] * inverse));
    }
  }
}

// out[row][dims] += quanta[row][key] * value[key][dims] * unit, for vectors of dimensions from `at` on; PARTS share a unit.
template <int ROWS, int BLOCKS, int PARTS>
inline void add_values(const int16_t (*quanta)[ROWS][STRIDE], const float (*units)[ROWS], const Int8Pointers& values, int first_key,
                       int num_keys, int64_t head_dim, int64_t at, Fetch& fetch, float (*out)[MAX_HEAD_DIM]) {
  vi totals[ROWS][BLOCKS * PARTS] = {};
  for (int key = first_key / 2 * 2; key < num_keys; key += 2) {
    const int8_t* pair = values.quanta[key / LANES] + key % LANES * head_dim + 2 * at;
    vp value[BLOCKS * PARTS];
    for (int i = 0; i < BLOCKS * PARTS; i++) value[i] = load_pairs(pair + i * 2 * LANES);
    fetch.some();
    for (int block = 0; block < BLOCKS; block++)
      for (int row = 0; row < ROWS; row++) {
        const vp weight = splat_pair(quanta[block][row] + key);
        for (int i = block * PARTS; i < (block + 1) * PARTS; i++) totals[row][i] = add_products(totals[row][i], value[i], weight);
      }
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < BLOCKS * PARTS; i++) {
      float* to = out[row] + at + i * LANES;
      store(to, load(to) + to_float(totals[row][i]) * units[i / PARTS][row]);
    }
}

template <int ROWS>
inline void attend_stride(const Heads& heads, const Stride<int8_t>& stride, int64_t kv_head, const Sight<ROWS>& sight,
                          const Queries<ROWS, int8_t>& queries, Fetch& fetch, Running<ROWS>& state) {
  const int64_t size = heads.head_dim, pitch = heads.block_size;
  const Int8Pointers keys(heads, stride.groups, heads.key_at(kv_head), 2, heads.key_scale_at(kv_head));
  const Int8Pointers values(heads, stride.groups, heads.value_at(kv_head), size, heads.value_scale_at(kv_head));
  alignas(64) float weights[ROWS][STRIDE];
  static_assert(ROWS <= LANES);
  float relative_tops[LANES] = {}, largest_weights[LANES];
  score(queries, keys, size, pitch, fetch, weights);
  heads.slopes ? weigh<ROWS, true>(sight, stride.begin, heads, weights, state, relative_tops, fetch)
               : weigh<ROWS, false>(sight, stride.begin, heads, weights, state, relative_tops, fetch);
  store(largest_weights, exponential(load(relative_tops)));
  constexpr int PARTS = SCALED / LANES, BLOCKS = LANES == 16 ? 2 : 1;  // as many totals as fit the registers
  alignas(64) int16_t quanta[BLOCKS][ROWS][STRIDE];
  float units[BLOCKS][ROWS];
  const auto quantize = [&](int64_t at, int block) {
    quantize_weights(sight, stride.begin, weights, largest_weights, values.scales, at / SCALED * pitch, quanta[block], units[block],
                     fetch);
  };
  const int first = stride.first_key(sight.hidden[0]), count = stride.num_keys();
  int64_t d = 0;
  for (; d + BLOCKS * SCALED <= size; d += BLOCKS * SCALED) {
    for (int block = 0; block < BLOCKS; block++) quantize(d + block * SCALED, block);
    add_values<ROWS, BLOCKS, PARTS>(quanta, units, values, first, count, size, d, fetch, state.totals);
  }
  for (; d < size; d += LANES) {
    quantize(d, 0);
    add_values<ROWS, 1, 1>(quanta, units, values, first, count, size, d, fetch, state.totals);
  }
}

}  // namespace tetrad
