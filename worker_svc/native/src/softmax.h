// The running softmax of Milakov and Gimelshein (2018), as in FlashAttention, computed for one stride of keys at a time.
//
// A key that a row may not attend to gets weight 0, whatever its score.
#pragma once
#include <cmath>
#include <limits>

#include "fetch.h"
#include "kv_pages.h"

namespace tetrad {

constexpr int KEY_VECTORS = 4;
constexpr int STRIDE = KEY_VECTORS * LANES;

// The running softmax of a tile's rows under one KV head: weighted sums of values, largest scores, and sums of weights; and the
// slopes of the rows' heads, if these have linear biases.
template <int ROWS>
struct Running {
  alignas(64) float totals[ROWS][MAX_HEAD_DIM];
  float tops[ROWS], slopes[ROWS];
  vf sums[ROWS];
};

// The keys that each row attends to ("sees"): hidden .. seen.
template <int ROWS>
struct Sight {
  int64_t seen[ROWS], hidden[ROWS];

  bool sees_none(int row, int64_t begin) const { return seen[row] <= begin || hidden[row] >= begin + STRIDE; }
  bool sees_all(int row, int64_t begin) const { return seen[row] >= begin + STRIDE && hidden[row] <= begin; }

  // Return the positions of LANES keys from `key` on, minus that of the row's token, which attends to no later one. They are
  // exact, so a linear bias depends on nothing else.
  vf distances(int row, int64_t key) const {
    vf lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = static_cast<float>(lane);
    return lanes + static_cast<float>(key + 1 - seen[row]);
  }

  // Of LANES keys from `key` on, return `value` for the keys that the row sees, and `other` for the rest.
  vf seen_of(int row, int64_t key, vf value, float other) const {
    vf lanes;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = static_cast<float>(lane);
    const vf position = lanes + static_cast<float>(key);
    value = position < static_cast<float>(seen[row]) ? value : splat(other);
    return position >= static_cast<float>(hidden[row]) ? value : splat(other);
  }
};

// cap * tanh(score / cap).
inline vf capped(vf score, float cap) { return cap - 2.0f * cap / (1.0f + exponential(score * (2.0f / cap))); }

// Replace the scores of a stride by weights, and rescale the rows' sums to the new largest score. A score that is not a number
// gives a weight that is not a number, which reaches the output. Sets `relative_tops`, per row the largest score of this stride
// minus the largest score so far: 0 or less. IS_BIASED: whether heads have linear biases.
template <int ROWS, bool IS_BIASED>
inline void weigh(const Sight<ROWS>& sight, int64_t begin, const Heads& heads, float (*scores)[STRIDE], Running<ROWS>& state,
                  float* relative_tops, Fetch& fetch) {
  const int64_t head_dim = heads.head_dim;
  const float scale = heads.score_scale(), softcap = heads.softcap;
  constexpr float NOTHING = -std::numeric_limits<float>::infinity();
  for (int row = 0; row < ROWS; row++) {
    if (sight.sees_none(row, begin)) {
      std::memset(scores[row], 0, sizeof scores[row]);
      relative_tops[row] = NOTHING;
      continue;
    }
    const bool sees_all = sight.sees_all(row, begin);
    vf values[KEY_VECTORS], top = splat(NOTHING);
    for (int i = 0; i < KEY_VECTORS; i++) {
      values[i] = load(scores[row] + i * LANES) * scale;
      if (softcap != 0.0f) values[i] = capped(values[i], softcap);
      if constexpr (IS_BIASED) values[i] += sight.distances(row, begin + i * LANES) * state.slopes[row];
      if (!sees_all) values[i] = sight.seen_of(row, begin + i * LANES, values[i], NOTHING);
      top = larger(values[i], top);
      fetch.some();
    }
    const float its_top = largest(top), new_top = its_top > state.tops[row] ? its_top : state.tops[row];
    if (new_top != state.tops[row]) {
      const float shrink = std::exp(state.tops[row] - new_top);
      state.sums[row] *= shrink;
      for (int64_t d = 0; d < head_dim; d += LANES) store(state.totals[row] + d, load(state.totals[row] + d) * shrink);
      state.tops[row] = new_top;
    }
    for (int i = 0; i < KEY_VECTORS; i++) {
      const vf weight = exponential(values[i] - new_top);
      state.sums[row] += weight;
      fetch.some();
      store(scores[row] + i * LANES, weight);
    }
    relative_tops[row] = its_top - new_top;
  }
}

}  // namespace tetrad
