// What the two paths with 256-bit registers share: 16 columns in two registers.
#pragma once
#include "lanes_avx2.h"

namespace {

struct Dot256 {
  using Lanes = Avx2Lanes;
  using Weights = Avx2Lanes::I;
  using Row = __m256i;
  static constexpr int OFFSET = 128, HALVES = 1;

  static Weights zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static Weights load(const void* p) {
    const __m256i* w = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(w), _mm256_loadu_si256(w + 1)};
  }
  static Row spread(const uint8_t* p) {
    int four;
    __builtin_memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  static Weights plus(Weights a, Weights b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
  static Weights without_offset(Weights sums, const int32_t* of_columns) {
    const Weights columns = load(of_columns);
    return {_mm256_sub_epi32(sums.lo, _mm256_slli_epi32(columns.lo, 7)),
            _mm256_sub_epi32(sums.hi, _mm256_slli_epi32(columns.hi, 7))};
  }
};

}  // namespace
