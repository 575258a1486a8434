// Products of quantized weights with activations that are quantized to 8 bits just before, with one scale per 32 columns, as in
// llama.cpp. Sums within a block are integers; scales and minima are applied once per block, in float32.
//
//   y = sum over blocks of d * s * (sum q a - zero * sum a) + m * s * sum a,   activation = s * a
//
// As with float32, a row's sums do not depend on the rows beside it.
#pragma once
#include "quantum_packing.h"

namespace tetrad {

#if defined(TETRAD_AVX512)
constexpr int MAX_QUANTIZED_ROWS = 8;
#else
constexpr int MAX_QUANTIZED_ROWS = 4;
#endif

constexpr int64_t AHEAD_BYTES = 4096;  // prefetch distance; the processor's own prefetcher stops at the end of a page

// One row of quantized activations.
struct Activations {
  int8_t* values;      // [columns]
  float* scales;       // [columns / 32]
  float* sums;         // [columns / 32], scale * sum of the values
  int32_t* totals;     // [columns / 32], sum of the values
  int32_t* totals_16;  // [columns / 16]

  static int64_t size_bytes(int64_t columns) { return columns + columns / 32 * 12 + columns / 16 * 4; }

  static Activations at(uint8_t* memory, int64_t columns) {
    auto* after = memory + columns;
    const int64_t blocks = columns / 32;
    return {reinterpret_cast<int8_t*>(memory), reinterpret_cast<float*>(after), reinterpret_cast<float*>(after + blocks * 4),
            reinterpret_cast<int32_t*>(after + blocks * 8), reinterpret_cast<int32_t*>(after + blocks * 12)};
  }
};

inline void quantize_row(const float* x, int64_t columns, Activations to) {
  constexpr int PARTS = 32 / LANES;
  for (int64_t block = 0; block < columns / 32; block++, x += 32) {
    vf tops = {}, nothing = {};
    for (int part = 0; part < PARTS; part++) {
      tops = larger(absolute(load(x + part * LANES)), tops);
      nothing += load(x + part * LANES) * 0.0f;
    }
    // With a value that is not finite, the scale is not a number, so that the row's logits show the error. A block of values
    // near the smallest floats counts as 0, because the inverse of its scale would be infinite.
    const float top = largest(tops), broken = sum(nothing);
    const float scale = top / 127.0f + broken, inverse = broken == 0.0f && top > 1e-36f ? 127.0f / top : 0.0f;
    int32_t totals[2] = {0, 0};
    for (int part = 0; part < PARTS; part++) {
      const vf value = broken == 0.0f ? load(x + part * LANES) : vf{};
      const vi rounded = nearest(value * inverse);
      const vb bytes = __builtin_convertvector(rounded, vb);
      std::memcpy(to.values + block * 32 + part * LANES, &bytes, sizeof bytes);
      totals[part * 2 / PARTS] += sum(rounded);
    }
    to.totals_16[2 * block] = totals[0];
    to.totals_16[2 * block + 1] = totals[1];
    to.totals[block] = totals[0] + totals[1];
    to.scales[block] = scale;
    to.sums[block] = scale * static_cast<float>(totals[0] + totals[1]);
  }
}

#if defined(TETRAD_AVX512)
typedef __m512i quanta_vector;
inline quanta_vector load_quanta(const uint8_t* at) { return _mm512_loadu_si512(at); }
inline quanta_vector low_bits(quanta_vector v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
inline quanta_vector high_bits(quanta_vector v) { return low_bits(_mm512_srli_epi16(v, 4)); }
// Return a vector whose bytes have, as their low four bits, the half bytes at `at`; their high bits have no meaning.
inline quanta_vector load_half_bytes(const uint8_t* at) {
  const __m512i wide = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
  return _mm512_or_si512(wide, _mm512_slli_epi16(wide, 4));
}
// Return bits 2 * GROUP and 2 * GROUP + 1 of each byte of `low`, below bit GROUP of each byte of `high`.
template <int GROUP>
inline quanta_vector three_bits(quanta_vector low, quanta_vector high) {
  const __m512i third = GROUP < 3 ? _mm512_slli_epi16(high, 2 - GROUP % 3) : _mm512_srli_epi16(high, 1);
  const __m512i others = _mm512_and_si512(_mm512_srli_epi16(low, 2 * GROUP), _mm512_set1_epi8(3));
  return _mm512_or_si512(others, _mm512_and_si512(third, _mm512_set1_epi8(4)));
}
inline quanta_vector load_table(const uint8_t* at) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline quanta_vector look_up(quanta_vector table, quanta_vector places) { return _mm512_shuffle_epi8(table, places); }
inline quanta_vector four(const int8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return _mm512_set1_epi32(bytes);
}

// Return `start` plus GROUPS dot products of four columns each, for each row of a panel.
template <int BITS, int GROUPS>
inline vi dot_block(const quanta_vector* quanta, const int8_t* values, int32_t start) {
  __m512i even = _mm512_set1_epi32(start), odd = _mm512_setzero_si512();
  for (int group = 0; group < GROUPS; group += 2) {
    even = _mm512_dpbusd_epi32(even, quanta[group], four(values + 4 * group));
    odd = _mm512_dpbusd_epi32(odd, quanta[group + 1], four(values + 4 * group + 4));
  }
  return reinterpret_cast<vi>(_mm512_add_epi32(even, odd));
}
constexpr int OFFSET_OF_8_BITS = 0;

#elif defined(__AVX2__)
typedef __m256i quanta_vector;
inline quanta_vector load_quanta(const uint8_t* at) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)); }
inline quanta_vector low_bits(quanta_vector v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
inline quanta_vector high_bits(quanta_vector v) { return low_bits(_mm256_srli_epi16(v, 4)); }
inline quanta_vector load_half_bytes(const uint8_t* at) {
  const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
  return _mm256_or_si256(wide, _mm256_slli_epi16(wide, 4));
}
template <int GROUP>
inline quanta_vector three_bits(quanta_vector low, quanta_vector high) {
  const __m256i third = GROUP < 3 ? _mm256_slli_epi16(high, 2 - GROUP % 3) : _mm256_srli_epi16(high, 1);
  const __m256i others = _mm256_and_si256(_mm256_srli_epi16(low, 2 * GROUP), _mm256_set1_epi8(3));
  return _mm256_or_si256(others, _mm256_and_si256(third, _mm256_set1_epi8(4)));
}
inline quanta_vector load_table(const uint8_t* at) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
}
inline quanta_vector look_up(quanta_vector table, quanta_vector places) { return _mm256_shuffle_epi8(table, places); }
inline quanta_vector four(const int8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return _mm256_set1_epi32(bytes);
}

// With 4 bits, the sum of eight pairs of products (at most 2 * 15 * 127 each) fits into 16 bits. With 8 bits it does not, so
// the quanta become signed, and |q| is multiplied by a * sign(q).
template <int BITS, int GROUPS>
inline vi dot_block(const quanta_vector* quanta, const int8_t* values, int32_t start) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total = _mm256_set1_epi32(start);
  if constexpr (BITS == 4) {
    __m256i products = _mm256_setzero_si256();
    for (int group = 0; group < GROUPS; group++)
      products = _mm256_add_epi16(products, _mm256_maddubs_epi16(quanta[group], four(values + 4 * group)));
    total = _mm256_add_epi32(total, _mm256_madd_epi16(products, ones));
  } else {
    for (int group = 0; group < GROUPS; group++) {
      const __m256i is_signed = _mm256_xor_si256(quanta[group], _mm256_set1_epi8(-128));
      const __m256i products =
          _mm256_maddubs_epi16(_mm256_abs_epi8(is_signed), _mm256_sign_epi8(four(values + 4 * group), is_signed));
      total = _mm256_add_epi32(total, _mm256_madd_epi16(products, ones));
    }
  }
  return reinterpret_cast<vi>(total);
}
constexpr int OFFSET_OF_8_BITS = 128;

#elif defined(__ARM_FEATURE_DOTPROD)
struct quanta_vector {
  uint8x16_t low, high;
};
inline quanta_vector load_quanta(const uint8_t* at) { return {vld1q_u8(at), vld1q_u8(at + 16)}; }
inline quanta_vector low_bits(quanta_vector v) {
  const uint8x16_t mask = vdupq_n_u8(15);
  return {vandq_u8(v.low, mask), vandq_u8(v.high, mask)};
}
inline quanta_vector high_bits(quanta_vector v) { return {vshrq_n_u8(v.low, 4), vshrq_n_u8(v.high, 4)}; }
inline quanta_vector load_half_bytes(const uint8_t* at) {
  const uint8x16_t halves = vld1q_u8(at), high = vshrq_n_u8(halves, 4);
  return {vzip1q_u8(halves, high), vzip2q_u8(halves, high)};
}
template <int GROUP>
inline uint8x16_t three_bits(uint8x16_t low, uint8x16_t high) {
  const uint8x16_t others = vandq_u8(vshlq_u8(low, vdupq_n_s8(-2 * GROUP)), vdupq_n_u8(3));
  return vorrq_u8(others, vandq_u8(vshlq_u8(high, vdupq_n_s8(2 - GROUP)), vdupq_n_u8(4)));
}
template <int GROUP>
inline quanta_vector three_bits(quanta_vector low, quanta_vector high) {
  return {three_bits<GROUP>(low.low, high.low), three_bits<GROUP>(low.high, high.high)};
}
inline quanta_vector load_table(const uint8_t* at) {
  const uint8x16_t table = vld1q_u8(at);
  return {table, table};
}
inline quanta_vector look_up(quanta_vector table, quanta_vector places) {
  return {vqtbl1q_u8(table.low, places.low), vqtbl1q_u8(table.high, places.high)};
}
inline int8x16_t four(const int8_t* at) {
  int32_t bytes;
  std::memcpy(&bytes, at, sizeof bytes);
  return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

// The instruction for dot products takes signed bytes, so quanta of 8 bits become signed.
template <int BITS>
inline int8x16_t signed_quanta(uint8x16_t quanta) {
  return vreinterpretq_s8_u8(BITS == 4 ? quanta : veorq_u8(quanta, vdupq_n_u8(128)));
}
template <int BITS, int GROUPS>
inline vi dot_block(const quanta_vector* quanta, const int8_t* values, int32_t start) {
  int32x4_t low = vdupq_n_s32(start), high = low;
  for (int group = 0; group < GROUPS; group++) {
    const int8x16_t factors = four(values + 4 * group);
    low = vdotq_s32(low, signed_quanta<BITS>(quanta[group].low), factors);
    high = vdotq_s32(high, signed_quanta<BITS>(quanta[group].high), factors);
  }
  vi total;
  std::memcpy(&total, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&total) + sizeof low, &high, sizeof high);
  return total;
}
constexpr int OFFSET_OF_8_BITS = 128;

#else
struct quanta_vector {
  uint8_t bytes[4 * LANES];
};
inline quanta_vector load_quanta(const uint8_t* at) {
  quanta_vector v;
  std::memcpy(v.bytes, at, sizeof v.bytes);
  return v;
}
inline quanta_vector low_bits(quanta_vector v) {
  for (auto& byte : v.bytes) byte &= 15;
  return v;
}
inline quanta_vector high_bits(quanta_vector v) {
  for (auto& byte : v.bytes) byte >>= 4;
  return v;
}
inline quanta_vector load_half_bytes(const uint8_t* at) {
  quanta_vector v;
  for (int i = 0; i < 4 * LANES; i++) v.bytes[i] = at[i / 2] >> i % 2 * 4;
  return v;
}
template <int GROUP>
inline quanta_vector three_bits(quanta_vector low, quanta_vector high) {
  for (int i = 0; i < 4 * LANES; i++) low.bytes[i] = (low.bytes[i] >> 2 * GROUP & 3) | (high.bytes[i] >> GROUP & 1) << 2;
  return low;
}
inline quanta_vector load_table(const uint8_t* at) {
  quanta_vector table;
  std::memcpy(table.bytes, at, 16);
  return table;
}
inline quanta_vector look_up(quanta_vector table, quanta_vector places) {
  for (auto& byte : places.bytes) byte = table.bytes[byte];
  return places;
}
template <int BITS, int GROUPS>
inline vi dot_block(const quanta_vector* quanta, const int8_t* values, int32_t start) {
  vi total = splat_int(start);
  for (int group = 0; group < GROUPS; group++)
    for (int lane = 0; lane < LANES; lane++)
      for (int i = 0; i < 4; i++) total[lane] += int32_t(quanta[group].bytes[4 * lane + i]) * values[4 * group + i];
  return total;
}
constexpr int OFFSET_OF_8_BITS = 0;
#endif

template <int SCALE_BYTES>
inline vf load_scales(const uint8_t* at) {
  if constexpr (SCALE_BYTES == 2) return load(reinterpret_cast<const half_t*>(at));
  return load(reinterpret_cast<const float*>(at));
}

// The format that a kernel is compiled for. A table maps coded quanta to 8 bits.
template <int ITS_BITS, int ITS_BLOCK, int ITS_SCALE_BYTES, bool ITS_MINIMUM, bool ITS_TABLE = false>
struct Layout {
  static constexpr int BITS = ITS_BITS, BLOCK = ITS_BLOCK, SCALE_BYTES = ITS_SCALE_BYTES;
  static constexpr bool HAS_MINIMUM = ITS_MINIMUM, IS_CODED = ITS_TABLE;
  static constexpr int DOT_BITS = IS_CODED ? 8 : BITS, SHIFT = DOT_BITS == 8 ? OFFSET_OF_8_BITS : 0;
};

// Load a block's quanta, which are packed as in quantum_packing.h.
template <int BITS, int GROUPS>
inline void load_block(const uint8_t* packed, quanta_vector* quanta) {
  constexpr int BYTES = 4 * LANES;
  if constexpr (BITS == 3) {
    const uint8_t* thirds = packed + GROUPS / 4 * BYTES;
    for (int run = 0; run < GROUPS; run += 4, packed += BYTES, thirds += BYTES / 2) {
      const quanta_vector low = load_quanta(packed), high = load_half_bytes(thirds);
      quanta[run] = three_bits<0>(low, high);
      quanta[run + 1] = three_bits<1>(low, high);
      quanta[run + 2] = three_bits<2>(low, high);
      quanta[run + 3] = three_bits<3>(low, high);
    }
  } else if constexpr (BITS == 4) {
    for (int group = 0; group < GROUPS / 2; group++) {
      const quanta_vector both = load_quanta(packed + group * BYTES);
      quanta[group] = low_bits(both);
      quanta[group + GROUPS / 2] = high_bits(both);
    }
  } else {
    for (int group = 0; group < GROUPS; group++) quanta[group] = load_quanta(packed + group * BYTES);
  }
}

// Multiply M rows of x by a panel; out: M rows of QUANTUM_PANEL, `stride` elements apart.
template <int M, typename Of>
inline void multiply_quantized_rows(const Matrix& matrix, const Activations* x, const uint8_t* panel, float* out, int64_t stride) {
  constexpr int BITS = Of::BITS, BLOCK = Of::BLOCK, SCALE_BYTES = Of::SCALE_BYTES, SHIFT = Of::SHIFT;
  constexpr bool HAS_MINIMUM = Of::HAS_MINIMUM;
  constexpr int GROUPS = BLOCK / 4;
  const int32_t shift = SHIFT - matrix.zero;
  quanta_vector table;
  if constexpr (Of::IS_CODED) table = load_table(matrix.table);
  vf total[M] = {};
  for (int64_t block = 0; block < matrix.num_blocks(); block++, panel += matrix.block_bytes()) {
    for (int64_t at = 0; at < matrix.block_bytes(); at += 64) prefetch(panel + AHEAD_BYTES + at);
    const vf scale = load_scales<SCALE_BYTES>(panel);
    const uint8_t* packed = panel + LANES * SCALE_BYTES * (HAS_MINIMUM ? 2 : 1);
    quanta_vector quanta[GROUPS];
    load_block<BITS, GROUPS>(packed, quanta);
    if constexpr (Of::IS_CODED)
      for (int group = 0; group < GROUPS; group++) quanta[group] = look_up(table, quanta[group]);
    for (int row = 0; row < M; row++) {
      // Formats with a minimum have no zero, so only signed quanta need a shift.
      const int32_t start = HAS_MINIMUM && !SHIFT ? 0 : shift * (BLOCK == 32 ? x[row].totals[block] : x[row].totals_16[block]);
      const vi dots = dot_block<Of::DOT_BITS, GROUPS>(quanta, x[row].values + block * BLOCK, start);
      total[row] += to_float(dots) * (scale * x[row].scales[BLOCK == 32 ? block : block / 2]);
    }
    if constexpr (HAS_MINIMUM) {
      const vf minimum = load_scales<SCALE_BYTES>(panel + LANES * SCALE_BYTES);
      for (int row = 0; row < M; row++) {
        if constexpr (BLOCK == 32)
          total[row] += minimum * x[row].sums[block];
        else
          total[row] += minimum * (x[row].scales[block / 2] * static_cast<float>(x[row].totals_16[block]));
      }
    }
  }
  for (int row = 0; row < M; row++) store(out + row * stride, total[row]);
}

template <typename Of>
inline void multiply_quantized_panel(const Matrix& m, int rows, const Activations* x, const uint8_t* panel, float* out, int64_t stride) {
  switch (rows) {
    case 1: return multiply_quantized_rows<1, Of>(m, x, panel, out, stride);
    case 2: return multiply_quantized_rows<2, Of>(m, x, panel, out, stride);
    case 3: return multiply_quantized_rows<3, Of>(m, x, panel, out, stride);
    case 4: return multiply_quantized_rows<4, Of>(m, x, panel, out, stride);
#if defined(TETRAD_AVX512)
    case 5: return multiply_quantized_rows<5, Of>(m, x, panel, out, stride);
    case 6: return multiply_quantized_rows<6, Of>(m, x, panel, out, stride);
    case 7: return multiply_quantized_rows<7, Of>(m, x, panel, out, stride);
    case 8: return multiply_quantized_rows<8, Of>(m, x, panel, out, stride);
#endif
  }
}

// Multiply with the kernel for the matrix's format. Packing produces only these formats; see `weights.py`.
inline void multiply_quantized(const Matrix& m, int rows, const Activations* x, const uint8_t* panel, float* out, int64_t stride) {
  const auto multiply = [&](auto layout) { multiply_quantized_panel<decltype(layout)>(m, rows, x, panel, out, stride); };
  const bool is_half = m.scale_bytes == 2;
  if (m.bits == 3) {
    if (m.block == 16) return multiply(Layout<3, 16, 2, false, true>());
    return multiply(Layout<3, 32, 2, false, true>());
  }
  if (m.is_coded) {
    if (m.block == 16 && is_half) return multiply(Layout<4, 16, 2, false, true>());
    if (m.block == 16) return multiply(Layout<4, 16, 4, false, true>());
    if (is_half) return multiply(Layout<4, 32, 2, false, true>());
    return multiply(Layout<4, 32, 4, false, true>());
  }
  if (m.bits == 4) {
    if (m.block == 16) return multiply(Layout<4, 16, 2, true>());
    if (is_half && m.has_minimum) return multiply(Layout<4, 32, 2, true>());
    if (is_half) return multiply(Layout<4, 32, 2, false>());
    return multiply(Layout<4, 32, 4, true>());
  }
  if (m.block == 16) return multiply(Layout<8, 16, 4, false>());
  if (is_half) return multiply(Layout<8, 32, 2, false>());
  return multiply(Layout<8, 32, 4, true>());
}

}  // namespace tetrad
