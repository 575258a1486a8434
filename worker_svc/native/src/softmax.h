// The running softmax of Milakov and Gimelshein (2018), as FlashAttention has it, over a stride of keys at a time.
//
// What a row may not see has weight 0, whatever its score.
#pragma once
#include <cmath>
#include <limits>

#include "fetch.h"
#include "kv_pages.h"

namespace tetrad {

constexpr int KEY_VECTORS = 4;
constexpr int STRIDE = KEY_VECTORS * LANES;

// A tile's rows under one KV head: the softmax so far.
template <int ROWS>
struct Running {
  alignas(64) float totals[ROWS][MAX_HEAD_DIM];
  float tops[ROWS];
  vf sums[ROWS];
};

// Which keys a row sees: hidden .. seen.
template <int ROWS>
struct Sight {
  int64_t seen[ROWS], hidden[ROWS];

  bool sees_none(int row, int64_t begin) const { return seen[row] <= begin || hidden[row] >= begin + STRIDE; }
  bool sees_all(int row, int64_t begin) const { return seen[row] >= begin + STRIDE && hidden[row] <= begin; }

  // `value` for those of LANES keys from `key` on that the row sees, `other` for the rest.
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

// Turn the scores of a stride into weights, and take what the rows have so far to the new largest score. A score that is no
// number becomes a weight that is none, and reaches the output. `relative_tops` are the rows' largest scores in this stride against
// their largest so far: 0 or less.
template <int ROWS>
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
