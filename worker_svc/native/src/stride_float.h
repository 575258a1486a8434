// Attention to one stride whose keys and values are floats, of 32 or 16 bits.
#pragma once
#include "stride.h"

namespace tetrad {

// Compute scores[row][key] for KEY_VECTORS vectors of keys; `keys` has a pointer to each vector, and dimensions are `pitch`
// elements apart.
template <int ROWS, typename Element>
inline void score(const float* const* queries, const Element* const* keys, int64_t head_dim, int64_t pitch, Fetch& fetch,
                  float (*scores)[STRIDE]) {
  vf totals[ROWS][KEY_VECTORS] = {};
  for (int64_t d = 0; d < head_dim; d++) {
    vf key[KEY_VECTORS];
    for (int i = 0; i < KEY_VECTORS; i++) key[i] = load(keys[i] + d * pitch);
    fetch.some();
    for (int row = 0; row < ROWS; row++) {
      const vf query = splat(queries[row][d]);
      for (int i = 0; i < KEY_VECTORS; i++) totals[row][i] += query * key[i];
    }
  }
  for (int row = 0; row < ROWS; row++)
    for (int i = 0; i < KEY_VECTORS; i++) store(scores[row] + i * LANES, totals[row][i]);
}

// out[row][dims] += weights[row][key] * value[key][dims] for DIMS vectors of dimensions and keys first_key .. num_keys. The
// stride is summed separately first: added directly to a sum over thousands of keys, products would lose digits.
template <int ROWS, int DIMS, typename Element>
inline void add_values(const float (*weights)[STRIDE], const Element* const* values, int first_key, int num_keys, int64_t head_dim,
                       int64_t at, Fetch& fetch, float (*out)[MAX_HEAD_DIM]) {
  vf totals[ROWS][DIMS] = {};
  for (int key = first_key; key < num_keys; key++) {
    const Element* its_value = values[key / LANES] + key % LANES * head_dim + at;
    vf value[DIMS];
    for (int i = 0; i < DIMS; i++) value[i] = load(its_value + i * LANES);
    fetch.some();
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

template <int ROWS, typename Element>
inline void attend_stride(const Heads& heads, const Stride<Element>& stride, int64_t kv_head, const Sight<ROWS>& sight,
                          const Queries<ROWS, Element>& queries, Fetch& fetch, Running<ROWS>& state) {
  const int64_t size = heads.head_dim;
  const Element *keys[KEY_VECTORS], *values[KEY_VECTORS];
  for (int i = 0; i < KEY_VECTORS; i++) {
    const auto& group = stride.groups[i];
    keys[i] = group.page + heads.key_at(kv_head) + group.slot;
    values[i] = group.page + heads.value_at(kv_head) + group.slot * size;
  }
  alignas(64) float weights[ROWS][STRIDE];
  float relative_tops[ROWS];
  score<ROWS>(queries.rows, keys, size, heads.block_size, fetch, weights);
  heads.slopes ? weigh<ROWS, true>(sight, stride.begin, heads, weights, state, relative_tops, fetch)
               : weigh<ROWS, false>(sight, stride.begin, heads, weights, state, relative_tops, fetch);
  const int first = stride.first_key(sight.hidden[0]), count = stride.num_keys();
  int64_t d = 0;
  for (; d + 4 * LANES <= size; d += 4 * LANES) add_values<ROWS, 4>(weights, values, first, count, size, d, fetch, state.totals);
  for (; d < size; d += LANES) add_values<ROWS, 1>(weights, values, first, count, size, d, fetch, state.totals);
}

}  // namespace tetrad
