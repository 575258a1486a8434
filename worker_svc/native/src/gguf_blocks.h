// Unpacks quantized rows of GGUF files into the form that panels are packed from: quanta, one scale and one minimum per block.
//   weight = d * (quantum - zero) + m
// The layouts are those of ggml's block structs. Fields are read byte by byte, because rows of a file need not be aligned.
#pragma once
#include "gguf_rare_blocks.h"

namespace tetrad {

// Types by their numbers in GGUF files.
enum class GgufType : int32_t {
  Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, Q8_K = 15,
  IQ4_NL = 20, IQ4_XS = 23, MXFP4 = 39
};

inline void unpack_q4(const uint8_t* from, int64_t columns, bool has_minimum, UnpackedRow to) {
  for (int64_t block = 0; block < columns / 32; block++, from += has_minimum ? 20 : 18) {
    to.scales[block] = half_at(from);
    to.minima[block] = has_minimum ? half_at(from + 2) : 0.0f;
    const uint8_t* packed = from + (has_minimum ? 4 : 2);
    for (int i = 0; i < 16; i++) {
      to.quanta[block * 32 + i] = packed[i] & 15;
      to.quanta[block * 32 + 16 + i] = packed[i] >> 4;
    }
  }
}

inline void unpack_q5(const uint8_t* from, int64_t columns, bool has_minimum, UnpackedRow to) {
  for (int64_t block = 0; block < columns / 32; block++, from += has_minimum ? 24 : 22) {
    to.scales[block] = half_at(from);
    to.minima[block] = has_minimum ? half_at(from + 2) : 0.0f;
    uint32_t high;
    std::memcpy(&high, from + (has_minimum ? 4 : 2), sizeof high);
    const uint8_t* packed = from + (has_minimum ? 8 : 6);
    for (int i = 0; i < 16; i++) {
      to.quanta[block * 32 + i] = (packed[i] & 15) | ((high >> i & 1) << 4);
      to.quanta[block * 32 + 16 + i] = (packed[i] >> 4) | ((high >> (i + 16) & 1) << 4);
    }
  }
}

inline void unpack_q8_0(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t block = 0; block < columns / 32; block++, from += 34) {
    to.scales[block] = half_at(from);
    to.minima[block] = 0.0f;
    for (int i = 0; i < 32; i++) to.quanta[block * 32 + i] = from[2 + i] ^ 0x80;
  }
}

// The 6-bit scale and minimum of sub-block j of a Q4_K or Q5_K super-block.
inline void k_scale(int j, const uint8_t* packed, int* scale, int* minimum) {
  if (j < 4) {
    *scale = packed[j] & 63;
    *minimum = packed[j + 4] & 63;
  } else {
    *scale = (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4);
    *minimum = (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4);
  }
}

// Q4_K and Q5_K: super-blocks of 256 columns in 8 sub-blocks of 32. The fifth bits of Q5_K stand before the low bits: byte i
// has those of column i of all 8 sub-blocks.
inline void unpack_q45_k(const uint8_t* from, int64_t columns, bool has_fifth_bit, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += has_fifth_bit ? 176 : 144) {
    const float d = half_at(from), d_minimum = half_at(from + 2);
    const uint8_t* high = from + 16;
    const uint8_t* low = from + (has_fifth_bit ? 48 : 16);
    for (int j = 0; j < 8; j++) {
      int scale, minimum;
      k_scale(j, from + 4, &scale, &minimum);
      to.scales[super * 8 + j] = d * static_cast<float>(scale);
      to.minima[super * 8 + j] = -d_minimum * static_cast<float>(minimum);
      for (int i = 0; i < 32; i++) {
        const uint8_t byte = low[j / 2 * 32 + i];
        uint8_t quantum = j % 2 ? byte >> 4 : byte & 15;
        if (has_fifth_bit) quantum |= (high[i] >> j & 1) << 4;
        to.quanta[super * 256 + j * 32 + i] = quantum;
      }
    }
  }
}

// Q6_K: super-blocks of 256 columns in 16 sub-blocks of 16, each with an 8-bit scale.
inline void unpack_q6_k(const uint8_t* from, int64_t columns, UnpackedRow to) {
  for (int64_t super = 0; super < columns / 256; super++, from += 210) {
    const float d = half_at(from + 208);
    for (int j = 0; j < 16; j++) {
      to.scales[super * 16 + j] = d * static_cast<float>(static_cast<int8_t>(from[192 + j]));
      to.minima[super * 16 + j] = 0.0f;
    }
    for (int half = 0; half < 2; half++) {
      const uint8_t* low = from + half * 64;
      const uint8_t* high = from + 128 + half * 32;
      uint8_t* quanta = to.quanta + super * 256 + half * 128;
      for (int i = 0; i < 32; i++) {
        quanta[i] = (low[i] & 15) | ((high[i] & 3) << 4);
        quanta[i + 32] = (low[i + 32] & 15) | ((high[i] >> 2 & 3) << 4);
        quanta[i + 64] = (low[i] >> 4) | ((high[i] >> 4 & 3) << 4);
        quanta[i + 96] = (low[i + 32] >> 4) | ((high[i] >> 6) << 4);
      }
    }
  }
}

inline void unpack_gguf_row(GgufType type, const uint8_t* from, int64_t columns, UnpackedRow to) {
  switch (type) {
    case GgufType::Q4_0: return unpack_q4(from, columns, false, to);
    case GgufType::Q4_1: return unpack_q4(from, columns, true, to);
    case GgufType::Q5_0: return unpack_q5(from, columns, false, to);
    case GgufType::Q5_1: return unpack_q5(from, columns, true, to);
    case GgufType::Q8_0: return unpack_q8_0(from, columns, to);
    case GgufType::Q4_K: return unpack_q45_k(from, columns, false, to);
    case GgufType::Q5_K: return unpack_q45_k(from, columns, true, to);
    case GgufType::Q6_K: return unpack_q6_k(from, columns, to);
    case GgufType::Q2_K: return unpack_q2_k(from, columns, to);
    case GgufType::Q3_K: return unpack_q3_k(from, columns, to);
    case GgufType::Q8_K: return unpack_q8_k(from, columns, to);
    case GgufType::IQ4_NL: return unpack_iq4_nl(from, columns, to);
    case GgufType::IQ4_XS: return unpack_iq4_xs(from, columns, to);
    case GgufType::MXFP4: return unpack_mxfp4(from, columns, to);
  }
}

}  // namespace tetrad
