// Matrices: the layouts of weights [rows, columns] in memory. y = W x, so rows are outputs ("n") and columns inputs ("k").
//
// Floats (32 or 16 bits): panels of 2 * LANES rows; within a panel, column by column: [panel][k][row of panel]. One pass over a
//   panel is one sequential read, and each column is two vectors.
// Quantized: panels of LANES rows; within a panel, blocks of 32 (or 16) columns. A block has scales d [LANES], minima m [LANES]
//   if the format has them, then the quanta: four columns of every row side by side, as instructions for integer dot products
//   take them (quantum_packing.h).
//   weight = d * (quantum - zero) + m, or d * (table[quantum] - zero) for coded quanta of 3 or 4 bits.
// Other storages of floats are described where their products are.
#pragma once
#include "vec.h"

namespace tetrad {

constexpr int PANEL = 2 * LANES;   // rows of a panel of floats
constexpr int QUANTUM_PANEL = LANES;  // rows of a panel of quanta

// The storage of a matrix of floats, numbered as in structures.py.
enum Storage : int32_t {
  PLAIN = 0,  // see above
  SPLIT = 1,  // each float32 weight is stored as two bfloat16 numbers (matmul_split.h)
  FIXED = 2,  // float32 weights are stored in fixed point (matmul_fixed.h)
  PAIRS = 3,  // bfloat16 weights are stored in pairs of columns, for products with rows of bfloat16 (matmul_pairs.h)
};

struct Matrix {
  int64_t rows, columns;
  int32_t bits;         // 32: float32; 16: half precision or bfloat16; 3, 4 or 8: quantized
  int32_t is_bfloat;
  int32_t block;        // columns that share a scale: 32 or 16; floats: 1
  int32_t scale_bytes;  // 2: half precision; 4: float32
  int32_t has_minimum;
  int32_t zero;         // quantum that represents 0
  int32_t is_coded;     // whether quanta of 3 or 4 bits are indices of the table
  uint8_t table[16];
  int32_t paired;       // whether the rows are those of two matrices, gate before up, with alternating panels
  int32_t storage;      // a Storage
  uint8_t* data;

  // Number of columns of a split matrix, padded to whole tiles.
  static int64_t padded(int64_t columns) { return (columns + 31) / 32 * 32; }
  // Fixed point: columns of a block, which share a unit; columns padded to whole blocks; bytes of a block of `rows` rows.
  static constexpr int64_t FIXED_BLOCK = 32;
  static int64_t padded_fixed(int64_t columns) { return (columns + FIXED_BLOCK - 1) / FIXED_BLOCK * FIXED_BLOCK; }
  static int64_t fixed_block_bytes(int64_t rows) { return rows * (4 + 2 * FIXED_BLOCK); }
  bool is_quantized() const { return bits < 16; }
  int64_t panel_rows() const { return is_quantized() ? QUANTUM_PANEL : PANEL; }
  int64_t num_outputs() const { return paired ? rows / 2 : rows; }
  int64_t num_panels() const { return (num_outputs() + panel_rows() - 1) / panel_rows() * (paired ? 2 : 1); }
  int64_t num_pairs() const { return (columns + 1) / 2; }
  int64_t num_blocks() const { return columns / block; }
  int64_t scales_bytes() const { return int64_t(QUANTUM_PANEL) * scale_bytes * (has_minimum ? 2 : 1); }
  int64_t block_bytes() const { return scales_bytes() + int64_t(QUANTUM_PANEL) * block * bits / 8; }
  int64_t panel_bytes() const {
    if (is_quantized()) return num_blocks() * block_bytes();
    if (storage == FIXED) return padded_fixed(columns) / FIXED_BLOCK * fixed_block_bytes(PANEL);
    if (storage == PAIRS) return num_pairs() * 2 * PANEL * 2;
    return (storage == SPLIT ? padded(columns) : columns) * PANEL * bits / 8;
  }
  int64_t size_bytes() const { return num_panels() * panel_bytes(); }
  // The row of the matrix at `place` of a panel; -1 for the padding of the last panel.
  int64_t row_of(int64_t panel, int64_t place) const {
    const int64_t output = (paired ? panel / 2 : panel) * panel_rows() + place;
    if (output >= num_outputs()) return -1;
    return paired && panel % 2 ? num_outputs() + output : output;
  }

  const uint8_t* panel(int64_t index) const { return data + index * panel_bytes(); }
  template <typename Element>
  const Element* floats(int64_t index) const {
    return reinterpret_cast<const Element*>(panel(index));
  }
};

// Call `work` with a value of the element type of a matrix of floats.
template <typename Work>
inline void with_element(const Matrix& matrix, Work work) {
  if (matrix.bits == 32) return work(float());
  if (matrix.is_bfloat) return work(bfloat_t());
  work(half_t());
}

}  // namespace tetrad
