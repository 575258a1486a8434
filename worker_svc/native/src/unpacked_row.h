// One row of weights before it is packed into a panel: quanta, one scale and one minimum per block.
#pragma once
#include "matrix.h"

namespace tetrad {

inline float half_at(const uint8_t* at) {
  float16 value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<float>(value);
}

// Memory for `columns` quanta and columns / block scales and minima. Some formats without minima leave the minima unwritten.
struct UnpackedRow {
  uint8_t* quanta;
  float* scales;
  float* minima;
};

}  // namespace tetrad
