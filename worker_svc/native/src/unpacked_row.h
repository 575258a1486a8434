// One row of weights on its way into a panel: quanta, one scale and one minimum a block.
#pragma once
#include "matrix.h"

namespace tetrad {

inline float half_at(const uint8_t* at) {
  float16 value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<float>(value);
}

// Room for `columns` quanta and columns / block scales and minima. Formats without minima leave those as they are.
struct UnpackedRow {
  uint8_t* quanta;
  float* scales;
  float* minima;
};

}  // namespace tetrad
