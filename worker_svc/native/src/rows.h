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

// The largest of a row's outputs, lane by lane, and which output each is. What is no number counts as larger than all; the first
// of equal ones stays. Across the lanes it is looked for once, at the end: that takes longer than a panel of few columns does.
struct Top {
  vf value;
  vi index;

  // Of none; `first` is the index of the first one to come.
  static Top from(int64_t first) {
    return {splat(-std::numeric_limits<float>::infinity()), splat_int(static_cast<int32_t>(first)) + lane_numbers()};
  }

  // Take `count` outputs, from index `first` on. Lanes behind them may be read, up to a full vector.
  void take(const float* outputs, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
      const vi is_output = lane_numbers() < splat_int(static_cast<int32_t>(count - i));
      const vf next = load(outputs + i);
      const vi is_larger = ~(next <= value) & (value == value) & is_output;
      value = is_larger ? next : value;
      index = is_larger ? splat_int(static_cast<int32_t>(first + i)) + lane_numbers() : index;
    }
  }

  // The largest of all, and the lowest index that it has.
  void find(float* its_value, int32_t* its_index) const {
    const vi odd = value != value;
    const bool is_odd = any(odd);
    *its_value = is_odd ? std::numeric_limits<float>::quiet_NaN() : largest(value);
    const vi is_it = is_odd ? odd : value == splat(*its_value);
    *its_index = smallest(is_it ? index : splat_int(std::numeric_limits<int32_t>::max()));
  }
};

}  // namespace tetrad
