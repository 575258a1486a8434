// Attention within packed prompts: a token attends to all tokens of its prompt, or to those within a window. There is no KV
// cache: queries, keys and values stand side by side in rows [q | k | v].
//
// A work item is one head of one prompt: its keys and values are packed like weights, and matmul_float.h computes the products.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "matmul_float.h"

namespace tetrad {

// One head of one prompt: `rows` [length][stride]; its query, key and value begin at the given columns.
struct PackedHead {
  const float* rows;
  int64_t stride, length, head_dim;
  int64_t query_at, key_at, value_at;
  int64_t window;  // distance of attention to both sides, in tokens; 0: unlimited
};

// A thread's workspace; it grows to the longest prompt.
struct PackedWorkspace {
  std::vector<float> keys, values, scores;
};

// Write LANES keys from `first` on, scaled, to columns of their panel. Keys after the last one are 0.
inline void pack_keys(const PackedHead& head, int64_t first, float scale, float* panel) {
  const int64_t dim = head.head_dim, count = std::min<int64_t>(LANES, head.length - first);
  const float* from = head.rows + first * head.stride + head.key_at;
  int64_t d = 0;
  for (; d + LANES <= dim; d += LANES) {
    vf keys[LANES];
    for (int64_t key = 0; key < LANES; key++) keys[key] = key < count ? load(from + key * head.stride + d) * scale : vf{};
    transpose(keys);
    for (int64_t i = 0; i < LANES; i++) store(panel + (d + i) * PANEL, keys[i]);
  }
  for (; d < dim; d++)
    for (int64_t key = 0; key < LANES; key++) panel[d * PANEL + key] = key < count ? from[key * head.stride + d] * scale : 0.0f;
}

// Pack all keys and values of a head into the panels of the workspace.
inline void pack_head(const PackedHead& head, int64_t key_panels, int64_t value_panels, PackedWorkspace& space) {
  const int64_t length = head.length, dim = head.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  space.keys.resize(key_panels * dim * PANEL);
  space.values.resize(value_panels * length * PANEL);
  for (int64_t first = 0; first < key_panels * PANEL; first += LANES)
    pack_keys(head, first, scale, space.keys.data() + first / PANEL * dim * PANEL + first % PANEL);
  for (int64_t panel = 0; panel < value_panels; panel++) {
    const int64_t dims = std::min<int64_t>(PANEL, dim - panel * PANEL);
    const float* from = head.rows + head.value_at + panel * PANEL;
    float* to = space.values.data() + panel * length * PANEL;
    for (int64_t key = 0; key < length; key++, from += head.stride, to += PANEL) {
      copy_row(from, dims, to);
      std::fill(to + dims, to + PANEL, 0.0f);
    }
  }
}

// Replace a row of scores by softmax weights that are not normalized, and return their sum. Scores outside of `begin` .. `end`,
// up to `padded`, get the weight 0.
inline float softmax_row(float* scores, int64_t begin, int64_t end, int64_t padded) {
  for (int64_t k = 0; k < begin; k++) scores[k] = -std::numeric_limits<float>::infinity();
  for (int64_t k = end; k < padded; k++) scores[k] = -std::numeric_limits<float>::infinity();
  vf top = splat(-std::numeric_limits<float>::infinity());
  for (int64_t k = 0; k < padded; k += LANES) top = larger(top, load(scores + k));
  const vf highest = splat(largest(top));
  vf total = {};
  for (int64_t k = 0; k < padded; k += LANES) {
    const vf weight = exponential(load(scores + k) - highest);
    store(scores + k, weight);
    total += weight;
  }
  return sum(total);
}

// Compute the attention of a head; the output of a token starts at out[token * out_stride].
inline void attend_head(const PackedHead& head, PackedWorkspace& space, float* out, int64_t out_stride) {
  const int64_t length = head.length, dim = head.head_dim;
  const int64_t key_panels = (length + PANEL - 1) / PANEL, value_panels = (dim + PANEL - 1) / PANEL, padded = key_panels * PANEL;
  pack_head(head, key_panels, value_panels, space);
  space.scores.resize(MAX_ROWS * padded);
  alignas(64) float products[MAX_ROWS * PANEL];
  for (int64_t token = 0; token < length; token += MAX_ROWS) {
    const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, length - token));
    // Skip panels of keys that none of these rows attends to.
    const int64_t first = head.window ? std::max<int64_t>(0, token - head.window) / PANEL : 0;
    const int64_t last = head.window ? std::min(length, token + rows + head.window) : length;
    for (int64_t panel = first; panel * PANEL < last; panel++) {
      const float* keys = space.keys.data() + panel * dim * PANEL;
      multiply_panel<float>(rows, head.rows + token * head.stride + head.query_at, head.stride, keys, dim, products,
                            Ahead<float>{keys, 0});
      for (int row = 0; row < rows; row++)
        copy_row(products + row * PANEL, PANEL, space.scores.data() + row * padded + panel * PANEL);
    }
    const int64_t from = first * PANEL, width = (last + PANEL - 1) / PANEL * PANEL - from;
    float totals[MAX_ROWS];
    for (int row = 0; row < rows; row++) {
      const int64_t seen = head.window ? std::max<int64_t>(0, token + row - head.window) : 0;
      const int64_t end = head.window ? std::min(length, token + row + head.window + 1) : length;
      totals[row] = softmax_row(space.scores.data() + row * padded + from, seen - from, end - from, width);
    }
    const int64_t count = std::min(length, from + width) - from;
    for (int64_t panel = 0; panel < value_panels; panel++) {
      const float* values = space.values.data() + (panel * length + from) * PANEL;
      multiply_panel<float>(rows, space.scores.data() + from, padded, values, count, products, Ahead<float>{values, 0});
      const int64_t dims = std::min<int64_t>(PANEL, dim - panel * PANEL);
      for (int row = 0; row < rows; row++) {
        float* weighted = products + row * PANEL;
        for (int64_t d = 0; d < PANEL; d += LANES) store(weighted + d, load(weighted + d) / totals[row]);
        copy_row(weighted, dims, out + (token + row) * out_stride + panel * PANEL);
      }
    }
  }
}

}  // namespace tetrad
