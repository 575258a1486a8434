// Products of rows of activations with the panels of one matrix, and the epilogues that process the outputs.
#pragma once
#include <algorithm>

#include "matmul_fixed.h"
#include "matmul_float.h"
#include "matmul_pairs.h"
#include "matmul_quantized.h"
#include "matmul_split.h"
#include "operation.h"
#include "rows.h"

namespace tetrad {

constexpr int64_t BYTES_AT_ONCE = 1 << 16;  // bytes of weights of one work item: long reads are faster
constexpr int64_t TOKENS_AT_ONCE = 64;  // rows of activations that stay in the second-level cache while panels are read

// The division of a product's panels into work items of `span` panels each: enough for a long read, but few enough that there
// are items for all threads until the end. The panels of a paired matrix are counted in pairs.
struct Shares {
  int64_t panels, span, spans;

  Shares(const Matrix& matrix, int64_t num_threads) {
    const int64_t per_panel = matrix.paired ? 2 : 1;
    panels = matrix.num_panels() / per_panel;
    const int64_t long_read = std::max<int64_t>(1, BYTES_AT_ONCE / (per_panel * matrix.panel_bytes()));
    span = std::max<int64_t>(1, std::min(long_read, panels / (8 * num_threads)));
    spans = (panels + span - 1) / span;
  }
};

// Bytes of a row of activations in the form that a matrix's products read; 0: floats, as they are.
inline int64_t prepared_bytes(const Matrix& matrix) {
  if (matrix.is_quantized()) return Activations::size_bytes(matrix.columns);
  switch (matrix.storage) {
    case SPLIT: return split_bytes(matrix.columns);
    case FIXED: return fixed_bytes(matrix.columns);
    case PAIRS: return pairs_bytes(matrix.columns);
  }
  return 0;
}

// Convert a row of activations to the form that a matrix's products read.
inline void prepare_row(const Matrix& matrix, const float* x, uint8_t* out) {
  if (matrix.is_quantized()) return quantize_row(x, matrix.columns, Activations::at(out, matrix.columns));
  switch (matrix.storage) {
    case SPLIT: return split_row(x, matrix.columns, out);
    case FIXED: return fix_row(x, matrix.columns, out);
    case PAIRS: return pair_row(x, matrix.columns, out);
  }
}

// A product of rows 0 .. num_rows of a source with one matrix, written to rows of a target. It has no state; each work item of
// an operation creates its own.
struct Product {
  const Operation& operation;  // defines the epilogue
  const Matrix& matrix;
  const float* bias;           // of the outputs, or null
  int64_t num_rows;            // at most TOKENS_AT_ONCE
  const float* x;              // rows of floats, x_stride apart
  int64_t x_stride;
  uint8_t* prepared;           // rows of the source in the form that the products read
  const int32_t* places;       // index of each row in `prepared`; null: the same order
  float* out;                  // rows of outputs, out_stride apart
  int64_t out_stride;
  const LoraSite* const* sites;  // site of each row's adapter, null: no change; or null: no row has an adapter
  const uint8_t* order;          // indices of the rows, sorted by adapter
  const float* shrunk;           // a x of the rows, shrunk_stride apart
  int64_t shrunk_stride;

  // Compute one panel of outputs, or a pair of panels. `next` is the panel that the thread most likely reads next; `tops`, one
  // per row, are used with TOP only.
  void compute(int64_t panel, int64_t next, Top* tops) const {
    if (matrix.is_quantized()) return compute_quantized(panel, next, tops);
    if (matrix.storage == SPLIT) return compute_split(panel, next, tops);
    if (matrix.storage == FIXED) return compute_fixed(panel, next, tops);
    if (matrix.storage == PAIRS) return compute_pairs(panel, next, tops);
    with_element(matrix, [&](auto element) { compute_floats<decltype(element)>(panel, next, tops); });
  }

 private:
  const uint8_t* prepared_row(int64_t row) const { return prepared + (places ? places[row] : row) * prepared_bytes(matrix); }

  // The outputs of one panel, or of a pair of panels. The epilogue runs after each tile of rows; if rows have adapters, it runs
  // after the last tile, so that rows of one adapter can be changed together.
  template <int SIZE>
  struct Outputs {
    alignas(64) float values[2][TOKENS_AT_ONCE * SIZE];
  };

  // Return the memory for the outputs of a tile that starts at `row`.
  template <int SIZE>
  float* tile(Outputs<SIZE>& outputs, int which, int64_t row) const {
    return outputs.values[which] + (sites ? row * SIZE : 0);
  }

  template <int SIZE>
  void finish_tile(Outputs<SIZE>& outputs, int64_t panel, int64_t row, int rows, Top* tops) const {
    if (sites && row + rows < num_rows) return;
    if (sites) {
      adapt(panel * SIZE, SIZE, outputs.values[0]);
      if (operation.epilogue == GATE) adapt(first_of_up() + panel * SIZE, SIZE, outputs.values[1]);
      row = 0;
      rows = static_cast<int>(num_rows);
    }
    if (operation.epilogue == GATE) return finish_gate(panel * SIZE, SIZE, row, rows, outputs.values[0], outputs.values[1]);
    finish(panel * SIZE, SIZE, row, rows, outputs.values[0], tops ? tops + row : nullptr);
  }

  // Prefetch the matrices b for the next panel's outputs, of the adapters of rows `from` .. `from + rows` in the sorted order.
  template <int SIZE>
  void fetch_changes(int64_t next, int64_t from, int rows) const {
    if (!sites) return;
    for (int64_t i = from; i < from + rows; i++) {
      const LoraSite* its = sites[order[i]];
      if (!its || (i > 0 && sites[order[i - 1]] == its)) continue;
      fetch_b(*its, next * SIZE, SIZE);
      if (operation.epilogue == GATE) fetch_b(*its, first_of_up() + next * SIZE, SIZE);
    }
  }

  // The index of the first output of `up`, which the gate multiplies.
  int64_t first_of_up() const { return (matrix.num_outputs() + LANES - 1) / LANES * LANES; }

  // Add the changes of all rows' adapters to outputs `first` .. `first + size`.
  void adapt(int64_t first, int64_t size, float* products) const {
    AdaptedRows together;
    together.count = 0;
    for (int64_t i = 0; i < num_rows; i++) {
      const int64_t row = order[i];
      together.from[together.count] = shrunk + row * shrunk_stride;
      together.to[together.count++] = products + row * size;
      if (i + 1 < num_rows && sites[order[i + 1]] == sites[row] && together.count < ROWS_AT_ONCE) continue;
      if (sites[row]) expand(*sites[row], together, first, size);
      together.count = 0;
    }
  }

  // Not inlined: inside the calling loop, GCC would load weights again for every row, at two thirds of the speed with AVX2.
  template <typename Element>
  [[gnu::noinline]] void compute_floats(int64_t panel, int64_t next, Top* tops) const {
    Outputs<PANEL> outputs;
    for (int64_t row = 0; row < num_rows; row += MAX_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, num_rows - row));
      fetch_changes<PANEL>(next, row, rows);
      const float* its_x = x + row * x_stride;
      const auto multiply = [&](int64_t which, int64_t its_next, float* out) {
        const Element* weights = matrix.floats<Element>(which);
        // Of several passes, each of the first two prefetches one half of the next panel. A single pass prefetches its own
        // panel, COLUMNS_AHEAD columns ahead; so do the third and later passes, where the panel is cached already and this
        // costs little.
        const int64_t pass = row / MAX_ROWS;
        const bool fetches_next = num_rows > MAX_ROWS && pass < 2;
        using Pass = Ahead<Element>;
        const Pass ahead = fetches_next ? Pass{matrix.floats<Element>(its_next) + pass * LANES * matrix.columns, LANES}
                                        : Pass{weights + COLUMNS_AHEAD * PANEL, PANEL};
        multiply_panel(rows, its_x, x_stride, weights, matrix.columns, out, ahead);
      };
      if (operation.epilogue == GATE) {
        multiply(2 * panel, 2 * next, tile(outputs, 0, row));
        multiply(2 * panel + 1, 2 * next + 1, tile(outputs, 1, row));
      } else {
        multiply(panel, next, tile(outputs, 0, row));
      }
      finish_tile(outputs, panel, row, rows, tops);
    }
  }

  void compute_quantized(int64_t panel, int64_t next, Top* tops) const {
    Outputs<QUANTUM_PANEL> outputs;
    for (int64_t row = 0; row < num_rows; row += MAX_QUANTIZED_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_QUANTIZED_ROWS, num_rows - row));
      fetch_changes<QUANTUM_PANEL>(next, row, rows);
      Activations its_x[MAX_QUANTIZED_ROWS];
      for (int i = 0; i < rows; i++) its_x[i] = Activations::at(const_cast<uint8_t*>(prepared_row(row + i)), matrix.columns);
      if (operation.epilogue == GATE) {
        multiply_quantized(matrix, rows, its_x, matrix.panel(2 * panel), tile(outputs, 0, row), QUANTUM_PANEL);
        multiply_quantized(matrix, rows, its_x, matrix.panel(2 * panel + 1), tile(outputs, 1, row), QUANTUM_PANEL);
      } else {
        multiply_quantized(matrix, rows, its_x, matrix.panel(panel), tile(outputs, 0, row), QUANTUM_PANEL);
      }
      finish_tile(outputs, panel, row, rows, tops);
    }
  }

  void compute_split(int64_t panel, int64_t next, Top* tops) const {
    const Tiles tiles;
    Outputs<PANEL> outputs;
    for (int64_t row = 0; row < num_rows; row += SPLIT_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(SPLIT_ROWS, num_rows - row));
      fetch_changes<PANEL>(next, row, rows);
      const auto multiply = [&](int64_t which, float* out) {
        multiply_split_panel(prepared + row * split_bytes(matrix.columns), split_bytes(matrix.columns), matrix.panel(which), matrix.columns, out);
      };
      if (operation.epilogue == GATE) {
        multiply(2 * panel, tile(outputs, 0, row));
        multiply(2 * panel + 1, tile(outputs, 1, row));
      } else {
        multiply(panel, tile(outputs, 0, row));
      }
      finish_tile(outputs, panel, row, rows, tops);
    }
  }

  // Not inlined, for the same reason as compute_floats.
  [[gnu::noinline]] void compute_fixed(int64_t panel, int64_t next, Top* tops) const {
    Outputs<PANEL> outputs;
    const int64_t row_bytes = fixed_bytes(matrix.columns);
    for (int64_t row = 0; row < num_rows; row += MAX_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, num_rows - row));
      fetch_changes<PANEL>(next, row, rows);
      const uint8_t* its_x = prepared + row * row_bytes;
      if (operation.epilogue == GATE) {
        multiply_fixed_panel(rows, its_x, matrix.columns, matrix.panel(2 * panel), tile(outputs, 0, row));
        multiply_fixed_panel(rows, its_x, matrix.columns, matrix.panel(2 * panel + 1), tile(outputs, 1, row));
      } else {
        multiply_fixed_panel(rows, its_x, matrix.columns, matrix.panel(panel), tile(outputs, 0, row));
      }
      finish_tile(outputs, panel, row, rows, tops);
    }
  }

  void compute_pairs(int64_t panel, int64_t next, Top* tops) const {
    Outputs<PANEL> outputs;
    for (int64_t row = 0; row < num_rows; row += MAX_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, num_rows - row));
      fetch_changes<PANEL>(next, row, rows);
      const uint8_t* its_x[MAX_ROWS];
      for (int i = 0; i < rows; i++) its_x[i] = prepared_row(row + i);
      const auto multiply = [&](int64_t which, int64_t its_next, float* out) {
        // Passes prefetch as those of compute_floats do; a pair of columns takes two cache lines.
        const int64_t pass = row / MAX_ROWS;
        const bool fetches_next = num_rows > MAX_ROWS && pass < 2;
        const uint8_t* weights = matrix.panel(which);
        const uint8_t* ahead = fetches_next ? matrix.panel(its_next) + pass * PAIR_BYTES / 2 : weights + PAIRS_AHEAD * PAIR_BYTES;
        multiply_pairs_panel(rows, its_x, weights, matrix.num_pairs(), out, ahead, fetches_next ? ahead : ahead + PAIR_BYTES / 2);
      };
      if (operation.epilogue == GATE) {
        multiply(2 * panel, 2 * next, tile(outputs, 0, row));
        multiply(2 * panel + 1, 2 * next + 1, tile(outputs, 1, row));
      } else {
        multiply(panel, next, tile(outputs, 0, row));
      }
      finish_tile(outputs, panel, row, rows, tops);
    }
  }

  // Finish outputs `first` .. `first + size` of a range of rows. TOP: update the largest outputs. Else: add the bias, apply the
  // activation, and store the outputs or add them to the target.
  void finish(int64_t first, int64_t size, int64_t row, int rows, float* products, Top* tops) const {
    const int64_t count = std::min(size, matrix.num_outputs() - first);
    if (operation.epilogue == TOP) {
      for (int i = 0; i < rows; i++) tops[i].take(products + i * size, first, count);
      return;
    }
    if (bias)
      for (int i = 0; i < rows; i++) add_row(bias + first, count, 1.0f, products + i * size);
    if (operation.epilogue == ACTIVATE) activate_row(operation.activation, products, nullptr, rows * size, products);
    for (int i = 0; i < rows; i++) {
      float* to = out + (row + i) * out_stride + first;
      operation.epilogue == ADD ? add_row(products + i * size, count, operation.scale, to) : copy_row(products + i * size, count, to);
    }
  }

  // Finish outputs of a pair of panels: add biases, multiply the activated gate by `up`, and store the result.
  void finish_gate(int64_t first, int64_t size, int64_t row, int rows, float* gate, float* up) const {
    const int64_t outputs = matrix.num_outputs(), count = std::min(size, outputs - first);
    for (int i = 0; i < rows; i++) {
      float* its_gate = gate + i * size;
      float* its_up = up + i * size;
      if (bias)
        for (int64_t j = 0; j < count; j++) {
          its_gate[j] += bias[first + j];
          its_up[j] += bias[outputs + first + j];
        }
      operation.clamp != 0.0f ? activate_clamped_row(its_gate, its_up, size, operation.clamp, its_gate)
                              : activate_row(operation.activation, its_gate, its_up, size, its_gate);
      std::memcpy(out + (row + i) * out_stride + first, its_gate, count * sizeof(float));
    }
  }
};

}  // namespace tetrad
