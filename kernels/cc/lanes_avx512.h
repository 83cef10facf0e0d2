// 16 lanes of f32 in one 512-bit register.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

struct Avx512Lanes {
  using F = __m512;
  using I = __m512i;

  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load_half(const float* p) { return _mm512_maskz_loadu_ps(0xff, p); }
  static void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static void store_half(float* p, F a) { _mm512_mask_storeu_ps(p, 0xff, a); }
  static F set(float a) { return _mm512_set1_ps(a); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F abs(F a) { return _mm512_abs_ps(a); }
  static F round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F power_of_2(F n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
  }
  static F if_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static unsigned greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }

  static F from_int8(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  static F from_int8_half(const int8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  static F from_int32(I a) { return _mm512_cvtepi32_ps(a); }
  static __m128i bytes(F a, int offset) {
    return _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(offset)));
  }
  static void store_bytes(void* p, F a, int offset) { _mm_storeu_si128(static_cast<__m128i*>(p), bytes(a, offset)); }
  static void store_bytes_half(void* p, F a, int offset) {
    _mm_storel_epi64(static_cast<__m128i*>(p), bytes(a, offset));
  }

  static void sum4(F a, F b, F c, F d, float* out) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512d ab2 = _mm512_castps_pd(ab), cd2 = _mm512_castps_pd(cd);
    __m512 groups =
        _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)), _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(groups), _mm512_extractf32x8_ps(groups, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }
  static float sum(F a) {
    __m512 pairs = _mm512_add_ps(a, _mm512_permute_ps(a, 0x4e));
    __m512 groups = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xb1));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(groups), _mm512_extractf32x8_ps(groups, 1));
    return _mm_cvtss_f32(_mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
  }
  // to[c][r] = from[r][c], of 16 columns and `rows` rows, at most 16; zeros for the others.
  static void transpose(const float* from, size_t stride, int rows, float* to, size_t to_stride) {
    F r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) r[i] = i < rows ? load(from + size_t(i) * stride) : set(0);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {  // r[i + j]: in its quarter k, of four rows column 4k + j
      for (int half = 0; half < 2; half++) {
        const __m512d a = _mm512_castps_pd(t[i + half]), b = _mm512_castps_pd(t[i + 2 + half]);
        r[i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
      const F even = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88), odd = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
      const F even2 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
      const F odd2 = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
      store(to + size_t(j) * to_stride, _mm512_shuffle_f32x4(even, even2, 0x88));
      store(to + size_t(4 + j) * to_stride, _mm512_shuffle_f32x4(odd, odd2, 0x88));
      store(to + size_t(8 + j) * to_stride, _mm512_shuffle_f32x4(even, even2, 0xdd));
      store(to + size_t(12 + j) * to_stride, _mm512_shuffle_f32x4(odd, odd2, 0xdd));
    }
  }
  static float largest(F a) { return _mm512_reduce_max_ps(a); }
};

}  // namespace
