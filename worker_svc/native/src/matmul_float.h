// Products of up to MAX_ROWS rows of activations with one panel of float weights (32 or 16 bits), computed in float32.
//
// Every output is the sum of partial sums over COLUMNS_AT_ONCE columns, added in order, whatever the number of activations: a
// request gets the same bits alone and in a batch, in one chunk and in several. With one sum over all columns, small products
// would lose digits when added to a large sum, and the error of log-probabilities would be 2.7 times as large.
#pragma once
#include "matrix.h"

namespace tetrad {

#if defined(TETRAD_AVX512)
constexpr int MAX_ROWS = 8;
#else
constexpr int MAX_ROWS = 6;
#endif
constexpr int64_t COLUMNS_AHEAD = 64;  // prefetch distance of a pass that does not prefetch the next panel
constexpr int64_t COLUMNS_AT_ONCE = 128;  // columns of a partial sum; fewer gain little, and adding the partial sums takes time

// The memory that a pass over a panel prefetches: one vector per column, `step` elements apart. The processor's own prefetcher
// stops at the end of a page.
template <typename Element>
struct Ahead {
  const Element* weights;
  int64_t step;
};

// Multiply M rows of x, `stride` elements apart, by a panel; out [M][PANEL].
template <int M, typename Element>
inline void multiply_panel_rows(const float* x, int64_t stride, const Element* panel, int64_t columns, float* out,
                                Ahead<Element> ahead) {
  for (int64_t begin = 0; begin < columns; begin += COLUMNS_AT_ONCE) {
    const int64_t end = begin + COLUMNS_AT_ONCE < columns ? begin + COLUMNS_AT_ONCE : columns;
    vf low[M] = {}, high[M] = {};
    for (int64_t k = begin; k < end; k++, panel += PANEL, ahead.weights += ahead.step) {
      prefetch(ahead.weights);
      const vf w_low = load(panel), w_high = load(panel + LANES);
      for (int row = 0; row < M; row++) {
        const vf value = splat(x[row * stride + k]);
        low[row] += value * w_low;
        high[row] += value * w_high;
      }
    }
    for (int row = 0; row < M; row++) {
      float* to = out + row * PANEL;
      store(to, begin ? load(to) + low[row] : low[row]);
      store(to + LANES, begin ? load(to + LANES) + high[row] : high[row]);
    }
  }
}

template <typename Element>
inline void multiply_panel(int rows, const float* x, int64_t stride, const Element* panel, int64_t columns, float* out,
                           Ahead<Element> ahead) {
  switch (rows) {
    case 1: return multiply_panel_rows<1, Element>(x, stride, panel, columns, out, ahead);
    case 2: return multiply_panel_rows<2, Element>(x, stride, panel, columns, out, ahead);
    case 3: return multiply_panel_rows<3, Element>(x, stride, panel, columns, out, ahead);
    case 4: return multiply_panel_rows<4, Element>(x, stride, panel, columns, out, ahead);
    case 5: return multiply_panel_rows<5, Element>(x, stride, panel, columns, out, ahead);
    case 6: return multiply_panel_rows<6, Element>(x, stride, panel, columns, out, ahead);
#if defined(TETRAD_AVX512)
    case 7: return multiply_panel_rows<7, Element>(x, stride, panel, columns, out, ahead);
    case 8: return multiply_panel_rows<8, Element>(x, stride, panel, columns, out, ahead);
#endif
  }
}

template <typename Element>
inline void pack_float_panel(const Matrix& matrix, const Element* weights, int64_t panel) {
  Element* out = reinterpret_cast<Element*>(matrix.data + panel * matrix.panel_bytes());
  for (int row = 0; row < PANEL; row++) {
    const int64_t n = matrix.row_of(panel, row);
    for (int64_t k = 0; k < matrix.columns; k++) out[k * PANEL + row] = n < 0 ? Element{} : weights[n * matrix.columns + k];
  }
}

inline void unpack_plain_row(const Matrix& matrix, int64_t row, float* out) {
  with_element(matrix, [&](auto element) {
    const auto* panel = matrix.floats<decltype(element)>(row / PANEL) + row % PANEL;
    for (int64_t k = 0; k < matrix.columns; k++) out[k] = to_float(panel[k * PANEL]);
  });
}

}  // namespace tetrad
