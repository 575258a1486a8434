// Packing: converts weights into the layouts of matrix.h on a team of threads, and unpacks rows. Python calls these C functions
// when a model is loaded.
#pragma once
#include <algorithm>

#include "gguf_blocks.h"
#include "matmul_fixed.h"
#include "matmul_float.h"
#include "matmul_pairs.h"
#include "matmul_quantized.h"
#include "matmul_split.h"
#include "team.h"

namespace tetrad {

// Call `item` for each of `count` items on the team.
template <typename Item>
void share(Team& team, int64_t count, Item item) {
  Phase phase;
  phase.begin(team.size());
  team.run([&](int rank) { phase.work_off(rank, count, item); });
}

inline void unpack_row(const Matrix& matrix, int64_t row, float* out) {
  if (matrix.is_quantized()) return unpack_quantized_row(matrix, row, out);
  matrix.storage == PAIRS ? unpack_pairs_row(matrix, row, out) : unpack_plain_row(matrix, row, out);
}

}  // namespace tetrad

using namespace tetrad;

extern "C" {

// Pack weights [rows, columns], floats of the matrix's type, into matrix->data.
void tetrad_pack_float(Team* team, const Matrix* matrix, const void* weights) {
  with_element(*matrix, [&](auto element) {
    const auto* its_weights = static_cast<const decltype(element)*>(weights);
    share(*team, matrix->num_panels(), [&](int64_t panel) { pack_float_panel(*matrix, its_weights, panel); });
  });
}

// Pack float32 weights [rows, columns] as two bfloat16 numbers each into matrix->data, which must be zeroed.
void tetrad_pack_split(Team* team, const Matrix* matrix, const float* weights) {
  share(*team, matrix->num_panels(), [&](int64_t panel) { pack_split_panel(*matrix, weights, panel); });
}

// Pack float32 weights [rows, columns] in fixed point into matrix->data, which must be zeroed.
void tetrad_pack_fixed(Team* team, const Matrix* matrix, const float* weights) {
  share(*team, matrix->num_panels(), [&](int64_t panel) { pack_fixed_panel(*matrix, weights, panel); });
}

// Pack bfloat16 weights [rows, columns] in pairs of columns into matrix->data, which must be zeroed.
void tetrad_pack_pairs(Team* team, const Matrix* matrix, const void* weights) {
  share(*team, matrix->num_panels(), [&](int64_t panel) { pack_pairs_panel(*matrix, static_cast<const bfloat_t*>(weights), panel); });
}

// Pack rows of a GGUF file, `row_bytes` apart, into matrix->data, which must be zeroed.
void tetrad_pack_gguf(Team* team, const Matrix* matrix, int32_t type, const uint8_t* rows, int64_t row_bytes) {
  const int64_t columns = matrix->columns;
  share(*team, matrix->num_panels(), [&](int64_t panel) {
    std::vector<uint8_t> quanta(columns);
    std::vector<float> scales(columns / 16), minima(columns / 16);
    const UnpackedRow unpacked{quanta.data(), scales.data(), minima.data()};
    for (int64_t place = 0; place < QUANTUM_PANEL; place++) {
      const int64_t row = matrix->row_of(panel, place);
      if (row < 0) continue;
      unpack_gguf_row(static_cast<GgufType>(type), rows + row * row_bytes, columns, unpacked);
      pack_quantized_row(*matrix, panel, place, unpacked);
    }
  });
}

// Pack unpacked rows into matrix->data, which must be zeroed: quanta [rows, columns], scales and minima (null: none)
// [rows, columns / block].
void tetrad_pack_quanta(Team* team, const Matrix* matrix, uint8_t* quanta, float* scales, float* minima) {
  const int64_t columns = matrix->columns, blocks = matrix->num_blocks();
  share(*team, matrix->num_panels(), [&](int64_t panel) {
    for (int64_t place = 0; place < QUANTUM_PANEL; place++) {
      const int64_t row = matrix->row_of(panel, place);
      if (row < 0) continue;
      const UnpackedRow unpacked{quanta + row * columns, scales + row * blocks, (minima ? minima : scales) + row * blocks};
      pack_quantized_row(*matrix, panel, place, unpacked);
    }
  });
}

// Quantize float32 weights to 8 bits, with one scale per 32 columns, and pack them into matrix->data, which must be zeroed.
void tetrad_pack_int8(Team* team, const Matrix* matrix, const float* weights) {
  const int64_t columns = matrix->columns;
  share(*team, matrix->num_panels(), [&](int64_t panel) {
    std::vector<uint8_t> quanta(columns);
    std::vector<float> scales(columns / 32), minima(columns / 32);
    for (int64_t place = 0; place < QUANTUM_PANEL; place++) {
      const int64_t row = matrix->row_of(panel, place);
      if (row < 0) continue;
      for (int64_t block = 0; block < columns / 32; block++) {
        const float* x = weights + row * columns + block * 32;
        float top = 0, broken = 0;
        for (int i = 0; i < 32; i++) {
          top = std::max(top, std::fabs(x[i]));
          broken += x[i] * 0.0f;
        }
        // Quanta are computed with the scale as it is stored. With a weight that is not finite, the scale is not a number.
        const float scale = static_cast<float>(static_cast<float16>(top / 127.0f + broken));
        scales[block] = scale;
        for (int i = 0; i < 32; i++) {
          const float quantum = scale > 0 && broken == 0.0f ? std::nearbyint(x[i] / scale) : 0.0f;
          quanta[block * 32 + i] = static_cast<uint8_t>(static_cast<int>(std::clamp(quantum, -127.0f, 127.0f)) + 128);
        }
      }
      pack_quantized_row(*matrix, panel, place, {quanta.data(), scales.data(), minima.data()});
    }
  });
}

// Unpack rows to float32 [count, columns]: the values that the products use.
void tetrad_unpack(const Matrix* matrix, const int64_t* rows, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i++, out += matrix->columns)
    unpack_row(*matrix, rows[i], out);
}

}  // extern "C"
