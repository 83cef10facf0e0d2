// x86-64 with AVX512 and its VNNI: vpdpbusd sums four products of uint8 and int8 into each of 16 lanes.
#include "lanes_avx512.h"
#include "path_table.h"

namespace {

struct Avx512Vnni {
  using Lanes = Avx512Lanes;
  using Weights = __m512i;
  using Row = __m512i;
  static constexpr int OFFSET = 128, ROWS = 12, HALVES = 2, UNROLL = 4;

  static __m512i zero() { return _mm512_setzero_si512(); }
  static __m512i load(const int8_t* p) { return _mm512_loadu_si512(p); }
  static __m512i spread(const uint8_t* p) {
    int four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  // As assembly: with the intrinsic, g++ 12 copies sums to the stack and back.
  static void dot(__m512i& sums, __m512i row, __m512i weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(row), "v"(weights));
  }
  static __m512i plus(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
  static __m512i without_offset(__m512i sums, const int32_t* of_columns) {
    return _mm512_sub_epi32(sums, _mm512_slli_epi32(_mm512_loadu_si512(of_columns), 7));
  }
};

}  // namespace

const attendant::Path attendant::path_avx512vnni = make_path<Avx512Vnni, 24>("avx512vnni");
