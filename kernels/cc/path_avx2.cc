// x86-64 with AVX2 and FMA. vpmaddubsw sums two products of uint8 and int8 into 16 bits, with saturation; weights of 7
// bits keep it away: 2 * 255 * 63 = 32,130. vpmaddwd with ones then sums two of them into 32 bits.
#include "dot_avx2.h"
#include "path_table.h"

namespace {

struct Avx2 : Dot256 {
  static constexpr int ROWS = 4, UNROLL = 2;

  static __m256i dot(__m256i sums, __m256i row, __m256i weights) {
    return _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_maddubs_epi16(row, weights), _mm256_set1_epi16(1)));
  }
  static void dot(Weights& sums, Row row, const Weights& weights) {
    sums.lo = dot(sums.lo, row, weights.lo);
    sums.hi = dot(sums.hi, row, weights.hi);
  }
};

}  // namespace

const attendant::Path attendant::path_avx2 = make_path<Avx2, 6>("avx2");
