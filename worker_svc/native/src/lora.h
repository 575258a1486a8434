// LoRA: low-rank changes of products. A token's adapter adds b (a x) to the base model's product: `shrink` computes a x for a
// range of ranks, `expand` adds its product with b to a range of outputs. Tokens with the same adapter are computed together,
// so that its matrices are loaded once for all of them. Each token has separate sums, which do not depend on the tokens beside
// it.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <type_traits>

#include "vec.h"

namespace tetrad {

// The change of one module of a fused product.
struct LoraPart {
  int64_t first, count;  // the module's range of outputs; `first` is a multiple of LANES
  int64_t offset, rank;  // the module's range in a x
  const void* b;         // [blocks of LANES outputs][rank][LANES]; the last block is padded
  float scale;           // factor of the change
};

// The changes of one adapter to one product. Without parts, the adapter does not change the product.
struct LoraSite {
  // Return the start of one rank's row of a.
  const uint8_t* row(int64_t which, int64_t columns) const { return static_cast<const uint8_t*>(a) + which * columns * bits / 8; }

  int64_t rank;      // sum over all parts
  int64_t num_parts;
  const void* a;     // [rank, columns]; for a table of embeddings [vocabulary, rank] in float32
  const LoraPart* parts;
  int32_t bits, is_bfloat;  // type of the elements of a and b, as in Matrix
};

constexpr int64_t RANKS_AT_ONCE = 8;  // ranks of one work item
constexpr int64_t LINE_BYTES = 64;    // a line of the processor's cache
constexpr int64_t ROWS_AT_ONCE = 4;   // maximum number of rows that share one load of their adapter's matrices

// Rows with the same adapter.
struct AdaptedRows {
  int64_t count;  // at most ROWS_AT_ONCE
  const float* from[ROWS_AT_ONCE];
  float* to[ROWS_AT_ONCE];
};

// For each row and each rank k from `first` up to `last`, set to[k] to the product of a[k] and from. A row's sums do not depend
// on the number of rows. Meanwhile prefetch as many bytes from `ahead` on as are read of a.
template <typename Element, int ROWS>
inline void shrink_as(const LoraSite& site, const AdaptedRows& rows, int64_t columns, int64_t first, int64_t last,
                      const uint8_t* ahead) {
  constexpr int64_t RANKS = ROWS > 2 ? RANKS_AT_ONCE / 2 : RANKS_AT_ONCE;  // as many sums as fit the registers
  constexpr int64_t BYTES = RANKS * LANES * sizeof(Element);               // bytes of a that one pass of the inner loop reads
  for (int64_t rank = first; rank < last; rank += RANKS) {
    const int64_t count = last - rank < RANKS ? last - rank : RANKS;
    const Element* a[RANKS];
    for (int64_t k = 0; k < RANKS; k++) a[k] = static_cast<const Element*>(site.a) + (rank + (k < count ? k : 0)) * columns;
    vf sums[ROWS][RANKS] = {};
    int64_t i = 0;
    for (; i + LANES <= columns; i += LANES) {
      for (int64_t line = 0; line < BYTES; line += LINE_BYTES) prefetch(ahead + line);
      ahead += BYTES;
      vf values[ROWS];
      for (int row = 0; row < ROWS; row++) values[row] = load(rows.from[row] + i);
      for (int64_t k = 0; k < RANKS; k++) {
        const vf weights = load(a[k] + i);
        for (int row = 0; row < ROWS; row++) sums[row][k] += values[row] * weights;
      }
    }
    for (int row = 0; row < ROWS; row++)
      for (int64_t k = 0; k < count; k++) {
        float total = sum(sums[row][k]);
        for (int64_t j = i; j < columns; j++) total += rows.from[row][j] * to_float(a[k][j]);
        rows.to[row][rank + k] = total;
      }
  }
}

// Add the adapter's change to outputs `first` .. `first + size` of each row.
template <typename Element, int ROWS>
inline void expand_as(const LoraSite& site, const AdaptedRows& rows, int64_t first, int64_t size) {
  for (int64_t block = first; block < first + size; block += LANES)
    for (int64_t p = 0; p < site.num_parts; p++) {
      const LoraPart& part = site.parts[p];
      const int64_t place = block - part.first;
      if (place < 0 || place >= part.count) continue;
      const Element* b = static_cast<const Element*>(part.b) + place * part.rank;
      // Four sums, each over every fourth rank, so that no multiply-add waits for the previous one.
      vf sums[ROWS][4] = {};
      int64_t k = 0;
      for (; k + 4 <= part.rank; k += 4)
        for (int64_t i = 0; i < 4; i++) {
          const vf weights = load(b + (k + i) * LANES);
          for (int row = 0; row < ROWS; row++) sums[row][i] += weights * rows.from[row][part.offset + k + i];
        }
      for (; k < part.rank; k++) {
        const vf weights = load(b + k * LANES);
        for (int row = 0; row < ROWS; row++) sums[row][0] += weights * rows.from[row][part.offset + k];
      }
      for (int row = 0; row < ROWS; row++) {
        const vf change = ((sums[row][0] + sums[row][1]) + (sums[row][2] + sums[row][3])) * part.scale;
        float* to = rows.to[row] + (block - first);
        store(to, load(to) + change);
      }
    }
}

// Call `work` with a value of the elements' type, and with the number of rows as a compile-time constant.
template <typename Work>
inline void with_rows(const LoraSite& site, const AdaptedRows& rows, Work work) {
  const auto with_element = [&](auto count) {
    if (site.bits == 32) return work(float{}, count);
    if (site.is_bfloat) return work(bfloat_t{}, count);
    work(half_t{}, count);
  };
  switch (rows.count) {
    case 1: return with_element(std::integral_constant<int, 1>{});
    case 2: return with_element(std::integral_constant<int, 2>{});
    case 3: return with_element(std::integral_constant<int, 3>{});
    case 4: return with_element(std::integral_constant<int, 4>{});
  }
}

// See shrink_as. `ahead`: the rows of a that the thread most likely reads next.
inline void shrink(const LoraSite& site, const AdaptedRows& rows, int64_t columns, int64_t first, int64_t last, const uint8_t* ahead) {
  with_rows(site, rows, [&](auto element, auto count) {
    shrink_as<decltype(element), count>(site, rows, columns, first, last, ahead);
  });
}

// Prefetch the part of b that `expand` reads for outputs `first` .. `first + size`.
inline void fetch_b(const LoraSite& site, int64_t first, int64_t size) {
  for (int64_t p = 0; p < site.num_parts; p++) {
    const LoraPart& part = site.parts[p];
    const int64_t place = first - part.first, row_bytes = part.rank * site.bits / 8;
    if (place < 0 || place >= part.count) continue;
    const uint8_t* b = static_cast<const uint8_t*>(part.b) + place * row_bytes;
    for (int64_t line = 0; line < size * row_bytes; line += LINE_BYTES) prefetch(b + line);
  }
}

// See expand_as; `first` and `size` are multiples of LANES.
inline void expand(const LoraSite& site, const AdaptedRows& rows, int64_t first, int64_t size) {
  with_rows(site, rows, [&](auto element, auto count) { expand_as<decltype(element), count>(site, rows, first, size); });
}

// Add the adapter's change to a token's row of the embedding table.
inline void adapt_embedding(const LoraSite& its, int64_t id, int64_t size, float* out) {
  AdaptedRows rows{1, {static_cast<const float*>(its.a) + id * its.rank}, {}};
  for (int64_t first = 0; first < size; first += LANES) {
    float block[LANES] = {};
    const int64_t count = std::min<int64_t>(LANES, size - first);
    std::memcpy(block, out + first, count * sizeof(float));
    rows.to[0] = block;
    expand(its, rows, first, LANES);
    std::memcpy(out + first, block, count * sizeof(float));
  }
}

// Sort row indices by the pointers of the rows; rows with equal pointers keep their order.
inline void sort_rows(const LoraSite* const* of, int64_t count, uint8_t* order) {
  for (int64_t i = 0; i < count; i++) order[i] = static_cast<uint8_t>(i);
  std::sort(order, order + count, [&](uint8_t a, uint8_t b) { return of[a] != of[b] ? std::less<>()(of[a], of[b]) : a < b; });
}

}  // namespace tetrad
