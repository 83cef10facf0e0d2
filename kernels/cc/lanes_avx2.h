// 16 lanes of f32 in two 256-bit registers.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Avx2Lanes {
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };

  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F load_half(const float* p) { return {_mm256_loadu_ps(p), _mm256_setzero_ps()}; }
  static void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static void store_half(float* p, F a) { _mm256_storeu_ps(p, a.lo); }
  static F set(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
  static F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static F abs(F a) {
    const __m256 bits = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return {_mm256_and_ps(a.lo, bits), _mm256_and_ps(a.hi, bits)};
  }
  static F round(F a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.lo, nearest), _mm256_round_ps(a.hi, nearest)};
  }
  static __m256 power_of_2(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
  }
  static F power_of_2(F n) { return {power_of_2(n.lo), power_of_2(n.hi)}; }
  static F if_less(F a, F b, F yes, F no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  static unsigned greater(F a, F b) {
    return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ))) |
           unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) << 8;
  }

  static __m256 eight_from_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F from_int8(const int8_t* p) { return {eight_from_int8(p), eight_from_int8(p + 8)}; }
  static F from_int8_half(const int8_t* p) { return {eight_from_int8(p), _mm256_setzero_ps()}; }
  static F from_int32(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static __m128i bytes(F a, int offset) {
    const __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
    const __m128i low = _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    const __m128i high = _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
    return _mm_add_epi8(_mm_packs_epi16(low, high), _mm_set1_epi8(char(offset)));
  }
  static void store_bytes(void* p, F a, int offset) { _mm_storeu_si128(static_cast<__m128i*>(p), bytes(a, offset)); }
  static void store_bytes_half(void* p, F a, int offset) {
    _mm_storel_epi64(static_cast<__m128i*>(p), bytes(a, offset));
  }

  static __m256 sums_of_groups(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    const __m256d ab2 = _mm256_castps_pd(ab), cd2 = _mm256_castps_pd(cd);
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(ab2, cd2)),
                         _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, cd2)));
  }
  static void sum4(F a, F b, F c, F d, float* out) {
    const __m256 half = _mm256_add_ps(sums_of_groups(a.lo, b.lo, c.lo, d.lo), sums_of_groups(a.hi, b.hi, c.hi, d.hi));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }
  static float sum(F a) {
    float out[4];
    sum4(a, a, a, a, out);
    return out[0];
  }
  static float largest(F a) {
    const __m256 m = _mm256_max_ps(a.lo, a.hi);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_shuffle_ps(four, four, 1)));
  }
};

}  // namespace
