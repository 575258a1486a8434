// Products of numbers in fixed point, with sums in float32: FIXED_BLOCK columns share a unit, and each number is a 16-bit
// multiple of it. Two such products take one instruction (VNNI), in the time of one product of floats.
//
// A block has the smallest unit with which each number fits 16 bits and the squares of all sum to less than 2^31. Then no sum
// of products of two blocks overflows (Cauchy-Schwarz inequality), so sums within a block are exact. The rounding error of a
// number is about 2^-15 of the root mean square of its block. Blocks are added in float32, in order, whatever the number of
// activations.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>

#include "matmul_float.h"

namespace tetrad {

constexpr int64_t FIXED_BLOCK = Matrix::FIXED_BLOCK;
constexpr float FIXED_NORM = 46332.0f;  // the square root of 2^31, minus a margin for rounding

// Whether products in fixed point are faster than products of floats. Without VNNI, two of them take two instructions.
#if defined(TETRAD_AVX512)
constexpr bool HAS_FIXED_PRODUCTS = true;
#else
constexpr bool HAS_FIXED_PRODUCTS = false;
#endif

// Return the bytes of a row of activations in fixed point: the numbers of all blocks, then the blocks' units.
inline int64_t fixed_bytes(int64_t columns) {
  return Matrix::padded_fixed(columns) * 2 + (Matrix::padded_fixed(columns) / FIXED_BLOCK * 4 + 63) / 64 * 64;
}

// Round a block of numbers to multiples of a unit, and return the unit. With a number that is not finite, the unit is not a
// number, and so are the block's products.
inline float fix_block(const float* x, int16_t* out) {
  constexpr int64_t PARTS = FIXED_BLOCK / LANES;
  vf squares = {}, tops = {};
  for (int64_t i = 0; i < PARTS; i++) {
    const vf value = load(x + i * LANES);
    squares += value * value;
    tops = larger(absolute(value), tops);
  }
  const float norm = std::sqrt(sum(squares)), top = largest(tops);
  // A block of numbers near the smallest floats counts as 0; a block whose squares overflow counts as not finite.
  const bool is_usual = norm > 1e-18f && norm <= std::numeric_limits<float>::max();
  const float unit = is_usual ? std::max(norm / FIXED_NORM, top / MAX_INT16) : norm * 0.0f;
  const float inverse = is_usual ? 1.0f / unit : 0.0f;
  for (int64_t i = 0; i < PARTS; i++) store(out + i * LANES, is_usual ? nearest(load(x + i * LANES) * inverse) : vi{});
  return unit;
}

// Convert a row of activations to fixed point. Columns after the last one are 0.
inline void fix_row(const float* x, int64_t columns, uint8_t* out) {
  const int64_t padded = Matrix::padded_fixed(columns);
  auto* numbers = reinterpret_cast<int16_t*>(out);
  auto* units = reinterpret_cast<float*>(out + 2 * padded);
  int64_t k = 0;
  for (; k + FIXED_BLOCK <= columns; k += FIXED_BLOCK) *units++ = fix_block(x + k, numbers + k);
  if (k == columns) return;
  float rest[FIXED_BLOCK] = {};
  std::copy(x + k, x + columns, rest);
  *units = fix_block(rest, numbers + k);
}

// Pack a panel of weights. Each block has the units of the panel's rows, then its columns in pairs: a pair of every row, row by
// row.
inline void pack_fixed_panel(const Matrix& matrix, const float* weights, int64_t panel) {
  uint8_t* out = matrix.data + panel * matrix.panel_bytes();
  for (int64_t k = 0; k < matrix.columns; k += FIXED_BLOCK, out += Matrix::fixed_block_bytes(PANEL)) {
    auto* units = reinterpret_cast<float*>(out);
    auto* numbers = reinterpret_cast<int16_t*>(out + PANEL * sizeof(float));
    for (int place = 0; place < PANEL; place++) {
      const int64_t n = matrix.row_of(panel, place);
      if (n < 0) continue;
      float values[FIXED_BLOCK] = {};
      int16_t fixed[FIXED_BLOCK];
      const float* row = weights + n * matrix.columns + k;
      std::copy(row, row + std::min(FIXED_BLOCK, matrix.columns - k), values);
      units[place] = fix_block(values, fixed);
      for (int64_t i = 0; i < FIXED_BLOCK; i++) numbers[i / 2 * 2 * PANEL + 2 * place + i % 2] = fixed[i];
    }
  }
}

inline vp load_numbers(const int16_t* at) {
  vp result;
  std::memcpy(&result, at, sizeof result);
  return result;
}

// x: M rows of fixed_bytes; out [M][PANEL].
template <int M>
inline void multiply_fixed_rows(const uint8_t* x, int64_t columns, const uint8_t* panel, float* out) {
  const int64_t row_bytes = fixed_bytes(columns), padded = Matrix::padded_fixed(columns);
  std::fill_n(out, M * PANEL, 0.0f);
  for (int64_t k = 0; k < padded; k += FIXED_BLOCK) {
    const auto* units = reinterpret_cast<const float*>(panel);
    const auto* weights = reinterpret_cast<const int16_t*>(panel + PANEL * sizeof(float));
    panel += Matrix::fixed_block_bytes(PANEL);
    vi low[M] = {}, high[M] = {};
    for (int64_t i = 0; i < FIXED_BLOCK; i += 2, weights += 2 * PANEL) {
      const vp w_low = load_numbers(weights), w_high = load_numbers(weights + PANEL);
      for (int row = 0; row < M; row++) {
        const vp value = splat_pair(reinterpret_cast<const int16_t*>(x + row * row_bytes) + k + i);
        low[row] = add_products(low[row], value, w_low);
        high[row] = add_products(high[row], value, w_high);
      }
    }
    const vf low_units = load(units), high_units = load(units + LANES);
    for (int row = 0; row < M; row++) {
      const float unit = reinterpret_cast<const float*>(x + row * row_bytes + 2 * padded)[k / FIXED_BLOCK];
      float* to = out + row * PANEL;
      // Always a multiply-add, also for the first block: a product that is stored directly would be rounded once more, but only
      // with some numbers of rows.
      store(to, load(to) + to_float(low[row]) * (low_units * unit));
      store(to + LANES, load(to + LANES) + to_float(high[row]) * (high_units * unit));
    }
  }
}

inline void multiply_fixed_panel(int rows, const uint8_t* x, int64_t columns, const uint8_t* panel, float* out) {
  switch (rows) {
    case 1: return multiply_fixed_rows<1>(x, columns, panel, out);
    case 2: return multiply_fixed_rows<2>(x, columns, panel, out);
    case 3: return multiply_fixed_rows<3>(x, columns, panel, out);
    case 4: return multiply_fixed_rows<4>(x, columns, panel, out);
    case 5: return multiply_fixed_rows<5>(x, columns, panel, out);
    case 6: return multiply_fixed_rows<6>(x, columns, panel, out);
#if defined(TETRAD_AVX512)
    case 7: return multiply_fixed_rows<7>(x, columns, panel, out);
    case 8: return multiply_fixed_rows<8>(x, columns, panel, out);
#endif
  }
}

}  // namespace tetrad
