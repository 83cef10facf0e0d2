// What the two paths of ARM64 share: 16 columns in four registers, activations as signed bytes.
#pragma once
#include "lanes_neon.h"

namespace {

struct DotNeon {
  using Lanes = NeonLanes;
  struct Weights {
    int8x16_t v[4];
  };
  using Row = int8x16_t;
  static constexpr int OFFSET = 0, ROWS = 6, HALVES = 1, UNROLL = 2;

  static NeonLanes::I zero() {
    const int32x4_t none = vdupq_n_s32(0);
    return {{none, none, none, none}};
  }
  static Weights load(const int8_t* p) { return {{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}}; }
  static Row spread(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
  // sdot: four products of int8 summed into each of four lanes
  static void dot(NeonLanes::I& sums, Row row, const Weights& weights) {
    for (int i = 0; i < 4; i++) sums.v[i] = vdotq_s32(sums.v[i], weights.v[i], row);
  }
  static NeonLanes::I plus(NeonLanes::I a, NeonLanes::I b) {
    for (int i = 0; i < 4; i++) a.v[i] = vaddq_s32(a.v[i], b.v[i]);
    return a;
  }
  static NeonLanes::I without_offset(NeonLanes::I sums, const int32_t*) { return sums; }
};

}  // namespace
