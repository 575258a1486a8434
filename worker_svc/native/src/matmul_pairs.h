// Products of rows of bfloat16 with a panel of bfloat16 weights, with sums in float32. One instruction multiplies two columns of
// a row (AVX512_BF16), in the time of one product of floats.
//
// A panel stores, for each pair of columns, the two weights of every row, row by row; an odd last column has a 0 beside it.
// Every output is the sum of partial sums over COLUMNS_AT_ONCE columns, added in order, whatever the number of activations.
#pragma once
#include "matmul_float.h"
#if defined(TETRAD_AVX512)
#define TETRAD_PAIRS
#include <cpuid.h>
#endif

namespace tetrad {

constexpr int64_t PAIR_BYTES = 2 * PANEL * 2;  // a pair of columns of a panel
constexpr int64_t PAIRS_AHEAD = 32;  // prefetch distance of a pass that does not prefetch the next panel

// Return the bytes of a row of activations in bfloat16, in whole cache lines.
inline int64_t pairs_bytes(int64_t columns) { return (columns + 31) / 32 * 64; }

// Pack a panel of bfloat16 weights into zeroed memory.
inline void pack_pairs_panel(const Matrix& matrix, const bfloat_t* weights, int64_t panel) {
  auto* out = reinterpret_cast<bfloat_t*>(matrix.data + panel * matrix.panel_bytes());
  for (int place = 0; place < PANEL; place++) {
    const int64_t n = matrix.row_of(panel, place);
    for (int64_t k = 0; n >= 0 && k < matrix.columns; k++)
      out[k / 2 * 2 * PANEL + 2 * place + k % 2] = weights[n * matrix.columns + k];
  }
}

inline void unpack_pairs_row(const Matrix& matrix, int64_t row, float* out) {
  const auto* panel = matrix.floats<bfloat_t>(row / PANEL) + 2 * (row % PANEL);
  for (int64_t k = 0; k < matrix.columns; k++) out[k] = to_float(panel[k / 2 * 2 * PANEL + k % 2]);
}

#if defined(TETRAD_PAIRS)

// Whether this processor multiplies pairs of bfloat16 numbers.
inline bool has_pair_products() {
  unsigned a, b, c, d;
  constexpr unsigned BFLOATS = 1u << 5;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & BFLOATS);
}

// Round a row of activations to bfloat16 (nearest, ties to even; NaN stays NaN). Columns after the last one are 0.
[[gnu::target("avx512bf16")]] inline void pair_row(const float* x, int64_t columns, uint8_t* out) {
  for (int64_t k = 0; k < columns; k += LANES, out += 2 * LANES) {
    float rest[LANES] = {};
    const bool is_whole = k + LANES <= columns;
    if (!is_whole) std::memcpy(rest, x + k, (columns - k) * sizeof(float));
    const __m256bh rounded = _mm512_cvtneps_pbh(reinterpret_cast<__m512>(load(is_whole ? x + k : rest)));
    std::memcpy(out, &rounded, sizeof rounded);
  }
}

// Multiply M rows by a panel; out [M][PANEL]. `ahead` and `ahead_too` are prefetched, PAIR_BYTES further for each pair.
template <int M>
[[gnu::target("avx512bf16")]] inline void multiply_pairs_rows(const uint8_t* const* x, const uint8_t* panel, int64_t num_pairs,
                                                              float* out, const uint8_t* ahead, const uint8_t* ahead_too) {
  constexpr int64_t AT_ONCE = COLUMNS_AT_ONCE / 2;
  for (int64_t begin = 0; begin < num_pairs; begin += AT_ONCE) {
    const int64_t end = begin + AT_ONCE < num_pairs ? begin + AT_ONCE : num_pairs;
    __m512 low[M] = {}, high[M] = {};
    for (int64_t pair = begin; pair < end; pair++, panel += PAIR_BYTES, ahead += PAIR_BYTES, ahead_too += PAIR_BYTES) {
      prefetch(ahead);
      prefetch(ahead_too);
      const auto w_low = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel));
      const auto w_high = reinterpret_cast<__m512bh>(_mm512_loadu_si512(panel + PAIR_BYTES / 2));
      for (int row = 0; row < M; row++) {
        int32_t bits;
        std::memcpy(&bits, x[row] + 4 * pair, sizeof bits);
        const auto value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(bits));
        low[row] = _mm512_dpbf16_ps(low[row], w_low, value);
        high[row] = _mm512_dpbf16_ps(high[row], w_high, value);
      }
    }
    for (int row = 0; row < M; row++) {
      float* to = out + row * PANEL;
      _mm512_storeu_ps(to, begin ? _mm512_add_ps(_mm512_loadu_ps(to), low[row]) : low[row]);
      _mm512_storeu_ps(to + LANES, begin ? _mm512_add_ps(_mm512_loadu_ps(to + LANES), high[row]) : high[row]);
    }
  }
}

[[gnu::target("avx512bf16"), gnu::noinline]] inline void multiply_pairs_panel(int rows, const uint8_t* const* x, const uint8_t* panel,
                                                                              int64_t num_pairs, float* out, const uint8_t* ahead,
                                                                              const uint8_t* ahead_too) {
  switch (rows) {
    case 1: return multiply_pairs_rows<1>(x, panel, num_pairs, out, ahead, ahead_too);
    case 2: return multiply_pairs_rows<2>(x, panel, num_pairs, out, ahead, ahead_too);
    case 3: return multiply_pairs_rows<3>(x, panel, num_pairs, out, ahead, ahead_too);
    case 4: return multiply_pairs_rows<4>(x, panel, num_pairs, out, ahead, ahead_too);
    case 5: return multiply_pairs_rows<5>(x, panel, num_pairs, out, ahead, ahead_too);
    case 6: return multiply_pairs_rows<6>(x, panel, num_pairs, out, ahead, ahead_too);
    case 7: return multiply_pairs_rows<7>(x, panel, num_pairs, out, ahead, ahead_too);
    case 8: return multiply_pairs_rows<8>(x, panel, num_pairs, out, ahead, ahead_too);
  }
}

#else

inline bool has_pair_products() { return false; }
inline void pair_row(const float*, int64_t, uint8_t*) { __builtin_trap(); }
inline void multiply_pairs_panel(int, const uint8_t* const*, const uint8_t*, int64_t, float*, const uint8_t*, const uint8_t*) {
  __builtin_trap();
}

#endif

}  // namespace tetrad
