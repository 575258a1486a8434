// Work on single rows: norms, rotation, the gate of the MLP, the largest of the outputs.
#pragma once
#include <limits>

#include "vec.h"

namespace tetrad {

// out = x / sqrt(mean(x^2) + eps) * weight. `size` is a multiple of 8; out may be x.
inline void rms_norm_row(const float* x, const float* weight, int64_t size, float eps, float* out) {
  vf squares = {};
  float rest = 0;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) {
    const vf value = load(x + i);
    squares += value * value;
  }
  for (int64_t j = i; j < size; j++) rest += x[j] * x[j];
  const float scale = 1.0f / __builtin_sqrtf((sum(squares) + rest) / static_cast<float>(size) + eps);
  for (i = 0; i + LANES <= size; i += LANES) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < size; i++) out[i] = x[i] * scale * weight[i];
}

// Rotate one head in place: dimensions i and i + half are the pair that turns by angle i, as Hugging Face keeps them; those
// behind the pairs stay.
inline void rotate_head(float* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i] + first * sines[i];
  }
}

// out = silu(gate) * up, `size` a multiple of LANES.
inline void gate_row(const float* gate, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += LANES) {
    const vf value = load(gate + i);
    store(out + i, value / (1.0f + exponential(-value)) * load(up + i));
  }
}

// Index of the largest of `count` values, the lowest of equal ones; what is no number counts as larger than all. Lanes behind
// `count` may be read, up to a full vector.
inline int64_t index_of_largest(const float* values, int64_t count) {
  vi lanes;
  for (int lane = 0; lane < LANES; lane++) lanes[lane] = lane;
  const auto value_at = [&](int64_t i) {
    return lanes < splat_int(static_cast<int32_t>(count - i)) ? load(values + i) : splat(-std::numeric_limits<float>::infinity());
  };
  vf top = value_at(0);
  vi odd = top != top;
  for (int64_t i = LANES; i < count; i += LANES) {
    const vf value = value_at(i);
    odd |= value != value;
    top = larger(value, top);
  }
  const bool is_odd = first_set(odd) < LANES;
  const vf wanted = splat(is_odd ? 0.0f : largest(top));
  for (int64_t i = 0; i < count; i += LANES) {
    const vf value = value_at(i);
    const int lane = first_set(is_odd ? value != value : value == wanted);
    if (lane < LANES) return i + lane;
  }
  return 0;
}

}  // namespace tetrad
