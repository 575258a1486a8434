// Packing of quanta: writes rows of quanta with their scales and minima into panels, and reads them back; the layout is that of
// matrix.h.
//
// Within a block, a "group" is four columns, one byte each, of all rows of a panel:
//   8 bits: group after group.
//   4 bits: byte i of a word has group i in its low bits, and the group half a block behind it in its high bits.
//   3 bits: runs of four groups, whose two lower bits share bytes; then, run after run, the third bits of four groups as half
//     bytes.
#pragma once
#include "unpacked_row.h"

namespace tetrad {

// The place of a group's four columns of one row: a word, in whose bytes the quanta begin at bit `shift`.
struct GroupPlace {
  int64_t at;
  int shift;
};

// Return the place of a group; with 3 bits, of the two lower bits.
inline GroupPlace place_of(const Matrix& m, int64_t place, int64_t group) {
  const int64_t bytes = 4 * LANES, half = m.block / 8;
  if (m.bits == 8) return {group * bytes + 4 * place, 0};
  if (m.bits == 4) return {group % half * bytes + 4 * place, group < half ? 0 : 4};
  return {group / 4 * bytes + 4 * place, static_cast<int>(group % 4 * 2)};
}

// Return the place of the third bits of a group with 3 bits: two bytes, in whose halves the bits begin at bit `shift`.
inline GroupPlace third_place_of(const Matrix& m, int64_t place, int64_t group) {
  return {(m.block / 16 * 2 + group / 4) * 2 * LANES + 2 * place, static_cast<int>(group % 4)};
}

// Write a group's four quanta, the bytes of `four`, to memory that is zeroed.
inline void pack_group(const Matrix& m, uint8_t* packed, int64_t place, int64_t group, uint32_t four) {
  const GroupPlace low = place_of(m, place, group);
  uint32_t word;
  std::memcpy(&word, packed + low.at, sizeof word);
  word |= (m.bits == 3 ? four & 0x03030303 : four) << low.shift;
  std::memcpy(packed + low.at, &word, sizeof word);
  if (m.bits != 3) return;
  const GroupPlace third = third_place_of(m, place, group);
  const uint32_t bits = four >> 2 & 0x01010101, halves = bits | bits >> 4;
  uint16_t two;
  std::memcpy(&two, packed + third.at, sizeof two);
  two |= ((halves & 0xff) | (halves >> 8 & 0xff00)) << third.shift;
  std::memcpy(packed + third.at, &two, sizeof two);
}

inline int quantum_at(const Matrix& m, const uint8_t* packed, int64_t place, int64_t column) {
  const GroupPlace low = place_of(m, place, column / 4);
  const int bits = packed[low.at + column % 4] >> low.shift;
  if (m.bits != 3) return m.bits == 8 ? bits : bits & 15;
  const GroupPlace third = third_place_of(m, place, column / 4);
  return (bits & 3) | (packed[third.at + column % 4 / 2] >> (column % 2 * 4 + third.shift) & 1) << 2;
}

// Write an unpacked row to its place in a panel, whose memory must be zeroed.
inline void pack_quantized_row(const Matrix& m, int64_t panel, int64_t place, const UnpackedRow& row) {
  uint8_t* out = m.data + panel * m.panel_bytes();
  for (int64_t block = 0; block < m.num_blocks(); block++, out += m.block_bytes()) {
    const float values[2] = {row.scales[block], row.minima[block]};
    for (int which = 0; which < (m.has_minimum ? 2 : 1); which++) {
      uint8_t* at = out + (which * LANES + place) * m.scale_bytes;
      if (m.scale_bytes == 2) {
        const float16 half = static_cast<float16>(values[which]);
        std::memcpy(at, &half, 2);
      } else {
        std::memcpy(at, &values[which], 4);
      }
    }
    uint8_t* packed = out + m.scales_bytes();
    const uint8_t* quanta = row.quanta + block * m.block;
    for (int64_t group = 0; group < m.block / 4; group++) {
      uint32_t four;
      std::memcpy(&four, quanta + 4 * group, sizeof four);
      pack_group(m, packed, place, group, four);
    }
  }
}

inline void unpack_quantized_row(const Matrix& m, int64_t row, float* out) {
  const uint8_t* at = m.panel(row / QUANTUM_PANEL);
  const int64_t place = row % QUANTUM_PANEL;
  const auto scale_at = [&](int which) {
    const uint8_t* where = at + (which * LANES + place) * m.scale_bytes;
    if (m.scale_bytes == 2) return half_at(where);
    float value;
    std::memcpy(&value, where, 4);
    return value;
  };
  for (int64_t block = 0; block < m.num_blocks(); block++, at += m.block_bytes()) {
    const float scale = scale_at(0), minimum = m.has_minimum ? scale_at(1) : 0.0f;
    const uint8_t* packed = at + m.scales_bytes();
    for (int64_t k = 0; k < m.block; k++) {
      int quantum = quantum_at(m, packed, place, k);
      if (m.is_coded) quantum = m.table[quantum];
      out[block * m.block + k] = scale * static_cast<float>(quantum - m.zero) + minimum;
    }
  }
}

}  // namespace tetrad
