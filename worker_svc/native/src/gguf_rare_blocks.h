// Unpacks GGUF's less common formats into the same form as gguf_blocks.h.
//   Q2_K and Q8_K:         weight = d * quantum + m
//   all others ("coded"):  weight = d * table[quantum]; the matrix holds the table (formats.py)
#pragma once
#include <cmath>

#include "unpacked_row.h"

namespace tetrad {

// Q2_K: super-blocks of 256 columns in 16 sub-blocks of 16. A scale byte holds the scale in its low 4 bits and the minimum in
// its high 4 bits. 32 bytes of quanta hold four runs of 32 columns, two bits per column.
inline void unpack_q2_k(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += 84) {
    const float d = half_at(from + 80), d_minimum = half_at(from + 82);
    for (int j = 0; j < 16; j++) {
      to.scales[super * 16 + j] = d * static_cast<float>(from[j] & 15);
      to.minima[super * 16 + j] = -d_minimum * static_cast<float>(from[j] >> 4);
    }
    for (int i = 0; i < 256; i++) to.quanta[super * 256 + i] = from[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
  }
}

// Q3_K: like Q2_K without minima. The third bits (inverted signs) stand before the others. A scale is a 6-bit number minus 32.
inline void unpack_q3_k(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += 110) {
    const float d = half_at(from + 108);
    const uint8_t* scales = from + 96;
    for (int j = 0; j < 16; j++) {
      const int low = scales[j % 8] >> (j / 8 * 4) & 15, high = scales[8 + j % 4] >> (j / 4 * 2) & 3;
      to.scales[super * 16 + j] = d * static_cast<float>((low | high << 4) - 32);
    }
    for (int i = 0; i < 256; i++) {
      const uint8_t low = from[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      to.quanta[super * 256 + i] = low | (from[i % 32] >> (i / 32) & 1) << 2;
    }
  }
}

inline void unpack_nibbles(const uint8_t* packed, uint8_t* quanta) {
  for (int i = 0; i < 16; i++) {
    quanta[i] = packed[i] & 15;
    quanta[16 + i] = packed[i] >> 4;
  }
}

inline void unpack_iq4_nl(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t block = 0; block < columns / 32; block++, from += 18) {
    to.scales[block] = half_at(from);
    unpack_nibbles(from + 2, to.quanta + block * 32);
  }
}

// IQ4_XS: super-blocks of 256 columns in 8 sub-blocks of 32. A scale is a 6-bit number minus 32.
inline void unpack_iq4_xs(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += 136) {
    const float d = half_at(from);
    uint16_t high;
    std::memcpy(&high, from + 2, sizeof high);
    for (int j = 0; j < 8; j++) {
      const int scale = (from[4 + j / 2] >> (j % 2 * 4) & 15) | (high >> (2 * j) & 3) << 4;
      to.scales[super * 8 + j] = d * static_cast<float>(scale - 32);
      unpack_nibbles(from + 8 + 16 * j, to.quanta + super * 256 + j * 32);
    }
  }
}

// MXFP4: the scale is a power of two, halved because the table holds the values of e2m1 doubled.
inline void unpack_mxfp4(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t block = 0; block < columns / 32; block++, from += 17) {
    to.scales[block] = std::ldexp(1.0f, static_cast<int>(from[0]) - 128);
    unpack_nibbles(from + 1, to.quanta + block * 32);
  }
}

// Q8_K: one float32 scale for 256 columns. The sums that follow the quanta in the file are not used.
inline void unpack_q8_k(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += 292) {
    float d;
    std::memcpy(&d, from, sizeof d);
    for (int j = 0; j < 8; j++) {
      to.scales[super * 8 + j] = d;
      to.minima[super * 8 + j] = -128.0f * d;
    }
    for (int i = 0; i < 256; i++) to.quanta[super * 256 + i] = from[4 + i] ^ 0x80;
  }
}

}  // namespace tetrad
