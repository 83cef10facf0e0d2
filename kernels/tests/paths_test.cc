// Every path against plain loops in double precision, and all paths against the portable one, bit by bit.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "test.h"

using namespace attendant;

namespace {

const Path& portable() { return path_portable; }

struct PackedWeights {
  int k, n;
  std::vector<int8_t> plain, packed;
  std::vector<float> scale, bias;
  std::vector<int32_t> sums;
  Int8Weights view() const { return {k, n, packed.data(), scale.data(), sums.data(), bias.data()}; }

  PackedWeights(Random& random, int k, int n) : k(k), n(n), plain(random.bytes(size_t(k) * size_t(n), 63)) {
    const size_t columns = size_t(n + 31) / 32 * 32;
    packed.resize(columns * size_t(k));
    scale.resize(columns, 1);
    bias.resize(columns);
    sums.resize(columns);
    const std::vector<float> random_scale = random.floats(columns, 0.01f), random_bias = random.floats(columns);
    for (int c = 0; c < n; c++) {
      scale[size_t(c)] = std::fabs(random_scale[size_t(c)]);
      bias[size_t(c)] = random_bias[size_t(c)];
      for (int r = 0; r < k; r++) {
        const int8_t weight = plain[size_t(r) * size_t(n) + size_t(c)];
        packed[(((size_t(c) / 32) * (size_t(k) / 4) + size_t(r) / 4) * 2 + size_t(c) / 16 % 2) * 64 +
               size_t(c) % 16 * 4 + size_t(r) % 4] = weight;
        sums[size_t(c)] += weight;
      }
    }
  }
};

// Rows quantized by a path's own rule, and their product.
std::vector<float> int8_result(const Path& path, const PackedWeights& w, const std::vector<float>& x, int rows,
                               const float* add) {
  std::vector<uint8_t> q(size_t(rows) * size_t(w.k));
  std::vector<float> scale(static_cast<size_t>(rows)), y(size_t(rows) * size_t(w.n + 31), -7);
  for (int r = 0; r < rows; r++)
    path.norm_row(x.data() + r * w.k, w.k, Norm{}, nullptr, q.data() + r * w.k, scale.data() + r);
  const Int8Weights view = w.view();
  path.int8_product(
      {&view, q.data(), scale.data(), rows, 0, view.blocks(), y.data(), size_t(w.n + 31), add, size_t(w.n)});
  return y;
}

double quantized(float x, float most) { return std::nearbyint(x * (127.0f / most)); }

}  // namespace

TEST(int8_products_are_exact_sums_times_scales) {
  Random random(1);
  for (int trial = 0; trial < 60; trial++) {
    const int k = 16 * random.between(1, 20), n = 16 * random.between(1, 12);
    const int rows = trial < 30 ? trial + 1 : random.between(1, 210);
    const PackedWeights w(random, k, n);
    const std::vector<float> x = random.floats(size_t(rows) * size_t(k)), add = random.floats(size_t(rows) * size_t(n));
    const float* added = trial % 2 ? add.data() : nullptr;
    const std::vector<float> expected = int8_result(portable(), w, x, rows, added);
    for (int r = 0; r < rows; r += 7) {
      float most = 1e-30f;
      for (int i = 0; i < k; i++) most = std::fmax(most, std::fabs(x[size_t(r * k + i)]));
      for (int c = 0; c < n; c += 5) {
        double sum = 0;
        for (int i = 0; i < k; i++) sum += quantized(x[size_t(r * k + i)], most) * w.plain[size_t(i * n + c)];
        double y = sum * double(most / 127.0f * w.scale[size_t(c)]) + double(w.bias[size_t(c)]);
        if (added) y += double(add[size_t(r * n + c)]);
        CHECK(std::fabs(double(expected[size_t(r * (n + 31) + c)]) - y) < 1e-5 * (1 + std::fabs(y)));
      }
      for (int c = n; c < n + 31; c++) CHECK(expected[size_t(r * (n + 31) + c)] == -7);  // nothing beyond is written
    }
    for (const Path* path : paths()) CHECK(same_bits(int8_result(*path, w, x, rows, added), expected));
  }
}

TEST(a_row_of_a_product_does_not_depend_on_the_others) {
  Random random(2);
  const PackedWeights w(random, 64, 96);
  const std::vector<float> x = random.floats(40 * 64);
  for (const Path* path : paths()) {
    const std::vector<float> all = int8_result(*path, w, x, 40, nullptr);
    for (int r = 0; r < 40; r++) {
      const std::vector<float> row(x.begin() + r * 64, x.begin() + (r + 1) * 64);
      const std::vector<float> alone = int8_result(*path, w, row, 1, nullptr);
      CHECK(!std::memcmp(alone.data(), all.data() + r * (96 + 31), 96 * 4));
    }
  }
}

TEST(f32_products_are_chains_of_fused_multiply_adds) {
  Random random(3);
  for (int trial = 0; trial < 50; trial++) {
    const int k = random.between(1, 70), n = 16 * random.between(1, 30),
              rows = trial < 26 ? trial + 1 : random.between(1, 60);
    const std::vector<float> x = random.floats(size_t(rows * k)), w = random.floats(size_t(k * n)),
                             bias = random.floats(size_t(n)), add = random.floats(size_t(rows * n));
    std::vector<float> expected(size_t(rows * n));
    for (int r = 0; r < rows; r++)
      for (int c = 0; c < n; c++) {
        float sum = 0;
        for (int i = 0; i < k; i++) sum = std::fma(x[size_t(r * k + i)], w[size_t(i * n + c)], sum);
        expected[size_t(r * n + c)] = sum + bias[size_t(c)] + add[size_t(r * n + c)];
      }
    std::vector<float> room(size_t(32 * k)), packed(size_t((n + 31) / 32 * 32 * k));
    for (int i = 0; i < k; i++)
      for (int c = 0; c < n; c++) packed[size_t((c / 32 * k + i) * 32 + c % 32)] = w[size_t(i * n + c)];
    for (const Path* path : paths()) {
      std::vector<float> y(size_t(rows * n));
      path->f32_product({w.data(), size_t(n), 32, bias.data(), x.data(), size_t(k), k, rows, 0, n, y.data(), size_t(n),
                         add.data(), size_t(n), trial % 2 ? room.data() : nullptr});
      CHECK(same_bits(y, expected));
      std::fill(y.begin(), y.end(), 0.0f);
      path->f32_product({packed.data(), 32, size_t(32 * k), bias.data(), x.data(), size_t(k), k, rows, 0, n, y.data(),
                         size_t(n), add.data(), size_t(n), nullptr});
      CHECK(same_bits(y, expected));
    }
  }
}

TEST(products_with_a_table_agree_on_every_path) {
  Random random(4);
  for (int trial = 0; trial < 20; trial++) {
    const int k = 16 * random.between(1, 9), words = random.between(1, 90), rows = random.between(1, 9);
    const std::vector<float> table = random.floats(size_t(words * k)), x = random.floats(size_t(rows * k)),
                             bias = random.floats(size_t(words));
    const int first = random.between(0, words - 1);
    const size_t stride = size_t(words);
    std::vector<float> expected(size_t(rows) * stride);
    portable().table_product({table.data(), bias.data(), x.data(), k, rows, first, words, expected.data(), stride});
    for (int r = 0; r < rows; r++)
      for (int c = first; c < words; c++) {
        double sum = double(bias[size_t(c)]);
        for (int i = 0; i < k; i++) sum += double(x[size_t(r * k + i)]) * double(table[size_t(c * k + i)]);
        CHECK(std::fabs(sum - double(expected[size_t(r) * stride + size_t(c - first)])) < 1e-4);
      }
    for (const Path* path : paths()) {
      std::vector<float> y(size_t(rows) * stride);
      path->table_product({table.data(), bias.data(), x.data(), k, rows, first, words, y.data(), stride});
      CHECK(same_bits(y, expected));
    }
  }
}

TEST(rows_are_normed_and_quantized_the_same_on_every_path) {
  Random random(5);
  for (int width = 16; width <= 400; width += 16) {
    const size_t w = size_t(width);
    std::vector<float> x = random.floats(w, 3), gamma = random.floats(w), beta = random.floats(w);
    if (width == 32) std::fill(x.begin(), x.end(), 0.0f);
    const Norm norm{gamma.data(), beta.data(), 1e-5f, width % 3 == 0};
    double mean = 0, variance = 0;
    for (float value : x) mean += norm.rms ? 0 : double(value) / width;
    for (float value : x) variance += (double(value) - mean) * (double(value) - mean) / width;
    for (const Path* path : paths()) {
      for (bool normed : {true, false}) {
        std::vector<float> y(w), expected(w), in_place = x;
        std::vector<uint8_t> q(w), q_expected(w), q_in_place(w);
        float scale = 0, scale_expected = 0, scale_in_place = 0;
        const Norm used = normed ? norm : Norm{};
        portable().norm_row(x.data(), width, used, expected.data(), q_expected.data(), &scale_expected);
        path->norm_row(x.data(), width, used, y.data(), q.data(), &scale);
        path->norm_row(in_place.data(), width, used, in_place.data(), q_in_place.data(), &scale_in_place);
        CHECK(same_bits(y, expected) && same_bits(in_place, expected));
        CHECK(scale == scale_expected && scale == scale_in_place && q == q_in_place);
        const int offset = uint8_t(q[0] - q_expected[0]);  // 0 or 128, by path
        for (size_t i = 0; i < w; i++) {
          CHECK(uint8_t(q_expected[i] + offset) == q[i]);
          const double value = (double(x[i]) - mean) / std::sqrt(variance + 1e-5) * double(gamma[i]) + double(beta[i]);
          if (normed) CHECK(std::fabs(value - double(y[i])) < 1e-5 * (1 + std::fabs(value)));
          CHECK(std::fabs(double(int8_t(q_expected[i])) * double(scale) - double(y[i])) <= double(scale) * 0.5001);
        }
      }
    }
  }
}

TEST(activations_are_those_of_the_mathematicians) {
  std::vector<float> x;
  for (float value = -20; value <= 20; value += 0.01f) x.push_back(value);
  x.resize(x.size() / 16 * 16);
  x[0] = -1e30f, x[1] = 1e30f, x[2] = 0;
  const int width = int(x.size());
  for (const Path* path : paths())
    for (Activation activation : {Activation::relu, Activation::gelu, Activation::silu, Activation::gelu_tanh}) {
      std::vector<float> y = x, expected = x;
      std::vector<uint8_t> q(x.size());
      float scale = 0;
      path->activate_row(y.data(), width, activation, nullptr, q.data(), &scale);
      portable().activate_row(expected.data(), width, activation, nullptr, nullptr, nullptr);
      CHECK(same_bits(y, expected));
      std::vector<float> gated = x;
      const std::vector<float> gate(x.size(), -1.5f);
      path->activate_row(gated.data(), width, activation, gate.data(), nullptr, nullptr);
      for (size_t i = 0; i < x.size(); i++) {
        const double v = double(x[i]);
        const double right = activation == Activation::relu   ? std::fmax(v, 0)
                             : activation == Activation::gelu ? v * 0.5 * std::erfc(-v / std::sqrt(2.0))
                             : activation == Activation::silu
                                 ? v / (1 + std::exp(-v))
                                 : v * 0.5 * (1 + std::tanh(0.7978845608 * (v + 0.044715 * v * v * v)));
        CHECK(std::fabs(double(y[i]) - right) <= 4e-7 * (1 + std::fabs(right)));
        CHECK(gated[i] == y[i] * -1.5f);
      }
    }
}

namespace {

struct Heads {
  int heads, d, length, slots;
  std::vector<float> query, key_f32, value_f32, key_scale, value_scale;
  std::vector<int8_t> key, value;

  Heads(Random& random, int heads, int d, int length)
      : heads(heads), d(d), length(length), slots(length + random.between(0, 5)) {
    const size_t count = size_t(heads * slots * d);
    query = random.floats(size_t(heads * d));
    key_f32 = random.floats(count), value_f32 = random.floats(count);
    key.resize(count), value.resize(count), key_scale.resize(size_t(heads * slots)), value_scale = key_scale;
    for (int i = 0; i < heads * slots; i++) {
      key_scale[size_t(i)] = portable().quantize_head(key_f32.data() + i * d, d, key.data() + i * d);
      value_scale[size_t(i)] = portable().quantize_head(value_f32.data() + i * d, d, value.data() + i * d);
    }
  }

  std::vector<float> attend(const Path& path, bool int8, const float* bias = nullptr, size_t bias_stride = 0) const {
    std::vector<float> out(size_t(heads * d)), scores(size_t(heads) * (size_t(length + 15) / 16 * 16 + 1));
    Attention a{};
    a.heads = heads, a.d = d, a.length = length;
    a.query = query.data();
    a.head_stride = size_t(slots * d);
    a.factor = 1 / std::sqrt(float(d));
    a.scores = scores.data();
    a.out = out.data();
    a.bias = bias, a.bias_stride = bias_stride;
    if (int8) {
      a.key = key.data(), a.value = value.data();
      a.key_scale = key_scale.data(), a.value_scale = value_scale.data(), a.scale_stride = size_t(slots);
      path.attend_int8(a);
    } else {
      a.key = key_f32.data(), a.value = value_f32.data();
      path.attend_f32(a);
    }
    return out;
  }

  double right(bool int8, int head, int feature, const float* bias = nullptr) const {
    std::vector<double> score(static_cast<size_t>(length));
    double most = -1e300, sum = 0, out = 0;
    for (int j = 0; j < length; j++) {
      const size_t slot = size_t(head * slots + j);
      for (int i = 0; i < d; i++) {
        const size_t at = slot * size_t(d) + size_t(i);
        const double k = int8 ? double(key[at]) * double(key_scale[slot]) : double(key_f32[at]);
        score[size_t(j)] += double(query[size_t(head * d + i)]) * k / std::sqrt(double(d));
      }
      if (bias) score[size_t(j)] += double(bias[j]);
      most = std::fmax(most, score[size_t(j)]);
    }
    for (int j = 0; j < length; j++) {
      const size_t slot = size_t(head * slots + j), at = slot * size_t(d) + size_t(feature);
      const double weight = std::exp(score[size_t(j)] - most);
      sum += weight;
      out += weight * (int8 ? double(value[at]) * double(value_scale[slot]) : double(value_f32[at]));
    }
    return out / sum;
  }
};

}  // namespace

TEST(attention_is_a_softmax_over_cached_keys_of_every_head_size) {
  Random random(6);
  for (int d = 8; d <= 136; d += 8)
    for (int length : {1, 2, 15, 16, 17, 40, 67}) {
      const Heads heads(random, random.between(1, 5), d, length);
      for (bool int8 : {true, false}) {
        const std::vector<float> expected = heads.attend(portable(), int8);
        for (const Path* path : paths()) CHECK(same_bits(heads.attend(*path, int8), expected));
        const int head = random.between(0, heads.heads - 1), feature = random.between(0, d - 1);
        CHECK(std::fabs(double(expected[size_t(head * d + feature)]) - heads.right(int8, head, feature)) < 2e-6);
      }
    }
}

TEST(a_bias_on_scores_is_added_to_them_before_the_softmax) {
  Random random(9);
  for (int length : {1, 16, 21, 67}) {
    const Heads heads(random, 3, 24, length);
    const size_t stride = size_t(length + 15) / 16 * 16;
    const std::vector<float> bias = random.floats(3 * stride, 2);
    for (bool int8 : {true, false}) {
      const std::vector<float> expected = heads.attend(portable(), int8, bias.data(), stride);
      for (const Path* path : paths()) CHECK(same_bits(heads.attend(*path, int8, bias.data(), stride), expected));
      CHECK(std::fabs(double(expected[24 + 5]) - heads.right(int8, 1, 5, bias.data() + stride)) < 2e-6);
    }
  }
}

TEST(softmax_and_its_chunks_agree_on_every_path) {
  Random random(7);
  for (int length = 1; length <= 530; length += length < 40 ? 1 : 49) {
    const size_t padded = size_t(length + 15) / 16 * 16;
    std::vector<float> x = random.floats(padded, 5), expected = x, chunk = x;
    if (length > 3) x[1] = expected[1] = chunk[1] = -200;  // its exponential is zero
    portable().softmax(expected.data(), length, 0.5f);
    float most, sum;
    portable().chunk_sum(chunk.data(), length, &most, &sum);
    double total = 0, right = 0;
    for (int i = 0; i < length; i++)
      total += double(expected[size_t(i)]), right += std::exp(double(x[size_t(i)]) - double(most));
    CHECK(std::fabs(total - 1) < 1e-6 && std::fabs(right - double(sum)) < 1e-5 * right);
    for (const Path* path : paths()) {
      std::vector<float> y = x, z = x;
      path->softmax(y.data(), length, 0.5f);
      CHECK(same_bits(y, expected));
      float path_most, path_sum;
      path->chunk_sum(z.data(), length, &path_most, &path_sum);
      CHECK(path_most == most && path_sum == sum);
      std::vector<int> found(padded);
      const int count = path->find_greater(z.data(), length, 1.0f, found.data());
      int known = 0;
      for (int i = 0; i < length; i++)
        if (x[size_t(i)] > 1.0f) CHECK(known < count && found[size_t(known++)] == i);
      CHECK(known == count);
    }
  }
}

TEST(transposes_and_embeddings_agree_on_every_path) {
  Random random(8);
  for (const Path* path : paths())
    for (int rows : {1, 7, 16, 33})
      for (int columns : {8, 24, 64}) {
        const size_t stride = size_t(columns + 5), padded = size_t(rows + 15) / 16 * 16;
        const std::vector<float> x = random.floats(stride * size_t(rows));
        std::vector<float> y(padded * size_t(columns), -1);
        path->transpose(x.data(), stride, rows, columns, y.data(), padded);
        for (int c = 0; c < columns; c++)
          for (size_t r = 0; r < padded; r++)
            CHECK(y[size_t(c) * padded + r] == (r < size_t(rows) ? x[r * stride + size_t(c)] : 0));
      }
  const std::vector<int8_t> row = random.bytes(48, 63);
  std::vector<int8_t> column(12 * PACKED_GROUP);  // in a block of 32 columns
  for (size_t i = 0; i < 48; i++) column[i / 4 * PACKED_GROUP + i % 4] = row[i];
  const std::vector<float> words = random.floats(48), position = random.floats(48);
  for (const Path* path : paths()) {
    std::vector<float> y(48), z(48);
    path->embed_int8(column.data(), 0.3f, position.data(), 48, y.data());
    path->embed_f32(words.data(), 0.3f, position.data(), 48, z.data());
    for (size_t i = 0; i < 48; i++) {
      const float a = float(row[i]) * 0.3f, b = words[i] * 0.3f;
      CHECK(y[i] == a + position[i] && z[i] == b + position[i]);
    }
  }
}
