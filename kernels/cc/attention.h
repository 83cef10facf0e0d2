// One query over cached keys and values, for some heads. Phase by phase over all heads, so that their chains overlap.
#pragma once
#include "math.h"
#include "path.h"
#include "rows.h"

namespace {

using attendant::Attention;

template <class L>
[[gnu::always_inline]] inline typename L::F cached(const int8_t* p) {
  return L::from_int8(p);
}
template <class L>
[[gnu::always_inline]] inline typename L::F cached(const float* p) {
  return L::load(p);
}
template <class L>
[[gnu::always_inline]] inline typename L::F cached_half(const int8_t* p) {
  return L::from_int8_half(p);
}
template <class L>
[[gnu::always_inline]] inline typename L::F cached_half(const float* p) {
  return L::load_half(p);
}

// scores[j] = query . key[j]; D: the head's size, or 0 where only d tells
template <class L, class T, int D>
void head_scores(const float* query, const T* key, int d, int length, float* scores) {
  using F = typename L::F;
  if (D) d = D;
  const int whole = d & ~15;
  for (int j = 0; j < length; j += 4) {
    F sums[4];
#pragma GCC unroll 4
    for (int e = 0; e < 4; e++) {
      const T* k = key + size_t(j + e < length ? j + e : length - 1) * d;
      sums[e] = L::set(0);
#pragma GCC unroll 8
      for (int i = 0; i < whole; i += 16) sums[e] = L::fma(L::load(query + i), cached<L>(k + i), sums[e]);
      if (whole < d) sums[e] = L::fma(L::load_half(query + whole), cached_half<L>(k + whole), sums[e]);
    }
    L::sum4(sums[0], sums[1], sums[2], sums[3], scores + j);
  }
}

// x[j] *= scale[j] * factor, without reading scales beyond `length`
template <class L>
void scale_scores(float* x, const float* scale, int length, float factor) {
  const int whole = length & ~15;
  for (int j = 0; j < whole; j += 16)
    L::store(x + j, L::mul(L::load(x + j), L::mul(L::load(scale + j), L::set(factor))));
  for (int j = whole; j < length; j++) x[j] = x[j] * (scale[j] * factor);
}

// out = sum of weight[j] * value[j], times `share`
template <class L, class T, int VECTORS>
void head_output(const float* weights, const T* value, int d, int length, float share, float* out) {
  using F = typename L::F;
  F sums[VECTORS];
#pragma GCC unroll 8
  for (int i = 0; i < VECTORS; i++) sums[i] = L::set(0);
  for (int j = 0; j < length; j++) {
    const F weight = L::set(weights[j]);
#pragma GCC unroll 8
    for (int i = 0; i < VECTORS; i++) sums[i] = L::fma(weight, cached<L>(value + size_t(j) * d + 16 * i), sums[i]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < VECTORS; i++) L::store(out + 16 * i, L::mul(sums[i], L::set(share)));
}

template <class L, class T>
void head_output_half(const float* weights, const T* value, int d, int length, float share, float* out) {
  typename L::F sum = L::set(0);
  for (int j = 0; j < length; j++) sum = L::fma(L::set(weights[j]), cached_half<L>(value + size_t(j) * d), sum);
  L::store_half(out, L::mul(sum, L::set(share)));
}

template <class L, class T>
void head_output_of(const float* weights, const T* value, int d, int length, float share, float* out) {
  int at = 0;
  for (; at + 64 <= d; at += 64) head_output<L, T, 4>(weights, value + at, d, length, share, out + at);
  for (; at + 16 <= d; at += 16) head_output<L, T, 1>(weights, value + at, d, length, share, out + at);
  if (at < d) head_output_half<L, T>(weights, value + at, d, length, share, out + at);
}

// exp(score - maximum) in place, zeros up to a multiple of 16; returns 1 / sum
template <class L>
float exponentials(float* x, int length) {
  const typename L::F most = L::set(largest_of_row<L>(x, length));
  typename L::F sum = L::set(0);
  for (int j = 0; j < length; j += 16) {
    const typename L::F e = exponential<L>(L::sub(L::load(x + j), most));
    sum = L::add(sum, e);
    L::store(x + j, e);
  }
  return 1.0f / L::sum(sum);
}

template <class L, class T>
void attend(const Attention& a) {
  const size_t width = size_t(a.length + 15) & ~size_t(15);
  const T *key = static_cast<const T*>(a.key), *value = static_cast<const T*>(a.value);
  auto scores = a.d == 64 ? head_scores<L, T, 64> : a.d == 32 ? head_scores<L, T, 32> : head_scores<L, T, 0>;
  for (int h = 0; h < a.heads; h++)
    scores(a.query + h * a.d, key + h * a.head_stride, a.d, a.length, a.scores + h * width);
  float* shares = a.scores + a.heads * width;
  for (int h = 0; h < a.heads; h++) {
    float* s = a.scores + h * width;
    if (a.key_scale) {
      scale_scores<L>(s, a.key_scale + h * a.scale_stride, a.length, a.factor);
      if (a.bias) add_bias<L>(s, a.bias + h * a.bias_stride, a.length, 1.0f);
    } else if (a.bias) {
      add_bias<L>(s, a.bias + h * a.bias_stride, a.length, a.factor);
    } else {
      for (size_t j = 0; j < width; j += 16) L::store(s + j, L::mul(L::load(s + j), L::set(a.factor)));
    }
    shares[h] = exponentials<L>(s, a.length);
    if (a.value_scale) scale_scores<L>(s, a.value_scale + h * a.scale_stride, a.length, 1.0f);
  }
  auto output = a.d == 64 ? head_output<L, T, 4> : a.d == 32 ? head_output<L, T, 2> : head_output_of<L, T>;
  for (int h = 0; h < a.heads; h++)
    output(a.scores + h * width, value + h * a.head_stride, a.d, a.length, shares[h], a.out + h * a.d);
}

}  // namespace
