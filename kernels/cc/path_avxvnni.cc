// x86-64 with AVX-VNNI: vpdpbusd on 256-bit registers, in processors without AVX512.
#include "dot_avx2.h"
#include "path_table.h"

namespace {

struct AvxVnni : Dot256 {
  static constexpr int ROWS = 6, UNROLL = 4;

  static __m256i dot(__m256i sums, __m256i row, __m256i weights) {
#ifdef __AVXVNNI__
    return _mm256_dpbusd_avx_epi32(sums, row, weights);
#else  // the tests compile this file for AVX512VL too, whose instruction is the same, to run it where AVX-VNNI is
       // missing
    return _mm256_dpbusd_epi32(sums, row, weights);
#endif
  }
  static void dot(Weights& sums, Row row, const Weights& weights) {
    sums.lo = dot(sums.lo, row, weights.lo);
    sums.hi = dot(sums.hi, row, weights.hi);
  }
};

}  // namespace

const attendant::Path attendant::path_avxvnni = make_path<AvxVnni, 6>("avxvnni");
