// 16 lanes of f32 in an array: the definition of what the others do.
#pragma once
#include <cstdint>

namespace {

struct PortableLanes {
  struct F {
    float lane[16];
  };
  struct I {
    int32_t lane[16];
  };

  template <class O>
  static F each(O operation) {
    F out;
    for (int i = 0; i < 16; i++) out.lane[i] = operation(i);
    return out;
  }

  static F load(const float* p) {
    return each([&](int i) { return p[i]; });
  }
  static F load_half(const float* p) {
    return each([&](int i) { return i < 8 ? p[i] : 0; });
  }
  static void store(float* p, F a) {
    for (int i = 0; i < 16; i++) p[i] = a.lane[i];
  }
  static void store_half(float* p, F a) {
    for (int i = 0; i < 8; i++) p[i] = a.lane[i];
  }
  static F set(float a) {
    return each([&](int) { return a; });
  }
  static F add(F a, F b) {
    return each([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static F sub(F a, F b) {
    return each([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static F mul(F a, F b) {
    return each([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static F div(F a, F b) {
    return each([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static F fma(F a, F b, F c) {
    return each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
  }
  static F max(F a, F b) {
    return each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F min(F a, F b) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static F abs(F a) {
    return each([&](int i) { return __builtin_fabsf(a.lane[i]); });
  }
  static F round(F a) {  // to the nearest integer, half to even
    return each([&](int i) { return __builtin_nearbyintf(a.lane[i]); });
  }
  static F power_of_2(F n) {  // of integers from -126 to 127
    return each([&](int i) {
      const int32_t bits = (int32_t(n.lane[i]) + 127) << 23;
      float out;
      __builtin_memcpy(&out, &bits, 4);
      return out;
    });
  }
  static F if_less(F a, F b, F yes, F no) {
    return each([&](int i) { return a.lane[i] < b.lane[i] ? yes.lane[i] : no.lane[i]; });
  }
  static unsigned greater(F a, F b) {
    unsigned bits = 0;
    for (int i = 0; i < 16; i++) bits |= unsigned(a.lane[i] > b.lane[i]) << i;
    return bits;
  }

  static F from_int8(const int8_t* p) {
    return each([&](int i) { return float(p[i]); });
  }
  static F from_int8_half(const int8_t* p) {
    return each([&](int i) { return i < 8 ? float(p[i]) : 0; });
  }
  static F from_int32(I a) {
    return each([&](int i) { return float(a.lane[i]); });
  }
  // Values from -127 to 127, rounded half to even, plus the offset.
  static void store_bytes(void* p, F a, int offset) {
    for (int i = 0; i < 16; i++) static_cast<uint8_t*>(p)[i] = uint8_t(int(__builtin_nearbyintf(a.lane[i])) + offset);
  }
  static void store_bytes_half(void* p, F a, int offset) {
    for (int i = 0; i < 8; i++) static_cast<uint8_t*>(p)[i] = uint8_t(int(__builtin_nearbyintf(a.lane[i])) + offset);
  }

  // The one order of sums over lanes: in each group of four (x0 + x2) + (x1 + x3), then (g0 + g2) + (g1 + g3).
  static float sum(F a) {
    float g[4];
    for (int i = 0; i < 4; i++) {
      const float* x = a.lane + 4 * i;
      g[i] = (x[0] + x[2]) + (x[1] + x[3]);
    }
    return (g[0] + g[2]) + (g[1] + g[3]);
  }
  static void sum4(F a, F b, F c, F d, float* out) {
    out[0] = sum(a);
    out[1] = sum(b);
    out[2] = sum(c);
    out[3] = sum(d);
  }
  static float largest(F a) {
    float most = a.lane[0];
    for (int i = 1; i < 16; i++) most = a.lane[i] > most ? a.lane[i] : most;
    return most;
  }
};

}  // namespace
