// Plain C++, on any processor: what every other path must agree with.
#include "lanes_portable.h"
#include "path_table.h"

namespace {

struct Portable {
  using Lanes = PortableLanes;
  using Weights = const int8_t*;
  using Row = const int8_t*;
  static constexpr int OFFSET = 0, ROWS = 4, HALVES = 1, UNROLL = 1;

  static PortableLanes::I zero() { return {}; }
  static const int8_t* load(const int8_t* p) { return p; }
  static const int8_t* spread(const uint8_t* p) { return reinterpret_cast<const int8_t*>(p); }
  static void dot(PortableLanes::I& sums, const int8_t* row, const int8_t* weights) {
    for (int c = 0; c < 16; c++)
      sums.lane[c] += row[0] * weights[4 * c] + row[1] * weights[4 * c + 1] + row[2] * weights[4 * c + 2] +
                      row[3] * weights[4 * c + 3];
  }
  static PortableLanes::I plus(PortableLanes::I a, const PortableLanes::I& b) {
    for (int c = 0; c < 16; c++) a.lane[c] += b.lane[c];
    return a;
  }
  static PortableLanes::I without_offset(const PortableLanes::I& sums, const int32_t*) { return sums; }
};

}  // namespace

// 24, as with AVX512: so the tiles that only wide registers take are tested on every machine.
const attendant::Path attendant::path_portable = make_path<Portable, 24>("portable");
