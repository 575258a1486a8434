// Operations on single rows: norms, rotation, activations of the MLP, the largest output.
#pragma once
#include <limits>

#include "vec.h"

namespace tetrad {

// out += scale * x.
inline void add_row(const float* x, int64_t size, float scale, float* out) {
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) store(out + i, load(out + i) + scale * load(x + i));
  for (; i < size; i++) out[i] += scale * x[i];
}

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

// out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias; a bias of null adds nothing. out may be x.
inline void layer_norm_row(const float* x, const float* weight, const float* bias, int64_t size, float eps, float* out) {
  vf values = {};
  float rest = 0;
  int64_t i = 0;
  for (; i + LANES <= size; i += LANES) values += load(x + i);
  for (int64_t j = i; j < size; j++) rest += x[j];
  const float mean = (sum(values) + rest) / static_cast<float>(size);
  vf squares = {};
  rest = 0;
  for (i = 0; i + LANES <= size; i += LANES) {
    const vf value = load(x + i) - mean;
    squares += value * value;
  }
  for (int64_t j = i; j < size; j++) rest += (x[j] - mean) * (x[j] - mean);
  const float scale = 1.0f / __builtin_sqrtf((sum(squares) + rest) / static_cast<float>(size) + eps);
  for (i = 0; i < size; i++) {
    const float value = (x[i] - mean) * scale * weight[i];
    out[i] = bias ? value + bias[i] : value;
  }
}

// x = min(max(x, -bound), bound); a value that is not a number stays one.
inline void bound_row(float* x, int64_t size, float bound) {
  for (int64_t i = 0; i < size; i++) x[i] = x[i] > bound ? bound : x[i] < -bound ? -bound : x[i];
}

// Rotate one head in place: dimensions i and i + half are a pair that rotates by angle i, as in Hugging Face's layout.
// Dimensions after the pairs do not change.
inline void rotate_head(float* head, const float* cosines, const float* sines, int64_t half) {
  for (int64_t i = 0; i < half; i++) {
    const float first = head[i], second = head[i + half];
    head[i] = first * cosines[i] - second * sines[i];
    head[i + half] = second * cosines[i] + first * sines[i];
  }
}

// The activation of an MLP, numbered as in structures.py.
enum Activation : int32_t { SILU = 0, GELU = 1, GELU_TANH = 2, RELU = 3, RELU_SQUARED = 4 };

template <int32_t KIND>
inline vf activated(vf x) {
  if constexpr (KIND == SILU) return x / (1.0f + exponential(-x));
  if constexpr (KIND == GELU_TANH) {  // (1 + tanh(u)) / 2 = 1 / (1 + e^-2u)
    const vf u = (x + x * x * x * 0.044715f) * 0.7978845608028654f;
    return x / (1.0f + exponential(u * -2.0f));
  }
  if constexpr (KIND == GELU) {  // erfc by Abramowitz and Stegun 7.1.26: within 1.5e-7
    const vf z = (x < 0.0f ? -x : x) * 0.7071067811865476f;
    const vf t = 1.0f / (1.0f + z * 0.3275911f);
    const vf series = ((((t * 1.061405429f - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    const vf tail = series * exponential(-z * z);
    return x * 0.5f * (x < 0.0f ? tail : 2.0f - tail);
  }
  const vf positive = x < 0.0f ? vf{} : x;
  return KIND == RELU ? positive : positive * positive;
}

// out = activation(x) * up, or activation(x) if `up` is null. `size` is a multiple of LANES.
template <int32_t KIND>
inline void activate(const float* x, const float* up, int64_t size, float* out) {
  for (int64_t i = 0; i < size; i += LANES) {
    const vf value = activated<KIND>(load(x + i));
    store(out + i, up ? value * load(up + i) : value);
  }
}

inline void activate_row(int32_t kind, const float* x, const float* up, int64_t size, float* out) {
  switch (kind) {
    case SILU: return activate<SILU>(x, up, size, out);
    case GELU: return activate<GELU>(x, up, size, out);
    case GELU_TANH: return activate<GELU_TANH>(x, up, size, out);
    case RELU: return activate<RELU>(x, up, size, out);
    case RELU_SQUARED: return activate<RELU_SQUARED>(x, up, size, out);
  }
}

// out = (min(max(up, -bound), bound) + 1) * g * sigmoid(1.702 g) with g = min(gate, bound): gpt-oss's activation.
inline void activate_clamped_row(const float* gate, const float* up, int64_t size, float bound, float* out) {
  for (int64_t i = 0; i < size; i += LANES) {
    vf g = load(gate + i), u = load(up + i);
    g = g > bound ? splat(bound) : g;
    u = u > bound ? splat(bound) : u;
    u = u < -bound ? splat(-bound) : u;
    store(out + i, (u + 1.0f) * g / (1.0f + exponential(g * -1.702f)));
  }
}

// The largest output of a row, lane by lane, with its index. NaN counts as larger than all numbers; of equal outputs the first
// one is kept. The maximum across the lanes is computed once, at the end, because it takes longer than a panel of few columns.
struct Top {
  vf value;
  vi index;

  // Return the state before the first output, whose index will be `first`.
  static Top from(int64_t first) {
    return {splat(-std::numeric_limits<float>::infinity()), splat_int(static_cast<int32_t>(first)) + lane_numbers()};
  }

  // Process `count` outputs, which start at index `first`. Memory after them may be read, up to a full vector.
  void take(const float* outputs, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) {
      const vi is_output = lane_numbers() < splat_int(static_cast<int32_t>(count - i));
      const vf next = load(outputs + i);
      const vi is_larger = ~(next <= value) & (value == value) & is_output;
      value = is_larger ? next : value;
      index = is_larger ? splat_int(static_cast<int32_t>(first + i)) + lane_numbers() : index;
    }
  }

  // Find the largest output of all lanes and its lowest index.
  void find(float* its_value, int32_t* its_index) const {
    const vi odd = value != value;
    const bool is_odd = any(odd);
    *its_value = is_odd ? std::numeric_limits<float>::quiet_NaN() : largest(value);
    const vi is_it = is_odd ? odd : value == splat(*its_value);
    *its_index = smallest(is_it ? index : splat_int(std::numeric_limits<int32_t>::max()));
  }
};

}  // namespace tetrad
