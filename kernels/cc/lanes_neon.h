// 16 lanes of f32 in four 128-bit registers.
#pragma once
#include <arm_neon.h>

#include <cstdint>

namespace {

struct NeonLanes {
  struct F {
    float32x4_t v[4];
  };
  struct I {
    int32x4_t v[4];
  };

  template <class O>
  [[gnu::always_inline]] static F each(O operation) {
    return {{operation(0), operation(1), operation(2), operation(3)}};
  }

  static F load(const float* p) {
    return each([&](int i) { return vld1q_f32(p + 4 * i); });
  }
  static F load_half(const float* p) {
    return each([&](int i) { return i < 2 ? vld1q_f32(p + 4 * i) : vdupq_n_f32(0); });
  }
  static void store(float* p, F a) {
    for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, a.v[i]);
  }
  static void store_half(float* p, F a) {
    for (int i = 0; i < 2; i++) vst1q_f32(p + 4 * i, a.v[i]);
  }
  static F set(float a) {
    return each([&](int) { return vdupq_n_f32(a); });
  }
  static F add(F a, F b) {
    return each([&](int i) { return vaddq_f32(a.v[i], b.v[i]); });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return vsubq_f32(a.v[i], b.v[i]); });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return vmulq_f32(a.v[i], b.v[i]); });
  }
  static F div(F a, F b) {
    return each([&](int i) { return vdivq_f32(a.v[i], b.v[i]); });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); });
  }
  static F max(F a, F b) {  // b where either is no number, as elsewhere
    return each([&](int i) { return vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  static F min(F a, F b) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]); });
  }
  static F abs(F a) {
    return each([&](int i) { return vabsq_f32(a.v[i]); });
  }
  static F round(F a) {
    return each([&](int i) { return vrndnq_f32(a.v[i]); });
  }
  static F power_of_2(F n) {
    return each([&](int i) {
      return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127)), 23));
    });
  }
  static F if_less(F a, F b, F yes, F no) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]); });
  }
  static unsigned greater(F a, F b) {
    const uint32x4_t places = {1, 2, 4, 8};
    unsigned bits = 0;
    for (int i = 0; i < 4; i++) bits |= vaddvq_u32(vandq_u32(vcgtq_f32(a.v[i], b.v[i]), places)) << (4 * i);
    return bits;
  }

  static F from_int16(int16x8_t low, int16x8_t high) {
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
  }
  static F from_int8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    return from_int16(vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
  }
  static F from_int8_half(const int8_t* p) { return from_int16(vmovl_s8(vld1_s8(p)), vdupq_n_s16(0)); }
  static F from_int32(I a) {
    return each([&](int i) { return vcvtq_f32_s32(a.v[i]); });
  }
  static int8x16_t bytes(F a, int offset) {
    const int16x8_t low = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[0])), vmovn_s32(vcvtnq_s32_f32(a.v[1])));
    const int16x8_t high = vcombine_s16(vmovn_s32(vcvtnq_s32_f32(a.v[2])), vmovn_s32(vcvtnq_s32_f32(a.v[3])));
    return vaddq_s8(vcombine_s8(vmovn_s16(low), vmovn_s16(high)), vdupq_n_s8(int8_t(offset)));
  }
  static void store_bytes(void* p, F a, int offset) { vst1q_s8(static_cast<int8_t*>(p), bytes(a, offset)); }
  static void store_bytes_half(void* p, F a, int offset) {
    vst1_s8(static_cast<int8_t*>(p), vget_low_s8(bytes(a, offset)));
  }

  static float32x4_t sums_of_group(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d) {
    const float32x4_t ab = vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b));
    const float32x4_t cd = vaddq_f32(vzip1q_f32(c, d), vzip2q_f32(c, d));
    const float64x2_t ab2 = vreinterpretq_f64_f32(ab), cd2 = vreinterpretq_f64_f32(cd);
    return vaddq_f32(vreinterpretq_f32_f64(vzip1q_f64(ab2, cd2)), vreinterpretq_f32_f64(vzip2q_f64(ab2, cd2)));
  }
  static void sum4(F a, F b, F c, F d, float* out) {
    float32x4_t g[4];
    for (int i = 0; i < 4; i++) g[i] = sums_of_group(a.v[i], b.v[i], c.v[i], d.v[i]);
    vst1q_f32(out, vaddq_f32(vaddq_f32(g[0], g[2]), vaddq_f32(g[1], g[3])));
  }
  static float sum(F a) {
    float out[4];
    sum4(a, a, a, a, out);
    return out[0];
  }
  static float largest(F a) {
    const F rest{{a.v[2], a.v[3], a.v[2], a.v[3]}};
    const F two = max(a, rest);
    const F one = max(two, F{{two.v[1], two.v[1], two.v[1], two.v[1]}});
    return vmaxvq_f32(one.v[0]);
  }
};

}  // namespace
