// Whole operators with the fake onnxruntime: the same bits on every path, with any number of threads, for each row
// alone; errors for what is out of range. (What they compute is tested against numpy, in onnxruntime itself:
// tests/kernels.)
#include <cmath>
#include <cstring>

#include "fake_onnxruntime.h"
#include "operator.h"
#include "test.h"

using namespace attendant;
using ort::Type;

namespace {

struct Builder {
  Random random;
  bool int8;
  Fake node;

  Builder(unsigned seed, bool int8) : random(seed), int8(int8) {
    node.integers["int8"] = int8;
    node.floats["epsilon"] = 1e-5f;
    node.words["activation"] = "gelu";
  }
  template <class T>
  void add(Type type, std::vector<int64_t> shape, const std::vector<T>& values, bool constant) {
    node.inputs.push_back(OrtValue::of(type, std::move(shape), values));
    node.constant.push_back(constant);
  }
  void floats(std::vector<int64_t> shape, float spread, bool constant) {
    size_t count = 1;
    for (int64_t size : shape) count *= size_t(size);
    add(Type::f32, shape, random.floats(count, spread), constant);
  }
  void integers(const std::vector<int64_t>& values) { add(Type::i64, {int64_t(values.size())}, values, false); }
  void product(int64_t k, int64_t n) {
    if (!int8) {
      floats({(n + 31) / 32, k, 32}, 1 / std::sqrt(float(k)), true);
      floats({n}, 0.3f, true);
      return;
    }
    const int64_t blocks = (n + 31) / 32;
    const std::vector<int8_t> packed = random.bytes(size_t(blocks * 32 * k), 63);
    std::vector<int32_t> sums(size_t(blocks * 32));
    for (size_t i = 0; i < packed.size(); i++)
      sums[i / (size_t(k) * 32) * 32 + i / 64 % 2 * 16 + i / 4 % 16] += packed[i];
    add(Type::i8, {blocks, k / 4, 2, 16, 4}, packed, true);
    add(Type::f32, {blocks * 32}, std::vector<float>(size_t(blocks * 32), 0.03f / std::sqrt(float(k))), true);
    add(Type::i32, {blocks * 32}, sums, true);
    floats({blocks * 32}, 0.3f, true);
  }
  void norm(int64_t width) {
    floats({width}, 1, true);
    floats({width}, 0.3f, true);
  }
  void cache(int64_t rows, int64_t heads, int64_t slots, int64_t d) {
    for (int side = 0; side < 2; side++) {
      if (int8)
        add(Type::i8, {rows, heads, slots, d}, random.bytes(size_t(rows * heads * slots * d), 127), false);
      else
        floats({rows, heads, slots, d}, 1, false);
    }
    if (int8)
      add(Type::f32, {rows, 2, heads, slots}, std::vector<float>(size_t(rows * 2 * heads * slots), 0.01f), false);
  }
  void outputs(std::vector<Type> types) {
    for (Type type : types) {
      node.outputs.push_back({type, {}, {}});
      node.aliases.push_back(-1);
    }
  }
};

std::vector<char> run(const Declaration& declaration, Fake node, const Path& path, int threads) {
  const auto op = declaration.create(Definition(node.api(), node.info(), declaration.name, Machine{&path, threads}));
  op->run(Run(node.api(), node.context(), declaration.name));
  std::vector<char> all;
  for (const OrtValue& output : node.outputs) all.insert(all.end(), output.bytes.begin(), output.bytes.end());
  return all;
}

void same_everywhere(const Declaration& declaration, const Fake& node) {
  const std::vector<char> expected = run(declaration, node, path_portable, 1);
  for (const Path* path : paths())
    for (int threads : {1, 2, 4}) CHECK(run(declaration, node, *path, threads) == expected);
}

std::string error_of(const Declaration& declaration, const Fake& node) {
  try {
    run(declaration, node, *paths()[0], 1);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// What models with relative positions have besides: RMSNorm, a gate, heads of a size of their own.
void make_relative(Builder& b) {
  b.node.integers["rms"] = 1;
  b.node.integers["relative"] = 5;
  b.node.integers["head"] = 32;
  b.node.words["activation"] = "gated_gelu";
}

Builder decoder(bool int8, int rows, bool pre_norm, int width = 48, int heads = 2, bool relative = false) {
  Builder b(unsigned(rows) + 100, int8);
  const int sources = 3, past = 9, slots = 21, wide = 80, d = relative ? 32 : width / heads, inner = heads * d;
  b.node.integers["heads"] = heads;
  b.node.integers["pre_norm"] = pre_norm;
  std::vector<int64_t> position, source_row;
  for (int r = 0; r < rows; r++) position.push_back(b.random.between(0, past - 1)), source_row.push_back(r % sources);
  b.floats({rows, width}, 1, false);
  b.integers(position);
  b.integers(source_row);
  b.integers({21, 1, 7});
  b.cache(rows, heads, past, d);
  b.cache(sources, heads, slots, d);
  b.product(width, 3 * inner);
  b.product(inner, width);
  b.product(width, inner);
  b.product(inner, width);
  b.product(width, relative ? 2 * wide : wide);
  b.product(wide, width);
  for (int i = 0; i < 3; i++) b.norm(width);
  if (relative) make_relative(b), b.floats({heads, 6}, 1, true);
  const Type cached = int8 ? Type::i8 : Type::f32;
  b.outputs({Type::f32, cached, cached});
  if (int8) b.outputs({Type::f32});
  return b;
}

Builder encoder(bool int8, const std::vector<int64_t>& lengths, bool pre_norm, int width = 48, int heads = 2,
                bool relative = false) {
  Builder b(unsigned(lengths.size()), int8);
  b.node.integers["heads"] = heads;
  b.node.integers["pre_norm"] = pre_norm;
  const int inner = relative ? heads * 32 : width;
  int64_t tokens = 0;
  for (int64_t length : lengths) tokens += length;
  b.floats({tokens, width}, 1, false);
  b.integers(lengths);
  b.integers(lengths);
  b.product(width, 3 * inner);
  b.product(inner, width);
  b.product(width, relative ? 160 : 80);
  b.product(80, width);
  for (int i = 0; i < 2; i++) b.norm(width);
  if (relative) make_relative(b), b.floats({heads, 11}, 1, true);
  b.outputs({Type::f32});
  return b;
}

Builder vocabulary_of(bool int8, int rows, int words, int64_t top) {
  Builder b(unsigned(words), int8);
  b.node.integers["vocabulary"] = words;
  b.node.integers["norm"] = 1;
  b.floats({rows, 32}, 1, false);
  if (int8) {
    b.product(32, words);
  } else {
    b.floats({words, 32}, 1, true);
    b.floats({words}, 1, true);
  }
  b.norm(32);
  b.integers({top});
  b.integers(std::vector<int64_t>(size_t(rows), 1));
  b.outputs({Type::f32, Type::i64, Type::f32});
  return b;
}

}  // namespace

TEST(decoder_layers_have_the_same_bits_on_every_path_and_any_threads) {
  for (bool int8 : {true, false})
    for (int rows : {1, 2, 5, 13, 26}) same_everywhere(decoder_layer(), decoder(int8, rows, rows % 2).node);
}

TEST(encoder_layers_have_the_same_bits_on_every_path_and_any_threads) {
  for (bool int8 : {true, false})
    for (const auto& lengths :
         std::vector<std::vector<int64_t>>{{1}, {5}, {130}, {3, 40, 1}, std::vector<int64_t>(50, 6)})
      same_everywhere(encoder_layer(), encoder(int8, lengths, lengths.size() % 2).node);
}

TEST(layers_with_relative_positions_have_the_same_bits_on_every_path_and_any_threads) {
  for (bool int8 : {true, false})
    for (int rows : {1, 13}) {
      same_everywhere(decoder_layer(), decoder(int8, rows, true, 48, 2, true).node);
      same_everywhere(encoder_layer(), encoder(int8, {int64_t(7 * rows), 1, 130}, true, 48, 2, true).node);
    }
}

TEST(a_table_of_relative_positions_of_another_size_is_refused_when_the_kernel_is_made) {
  Builder b = decoder(true, 1, true, 48, 2, true);
  b.node.integers["relative"] = 6;
  CHECK(error_of(decoder_layer(), b.node).find("bias has the shape (2, 6), not (2, 7)") != std::string::npos);
  Builder c = encoder(false, {3}, true, 48, 2, true);
  c.node.integers["head"] = 12;
  CHECK(error_of(encoder_layer(), c.node).find("2 heads of 12: a head's size must be") != std::string::npos);
}

TEST(vocabularies_have_the_same_bits_on_every_path_and_any_threads) {
  for (bool int8 : {true, false})
    for (int rows : {1, 7, 100})
      for (int words : {5, 600, 1100})
        same_everywhere(vocabulary(), vocabulary_of(int8, rows, words, rows == 7 ? 2000 : 4).node);
}

TEST(cross_keys_and_values_have_the_same_bits_on_every_path_and_any_threads) {
  for (bool int8 : {true, false})
    for (int sources : {1, 30}) {
      Builder b(unsigned(sources), int8);
      b.node.integers["heads"] = 2;
      const std::vector<int64_t> lengths(size_t(sources), 7);
      b.floats({int64_t(sources) * 7, 48}, 1, false);
      b.add(Type::i64, {sources, 9}, std::vector<int64_t>(size_t(sources) * 9), false);
      b.integers(lengths);
      b.product(48, 96);
      const Type cached = int8 ? Type::i8 : Type::f32;
      b.outputs({cached, cached});
      if (int8) b.outputs({Type::f32});
      same_everywhere(cross_keys_values(), b.node);
    }
}

TEST(a_cache_that_is_bound_in_place_gets_one_entry) {
  for (bool int8 : {true, false}) {
    Builder b = decoder(int8, 5, true);
    Fake copied = b.node, bound = b.node;
    for (size_t i = 1; i < bound.aliases.size(); i++) bound.aliases[i] = int(3 + i);
    const auto op =
        decoder_layer().create(Definition(copied.api(), copied.info(), "DecoderLayer", Machine{paths()[0], 1}));
    op->run(Run(copied.api(), copied.context(), "DecoderLayer"));
    const auto again =
        decoder_layer().create(Definition(bound.api(), bound.info(), "DecoderLayer", Machine{paths()[0], 1}));
    again->run(Run(bound.api(), bound.context(), "DecoderLayer"));
    CHECK(copied.outputs[0].bytes == bound.outputs[0].bytes);
    for (size_t i = 1; i < bound.aliases.size(); i++) {
      CHECK(copied.outputs[i].bytes == bound.inputs[3 + i].bytes);
      CHECK(copied.outputs[i].bytes != b.node.inputs[3 + i].bytes);
    }
  }
}

TEST(what_is_out_of_range_is_an_error_that_says_so) {
  const auto with = [](size_t input, std::vector<int64_t> values) {
    Builder b = decoder(true, 3, true);
    b.node.inputs[input] = OrtValue::of(Type::i64, {int64_t(values.size())}, values);
    return error_of(decoder_layer(), b.node);
  };
  CHECK(with(1, {0, 9, 0}).find("position 9 of row 1 is outside the cache of 9 slots") != std::string::npos);
  CHECK(with(1, {0, 0, -1}).find("position -1 of row 2") != std::string::npos);
  CHECK(with(2, {3, 0, 0}).find("source_row 3 of row 0 is outside the 3 sources") != std::string::npos);
  CHECK(with(3, {1, 22, 1}).find("source_length 22 of source 1 is outside 0 to 21") != std::string::npos);
  CHECK(with(1, {0, 0}).find("position has the shape (2), not (3)") != std::string::npos);
}

TEST(weights_of_another_size_or_kind_are_refused_when_the_kernel_is_made) {
  Builder b = decoder(true, 1, true);
  b.node.integers["heads"] = 5;
  CHECK(error_of(decoder_layer(), b.node).find("a width of 48 in 5 heads") != std::string::npos);
  Builder c = decoder(true, 1, true);
  c.node.constant[10] = false;
  CHECK(error_of(decoder_layer(), c.node).find("must be an initializer") != std::string::npos);
  Builder d = decoder(true, 1, true);
  d.node.words["activation"] = "tanh";
  CHECK(error_of(decoder_layer(), d.node).find("the activation tanh is unknown") != std::string::npos);
  Builder e = decoder(true, 1, true);
  e.node.integers["int8"] = 0;
  CHECK(!error_of(decoder_layer(), e.node).empty());
}
