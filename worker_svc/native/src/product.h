// Products of some rows of activations with panels of one matrix, and what becomes of the outputs.
#pragma once
#include <algorithm>

#include "matmul_fixed.h"
#include "matmul_float.h"
#include "matmul_quantized.h"
#include "matmul_split.h"
#include "operation.h"
#include "rows.h"

namespace tetrad {

constexpr int64_t BYTES_AT_ONCE = 1 << 16;  // of weights in one item: long reads are fast reads
constexpr int64_t TOKENS_AT_ONCE = 64;  // rows of activations that stay in the second-level cache while panels pass

// How a product's panels are shared out: `span` to an item, as many as make a long read, but no fewer items than keep every thread
// busy to the end. Panels of a paired matrix count in pairs.
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

// Rows 0 .. num_rows of a source, one matrix, and the rows of a target. Without state: items of one operation differ in it.
struct Product {
  const Operation& operation;  // for its epilogue
  const Matrix& matrix;
  const float* bias;           // of the outputs, or null
  int64_t num_rows;            // at most TOKENS_AT_ONCE
  const float* x;              // rows of floats, x_stride apart
  int64_t x_stride;
  uint8_t* prepared;           // the source's rows, quantized, split or in fixed point
  const int32_t* places;       // which of these each row is; null: they are in order
  float* out;                  // rows of outputs, out_stride apart
  int64_t out_stride;
  const LoraSite* const* sites;  // what the adapter of each row changes, null: nothing; or null: no row has an adapter
  const uint8_t* order;          // the rows, those of one adapter side by side
  const float* shrunk;           // a x of the rows, shrunk_stride apart
  int64_t shrunk_stride;

  // Compute one panel of the outputs, or a pair of them. `next` is a panel that a thread most likely reads soon; `tops`, of the rows,
  // count with TOP alone.
  void compute(int64_t panel, int64_t next, Top* tops) const {
    if (matrix.is_quantized()) return compute_quantized(panel, next, tops);
    if (matrix.is_split) return compute_split(panel, next, tops);
    if (matrix.is_fixed) return compute_fixed(panel, next, tops);
    with_element(matrix, [&](auto element) { compute_floats<decltype(element)>(panel, next, tops); });
  }

 private:
  Activations activations(int64_t row) const {
    const int64_t place = places ? places[row] : row;
    return Activations::at(prepared + place * Activations::size_bytes(matrix.columns), matrix.columns);
  }

  // Outputs of one panel, or of a pair of them. A tile of rows is finished at once; where rows have adapters, behind the last one, so
  // that those of one adapter can be changed together.
  template <int SIZE>
  struct Outputs {
    alignas(64) float values[2][TOKENS_AT_ONCE * SIZE];
  };

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

  // Before the products of some rows with a panel, ask for what some adapters change of the next panel's outputs.
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

  // The number of the first output of what a gate multiplies.
  int64_t first_of_up() const { return (matrix.num_outputs() + LANES - 1) / LANES * LANES; }

  // Add what the adapters of all rows change of outputs `first` .. `first + size`.
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

  // Inlined into the loop that calls it, GCC loads weights anew for every row: with AVX2, two thirds of the speed.
  template <typename Element>
  [[gnu::noinline]] void compute_floats(int64_t panel, int64_t next, Top* tops) const {
    Outputs<PANEL> outputs;
    for (int64_t row = 0; row < num_rows; row += MAX_ROWS) {
      const int rows = static_cast<int>(std::min<int64_t>(MAX_ROWS, num_rows - row));
      fetch_changes<PANEL>(next, row, rows);
      const float* its_x = x + row * x_stride;
      const auto multiply = [&](int64_t which, int64_t its_next, float* out) {
        const Element* weights = matrix.floats<Element>(which);
        // Of several passes the first two fetch the next panel, half of it each. One that is alone asks for what comes soon, and
        // so do the third and later ones: to them it is near already, so that costs little.
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
      for (int i = 0; i < rows; i++) its_x[i] = activations(row + i);
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

  // Inlined, as compute_floats would be, it loads weights anew for every row.
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

  // Outputs `first` .. of some rows: look for the largest; or add the bias, store, activate or add to the target.
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
