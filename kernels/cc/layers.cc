#include "layers.h"

#include <algorithm>

namespace attendant {

using ort::Type;

Product Weights::product(const char* what, int k, int n) {
  Product product;
  product.int8 = int8_;
  product.k = k;
  product.n = n;
  const auto take = [&](const char* part, Type type, std::vector<int64_t> shape) {
    return definition_.constant(next_++, (std::string(what) + part).c_str(), type, std::move(shape)).data;
  };
  if (!int8_) {
    product.weight = static_cast<const float*>(take("'s weight", Type::f32, {(n + 31) / 32, k, 32}));
    product.bias = static_cast<const float*>(take("'s bias", Type::f32, {n}));
    return product;
  }
  const int64_t blocks = (n + 31) / 32;
  Int8Weights& w = product.packed;
  w.k = k;
  w.n = n;
  w.packed = static_cast<const int8_t*>(take("'s weight", Type::i8, {blocks, k / 4, 2, 16, 4}));
  w.scale = static_cast<const float*>(take("'s scale", Type::f32, {blocks * 32}));
  w.sums = static_cast<const int32_t*>(take("'s sums", Type::i32, {blocks * 32}));
  w.bias = static_cast<const float*>(take("'s bias", Type::f32, {blocks * 32}));
  return product;
}

int Weights::rows_ahead(int skipped) const {
  const size_t input = next_ + size_t(skipped) * (int8_ ? 4 : 2);
  const int64_t rows =
      int8_ ? 4 * definition_.constant(input, "a product's weight", Type::i8, {-1, -1, 2, 16, 4}).shape[1]
            : definition_.constant(input, "a product's weight", Type::f32, {-1, -1, 32}).shape[1];
  definition_.require(rows > 0 && rows % 16 == 0 && rows <= 1 << 24, "a product of ", rows,
                      " features: it must be a multiple of 16");
  return int(rows);
}

Norm Weights::norm(const char* what, int width, float epsilon) {
  const std::string name(what);
  Norm norm{};
  norm.gamma = definition_.constant(next_++, (name + "'s gamma").c_str(), Type::f32, {width}).as<const float>();
  norm.beta = definition_.constant(next_++, (name + "'s beta").c_str(), Type::f32, {width}).as<const float>();
  norm.epsilon = epsilon;
  const int64_t rms = definition_.integer_or("rms", 0);
  definition_.require(rms == 0 || rms == 1, "the attribute rms is ", rms, ", not 0 or 1");
  norm.rms = rms == 1;
  return norm;
}

RelativeBias Weights::bias(int heads, bool later) {
  RelativeBias bias;
  const int64_t largest = definition_.integer_or("relative", 0);
  definition_.require(largest >= 0 && largest <= 1 << 20, "the attribute relative is ", largest,
                      ", not a distance from 0 to 1048576");
  if (largest == 0) return bias;
  const int64_t distances = (later ? 2 : 1) * largest + 1;
  bias.table = definition_.constant(next_++, "bias", Type::f32, {heads, distances}).as<const float>();
  bias.largest = int(largest);
  bias.distances = int(distances);
  return bias;
}

void RelativeBias::spread(int head, int first, int count, float* to) const {
  const float* row = table + size_t(head) * size_t(distances);
  for (int i = 0; i < count; i++) to[i] = row[std::min(std::max(first + i + largest, 0), distances - 1)];
}

Activation activation_of(const Definition& definition) {
  const std::string name = definition.word("activation");
  if (name == "relu") return Activation::relu;
  if (name == "gelu") return Activation::gelu;
  if (name == "silu" || name == "gated_silu") return Activation::silu;
  if (name == "gated_gelu") return Activation::gelu_tanh;
  definition.require(false, "the activation ", name,
                     " is unknown: relu, gelu, silu, gated_gelu and gated_silu are known");
  return Activation::relu;
}

bool is_gated(const Definition& definition) { return definition.word("activation").compare(0, 6, "gated_") == 0; }

int head_size(const Definition& definition, int width, int64_t heads) {
  definition.require(width % 16 == 0, "the width ", width, " is not a multiple of 16");
  const int64_t head = definition.integer_or("head", 0);
  if (head == 0) {
    definition.require(heads > 0 && heads <= width && width % heads == 0 && width / heads % 8 == 0, "a width of ",
                       width, " in ", heads, " heads: a head's size must be a multiple of 8");
    return int(width / heads);
  }
  definition.require(head > 0 && head <= 1 << 16 && heads > 0 && heads <= 1 << 16 && head % 8 == 0 &&
                         head * heads % 16 == 0 && head * heads <= 1 << 24,
                     heads, " heads of ", head, ": a head's size must be a multiple of 8, all together of 16");
  return int(head);
}

Activations Workers::room(Frame& frame, const Product& product, int rows, int width) {
  Activations a;
  if (product.int8) {
    a.q = frame.take<uint8_t>(size_t(rows) * size_t(width));
    a.scale = frame.take<float>(size_t(rows));
  } else {
    a.f32 = frame.take<float>(size_t(rows) * size_t(width));
  }
  return a;
}

void Workers::prepare(const float* x, int rows, int width, const Norm& norm, float* y, const Product& to,
                      Activations& a) {
  const size_t step = size_t(width);
  a.f32_stride = step;
  each_row(rows, 3 * width, [&](int row) {
    const float* from = x + row * step;
    float* normed = y ? y + row * step : nullptr;
    if (to.int8) {
      path_.norm_row(from, width, norm, normed, a.q + row * step, a.scale + row);
    } else {
      if (normed) path_.norm_row(from, width, norm, normed, nullptr, nullptr);
      if (normed) from = normed;
      path_.norm_row(from, width, normed ? Norm{} : norm, a.f32 + row * step, nullptr, nullptr);
    }
  });
}

void Workers::normalize(const float* x, int rows, int width, const Norm& norm, float* y) {
  const size_t step = size_t(width);
  each_row(rows, 2 * width,
           [&](int row) { path_.norm_row(x + row * step, width, norm, y + row * step, nullptr, nullptr); });
}

void Workers::activate(float* x, int rows, int width, Activation activation, bool gated, const Product& to,
                       Activations& a) {
  const size_t w = size_t(width), step = gated ? 2 * w : w;
  each_row(rows, 2 * width, [&](int row) {
    float* from = x + row * step;
    const float* gate = gated ? from + w : nullptr;
    if (to.int8)
      path_.activate_row(from, width, activation, gate, a.q + row * w, a.scale + row);
    else
      path_.activate_row(from, width, activation, gate, nullptr, nullptr);
  });
  if (!to.int8) a.f32 = x, a.f32_stride = step;
}

void Workers::multiply(const Product& product, const Activations& a, int rows, float* y, size_t stride,
                       const float* add) {
  const int blocks = (product.n + 31) / 32;
  const double operations = double(rows) * product.k * product.n * (product.int8 ? 1 : 4);
  int parts = 1;
  if (team_.size() > 1 && operations > 1.5e5)
    parts = std::min(blocks, std::max(team_.size(), std::min(4 * team_.size(), int(std::min(operations / 4e5, 1e6)))));
  team_.parallel(parts, [&](int part) {
    const int first = int(int64_t(part) * blocks / parts), last = int(int64_t(part + 1) * blocks / parts);
    if (product.int8) {
      const size_t column = size_t(first) * 32;
      path_.int8_product(
          {&product.packed, a.q, a.scale, rows, first, last, y + column, stride, add ? add + column : nullptr, stride});
    } else {
      path_.f32_product({product.weight, 32, size_t(32) * size_t(product.k), product.bias, a.f32, a.f32_stride,
                         product.k, rows, 32 * first, std::min(32 * last, product.n), y, stride, add, stride, nullptr});
    }
  });
}

}  // namespace attendant
