// What is done to one row at a time: norm, activation, quantization, embedding, softmax.
#pragma once
#include <cstring>
#include <type_traits>

#include "math.h"
#include "path.h"

namespace {

using attendant::Activation;
using attendant::Norm;
using attendant::PACKED_GROUP;

constexpr float SMALLEST = 1e-30f;  // a row of zeros has this maximum, and so a scale

// How a row is quantized, from its largest absolute value: q = x * up, scale = maximum / 127.
template <class L>
struct Quantizer {
  float scale;
  typename L::F up;
  explicit Quantizer(typename L::F most) {
    float largest = L::largest(most);
    largest = largest > SMALLEST ? largest : SMALLEST;
    scale = largest / 127.0f;
    up = L::set(127.0f / largest);
  }
  typename L::F quantized(typename L::F x) const {
    return L::min(L::max(L::mul(x, up), L::set(-127.0f)), L::set(127.0f));
  }
};

template <class L>
float sum_of_row(const float* x, int width) {
  typename L::F sum = L::set(0);
  for (int i = 0; i < width; i += 16) sum = L::add(sum, L::load(x + i));
  return L::sum(sum);
}

template <class L>
float sum_of_squares(const float* x, int width, typename L::F mean) {
  typename L::F sum = L::set(0);
  for (int i = 0; i < width; i += 16) {
    const typename L::F away = L::sub(L::load(x + i), mean);
    sum = L::fma(away, away, sum);
  }
  return L::sum(sum);
}

template <class L, int OFFSET>
void norm_row(const float* x, int width, const Norm& norm, float* y, uint8_t* q, float* scale) {
  using F = typename L::F;
  F mean = L::set(0), factor = L::set(1);
  if (norm.gamma) {
    if (!norm.rms) mean = L::set(sum_of_row<L>(x, width) / float(width));
    factor = L::set(1.0f / __builtin_sqrtf(sum_of_squares<L>(x, width, mean) / float(width) + norm.epsilon));
  }
  auto normed = [&](int i) {
    const F value = L::load(x + i);
    if (!norm.gamma) return value;
    return L::fma(L::mul(L::sub(value, mean), factor), L::load(norm.gamma + i), L::load(norm.beta + i));
  };
  F most = L::set(0);
  for (int i = 0; i < width; i += 16) {
    if (!q && !y) break;
    const F value = normed(i);
    if (q) most = L::max(L::abs(value), most);
    if (y && y != x) L::store(y + i, value);
  }
  if (q) {
    const Quantizer<L> quantizer(most);
    *scale = quantizer.scale;
    for (int i = 0; i < width; i += 16) L::store_bytes(q + i, quantizer.quantized(normed(i)), OFFSET);
  }
  if (y == x && norm.gamma)
    for (int i = 0; i < width; i += 16) L::store(y + i, normed(i));
}

template <class L>
[[gnu::always_inline]] inline typename L::F activated(typename L::F x, Activation activation) {
  switch (activation) {
    case Activation::gelu:
      return gelu<L>(x);
    case Activation::silu:
      return silu<L>(x);
    case Activation::gelu_tanh:
      return gelu_tanh<L>(x);
    default:
      return relu<L>(x);
  }
}

template <class L, int OFFSET>
void activate_row(float* x, int width, Activation activation, const float* gate, uint8_t* q, float* scale) {
  using F = typename L::F;
  F most = L::set(0);
  for (int i = 0; i < width; i += 16) {
    F value = activated<L>(L::load(x + i), activation);
    if (gate) value = L::mul(value, L::load(gate + i));
    most = L::max(L::abs(value), most);
    L::store(x + i, value);
  }
  if (!q) return;
  const Quantizer<L> quantizer(most);
  *scale = quantizer.scale;
  for (int i = 0; i < width; i += 16) L::store_bytes(q + i, quantizer.quantized(L::load(x + i)), OFFSET);
}

// d is a multiple of 8: the last 8 values may fill half of the lanes.
template <class L>
float quantize_head(const float* x, int d, int8_t* q) {
  const int whole = d & ~15;
  typename L::F most = L::set(0);
  for (int i = 0; i < whole; i += 16) most = L::max(L::abs(L::load(x + i)), most);
  if (whole < d) most = L::max(L::abs(L::load_half(x + whole)), most);
  const Quantizer<L> quantizer(most);
  for (int i = 0; i < whole; i += 16) L::store_bytes(q + i, quantizer.quantized(L::load(x + i)), 0);
  if (whole < d) L::store_bytes_half(q + whole, quantizer.quantized(L::load_half(x + whole)), 0);
  return quantizer.scale;
}

template <class L>
void embed_int8(const int8_t* column, float scale, const float* position, int width, float* y) {
  alignas(16) int8_t row[16];
  for (int i = 0; i < width; i += 16, column += 4 * PACKED_GROUP) {
    for (int group = 0; group < 4; group++) std::memcpy(row + 4 * group, column + group * PACKED_GROUP, 4);
    L::store(y + i, L::add(L::mul(L::from_int8(row), L::set(scale)), L::load(position + i)));
  }
}

template <class L>
void embed_f32(const float* row, float scale, const float* position, int width, float* y) {
  for (int i = 0; i < width; i += 16)
    L::store(y + i, L::add(L::mul(L::load(row + i), L::set(scale)), L::load(position + i)));
}

template <class L, class = void>
struct HasTranspose : std::false_type {};
template <class L>
struct HasTranspose<L, std::void_t<decltype(&L::transpose)>> : std::true_type {};

// to[c][r] = from[r][c], with zeros up to a multiple of 16 rows
template <class L>
void transpose(const float* from, size_t stride, int rows, int columns, float* to, size_t to_stride) {
  for (int block = 0; block < rows; block += 16) {
    const int count = rows - block < 16 ? rows - block : 16;
    int c = 0;
    if constexpr (HasTranspose<L>::value)
      for (; c + 16 <= columns; c += 16)
        L::transpose(from + block * stride + c, stride, count, to + c * to_stride + block, to_stride);
    for (; c < columns; c++) {
      float* out = to + c * to_stride + block;
      for (int r = 0; r < count; r++) out[r] = from[(block + r) * stride + c];
      for (int r = count; r < 16; r++) out[r] = 0;
    }
  }
}

// The maximum of the row; values from `length` on, up to a multiple of 16, become -infinity.
template <class L>
float largest_of_row(float* x, int length) {
  for (int i = length; i & 15; i++) x[i] = -__builtin_inff();
  typename L::F most = L::load(x);
  for (int i = 16; i < length; i += 16) most = L::max(L::load(x + i), most);
  return L::largest(most);
}

template <class L>
void softmax(float* x, int length, float factor) {
  using F = typename L::F;
  const F most = L::set(largest_of_row<L>(x, length)), scale = L::set(factor);
  F sum = L::set(0);
  for (int i = 0; i < length; i += 16) {
    const F e = exponential<L>(L::mul(L::sub(L::load(x + i), most), scale));
    sum = L::add(sum, e);
    L::store(x + i, e);
  }
  const F share = L::set(1.0f / L::sum(sum));
  for (int i = 0; i < length; i += 16) L::store(x + i, L::mul(L::load(x + i), share));
}

template <class L>
void add_bias(float* x, const float* bias, int length, float factor) {
  for (int i = 0; i < length; i += 16) L::store(x + i, L::fma(L::load(x + i), L::set(factor), L::load(bias + i)));
}

template <class L>
void chunk_sum(float* x, int length, float* most, float* sum) {
  *most = largest_of_row<L>(x, length);
  typename L::F total = L::set(0);
  for (int i = 0; i < length; i += 16) total = L::add(total, exponential<L>(L::sub(L::load(x + i), L::set(*most))));
  *sum = L::sum(total);
}

template <class L>
int find_greater(const float* x, int length, float least, int* found) {
  int count = 0;
  const typename L::F limit = L::set(least);
  for (int i = 0; i < length; i += 16)
    for (unsigned bits = L::greater(L::load(x + i), limit); bits; bits &= bits - 1)
      found[count++] = i + __builtin_ctz(bits);
  return count;
}

}  // namespace
