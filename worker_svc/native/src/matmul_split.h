// Float32 products on tiles of bfloat16 (AMX): each number is the sum of two bfloat16 numbers, high and low, and a product of
// two numbers is high * high + low * high + high * low. The error is below 2^-16 of the product. Tiles add in float32.
//
// Every output is one sum over the columns, in order, whatever the number of activations.
#pragma once
#include "matrix.h"
#if defined(TETRAD_AVX512) && defined(__linux__)
#define TETRAD_SPLIT
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tetrad {

constexpr int SPLIT_ROWS = 32;  // rows of activations of one pass: two tiles
constexpr int64_t TILE_BYTES = 1024;  // 16 rows of 64 bytes

// Return the bytes of a split row of activations: the high numbers of all columns, then the low ones.
inline int64_t split_bytes(int64_t columns) { return 4 * Matrix::padded(columns); }

// Return the bits of floats rounded to bfloat16 (nearest, ties to even); the lower 16 bits are 0.
inline vi upper_halves(vi bits) { return (bits + 0x7fff + ((bits >> 16) & 1)) & splat_int(static_cast<int32_t>(0xffff0000)); }

// Split floats into high and low bfloat16 numbers.
inline void split_floats(vf value, int16_t* high, int16_t* low) {
  vi bits;
  std::memcpy(&bits, &value, sizeof bits);
  const vi top = upper_halves(bits);
  vf top_value;
  std::memcpy(&top_value, &top, sizeof top_value);
  const vf rest = value - top_value;
  std::memcpy(&bits, &rest, sizeof bits);
  store(high, top >> 16);
  store(low, upper_halves(bits) >> 16);
}

// Split a row of activations. Columns after the last one are 0.
inline void split_row(const float* x, int64_t columns, uint8_t* out) {
  const int64_t padded = Matrix::padded(columns);
  auto* high = reinterpret_cast<int16_t*>(out);
  auto* low = high + padded;
  int64_t k = 0;
  for (; k + LANES <= columns; k += LANES) split_floats(load(x + k), high + k, low + k);
  for (; k < padded; k += LANES) {
    float rest[LANES] = {};
    for (int64_t i = k; i < columns; i++) rest[i - k] = x[i];
    split_floats(load(rest), high + k, low + k);
  }
}

// Pack a panel of float32 weights. Each 32 columns are four tiles: high 0, high 1, low 0, low 1. A row of a tile has two
// columns of each of 16 outputs.
inline void pack_split_panel(const Matrix& matrix, const float* weights, int64_t panel) {
  auto* out = reinterpret_cast<int16_t*>(matrix.data + panel * matrix.panel_bytes());
  for (int place = 0; place < PANEL; place++) {
    const int64_t n = matrix.row_of(panel, place);
    for (int64_t k = 0; n >= 0 && k < matrix.columns; k += LANES) {
      float values[LANES] = {};
      int16_t high[LANES], low[LANES];
      for (int64_t i = 0; i < LANES && k + i < matrix.columns; i++) values[i] = weights[n * matrix.columns + k + i];
      split_floats(load(values), high, low);
      for (int64_t i = 0; i < LANES; i++) {
        const int64_t column = k + i, inner = column % 32;
        const int64_t at = column / 32 * (4 * TILE_BYTES / 2) + place / 16 * (TILE_BYTES / 2) + inner / 2 * 32 + place % 16 * 2 + inner % 2;
        out[at] = high[i];
        out[at + TILE_BYTES] = low[i];
      }
    }
  }
}

#if defined(TETRAD_SPLIT)

// Whether this processor has AMX tiles for bfloat16 and the system permits the process to use them.
inline bool has_split_products() {
  unsigned a, b, c, d;
  constexpr unsigned TILES = 1u << 24, BFLOATS = 1u << 22;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILES | BFLOATS)) != (TILES | BFLOATS)) return false;
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

// The operand of the instruction that configures tiles: eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Configures the tiles of the calling thread; the destructor releases them.
struct Tiles {
  [[gnu::target("amx-tile")]] Tiles() {
    static const TileShapes shapes;  // static: GCC assumes that only 8 bytes are read, and removes stores to the others
    _tile_loadconfig(&shapes);
  }
  [[gnu::target("amx-tile")]] ~Tiles() { _tile_release(); }
};

// out [SPLIT_ROWS][PANEL] = products of split rows, `row_bytes` apart, with a panel. Rows that are not used are read as well.
[[gnu::target("amx-tile,amx-bf16"), gnu::noinline]] inline void multiply_split_panel(const uint8_t* x, int64_t row_bytes,
                                                                                      const uint8_t* panel, int64_t columns, float* out) {
  const int64_t blocks = Matrix::padded(columns) / 32;
  const uint8_t *high = x, *low = x + 64 * blocks, *below = x + 16 * row_bytes, *low_below = below + 64 * blocks;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < blocks; k++, panel += 4 * TILE_BYTES) {
    _tile_loadd(4, high + 64 * k, row_bytes);
    _tile_loadd(6, panel, 64);
    _tile_loadd(7, panel + TILE_BYTES, 64);
    _tile_loadd(5, below + 64 * k, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(4, low + 64 * k, row_bytes);
    _tile_loadd(5, low_below + 64 * k, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(6, panel + 2 * TILE_BYTES, 64);
    _tile_loadd(7, panel + 3 * TILE_BYTES, 64);
    _tile_loadd(4, high + 64 * k, row_bytes);
    _tile_loadd(5, below + 64 * k, row_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr int64_t OUT_BYTES = PANEL * sizeof(float);
  _tile_stored(0, out, OUT_BYTES);
  _tile_stored(1, out + 16, OUT_BYTES);
  _tile_stored(2, out + 16 * PANEL, OUT_BYTES);
  _tile_stored(3, out + 16 * PANEL + 16, OUT_BYTES);
}

#else

inline bool has_split_products() { return false; }
struct Tiles {
  ~Tiles() {}
};
inline void multiply_split_panel(const uint8_t*, int64_t, const uint8_t*, int64_t, float*) { __builtin_trap(); }

#endif

}  // namespace tetrad
