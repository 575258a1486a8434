// LoRA: low-rank changes of products. A token's adapter adds b (a x) to what the base model computes for it: `shrink` makes
// a x for some ranks, `expand` adds its product with b to a few outputs. Each token by itself, so that its results do not depend
// on the tokens beside it.
#pragma once
#include "vec.h"

namespace tetrad {

// The change of one module of a fused product.
struct LoraPart {
  int64_t first, count;  // its outputs; `first` is a multiple of LANES
  int64_t offset, rank;  // its share of a x
  const void* b;         // [blocks of LANES outputs][rank][LANES]; the last block is padded
  float scale;           // of what b adds
};

// What an adapter changes of one product. Without parts: nothing.
struct LoraSite {
  int64_t rank;      // of all parts together
  int64_t num_parts;
  const void* a;     // [rank, columns]; of a table of embeddings [vocabulary, rank] float32
  const LoraPart* parts;
  int32_t bits, is_bfloat;  // of the elements of a and b, as those of a matrix
};

constexpr int64_t RANKS_AT_ONCE = 8;

// out[k] = a[k] x for ranks `first` up to `last`.
template <typename Element>
inline void shrink_as(const LoraSite& site, const float* x, int64_t columns, int64_t first, int64_t last, float* out) {
  for (int64_t rank = first; rank < last; rank += RANKS_AT_ONCE) {
    const int64_t count = last - rank < RANKS_AT_ONCE ? last - rank : RANKS_AT_ONCE;
    const Element* rows[RANKS_AT_ONCE];
    for (int64_t k = 0; k < RANKS_AT_ONCE; k++)
      rows[k] = static_cast<const Element*>(site.a) + (rank + (k < count ? k : 0)) * columns;
    vf sums[RANKS_AT_ONCE] = {};
    int64_t i = 0;
    for (; i + LANES <= columns; i += LANES) {
      const vf value = load(x + i);
      for (int64_t k = 0; k < RANKS_AT_ONCE; k++) sums[k] += value * load(rows[k] + i);
    }
    for (int64_t k = 0; k < count; k++) {
      float total = sum(sums[k]);
      for (int64_t j = i; j < columns; j++) total += x[j] * to_float(rows[k][j]);
      out[rank + k] = total;
    }
  }
}

template <typename Element>
inline void expand_as(const LoraSite& site, const float* shrunk, int64_t first, int64_t size, float* out) {
  for (int64_t block = first; block < first + size; block += LANES)
    for (int64_t p = 0; p < site.num_parts; p++) {
      const LoraPart& part = site.parts[p];
      const int64_t place = block - part.first;
      if (place < 0 || place >= part.count) continue;
      const Element* b = static_cast<const Element*>(part.b) + place * part.rank;
      // Sums of every fourth rank, so that no multiply-add waits for the one before.
      const float* t = shrunk + part.offset;
      vf sums[4] = {};
      int64_t k = 0;
      for (; k + 4 <= part.rank; k += 4)
        for (int64_t i = 0; i < 4; i++) sums[i] += load(b + (k + i) * LANES) * t[k + i];
      for (; k < part.rank; k++) sums[0] += load(b + k * LANES) * t[k];
      const vf change = ((sums[0] + sums[1]) + (sums[2] + sums[3])) * part.scale;
      store(out + (block - first), load(out + (block - first)) + change);
    }
}

// See shrink_as.
inline void shrink(const LoraSite& site, const float* x, int64_t columns, int64_t first, int64_t last, float* out) {
  if (site.bits == 32) return shrink_as<float>(site, x, columns, first, last, out);
  if (site.is_bfloat) return shrink_as<bfloat_t>(site, x, columns, first, last, out);
  shrink_as<half_t>(site, x, columns, first, last, out);
}

// Add the change of outputs `first` .. `first + size` to out; `first` and `size` are multiples of LANES.
inline void expand(const LoraSite& site, const float* shrunk, int64_t first, int64_t size, float* out) {
  if (site.bits == 32) return expand_as<float>(site, shrunk, first, size, out);
  if (site.is_bfloat) return expand_as<bfloat_t>(site, shrunk, first, size, out);
  expand_as<half_t>(site, shrunk, first, size, out);
}

}  // namespace tetrad
