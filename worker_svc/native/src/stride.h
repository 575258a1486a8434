// A stride: KEY_VECTORS vectors of keys of a sequence, which attention processes at once.
#pragma once
#include "softmax.h"

namespace tetrad {

// The location of LANES tokens: a page and the first of their slots.
template <typename Element>
struct Group {
  const Element* page;
  int64_t slot;
};

// Keys begin .. end of a sequence, at most STRIDE of them.
template <typename Element>
struct Stride {
  int64_t begin, end;
  Group<Element> groups[KEY_VECTORS];

  int num_keys() const { return static_cast<int>(end - begin); }
  int first_key(int64_t hidden) const { return hidden > begin ? static_cast<int>(hidden - begin) : 0; }
};

// The queries of a tile's rows under one KV head.
template <int ROWS, typename Element>
struct Queries {
  const float* rows[ROWS];

  void take(int row, const float* query, int64_t) { rows[row] = query; }
};

}  // namespace tetrad
