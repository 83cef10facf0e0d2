// CrossKeysValues: a decoder layer's keys and values of the sources, as its cross-attention reads them.
//
//   memory (N, D), source (B, S) (only its shape is read), source_length (B), product (D, 2 H d)
//   -> key (B, H, S, d), value (B, H, S, d) [, scale (B, 2, H, S)]
//
//   H d = D unless the attribute `head` says d.
//   k, v = Split(product(memory)); key and value: of each source and head, zeros where the source has ended.
//   int8: quantized with one scale for each token and head, keys and values apart; scale 0 where the source has ended.
#include <cstring>

#include "layers.h"

namespace attendant {

namespace {

struct CrossKeysValues : Operator {
  Machine machine;
  bool int8;
  int heads = 0, d = 0, width = 0, inner = 0;  // inner: features of all heads
  Product product;

  explicit CrossKeysValues(const Definition& definition) : machine(definition.machine), int8(definition.flag("int8")) {
    Weights weights(definition, 3, int8);
    width = weights.rows_ahead(0);
    const int64_t count = definition.integer("heads");
    d = head_size(definition, width, count);
    heads = int(count);
    inner = heads * d;
    product = weights.product("the product", width, 2 * inner);
  }

  struct Outputs {
    char* side[2];  // keys, values
    float* scale;
    int64_t slots;
  };

  void run(const Run& run) const override {
    const Tensor memory = run.input(0, "memory", ort::Type::f32, {-1, width});
    const Tensor source = run.input(1, "source", ort::Type::i64, {-1, -1});
    const int64_t sources = source.shape[0], slots = source.shape[1], tokens = memory.shape[0];
    run.require(tokens < 1 << 24, "memory has ", tokens, " tokens: too many");
    const int64_t* lengths = run.input(2, "source_length", ort::Type::i64, {sources}).as<int64_t>();
    std::vector<int64_t> places;  // of each token: source * slots + slot
    places.reserve(size_t(tokens));
    for (int64_t b = 0; b < sources; b++) {
      run.require(lengths[b] >= 0 && lengths[b] <= slots, "source_length ", lengths[b], " of source ", b,
                  " is outside 0 to ", slots);
      run.require(int64_t(places.size()) + lengths[b] <= tokens, "the sources have more than the ", tokens,
                  " tokens of memory");
      for (int64_t t = 0; t < lengths[b]; t++) places.push_back(b * slots + t);
    }
    run.require(int64_t(places.size()) == tokens, "the sources have ", places.size(), " tokens, and memory has ",
                tokens);
    Outputs out{{run.output<char>(0, {sources, heads, slots, d}), run.output<char>(1, {sources, heads, slots, d})},
                int8 ? run.output<float>(2, {sources, 2, heads, slots}) : nullptr,
                slots};
    run.require(out.side[0] && out.side[1] && (out.scale || !int8), "all outputs must be used");
    for (int64_t b = 0; b < sources; b++) clear_padding(out, b, lengths[b]);
    const float* x = memory.as<float>();
    split_rows(run, machine, int(tokens), 2.0 * width * inner, [&](Workers& workers, int from, int to) {
      rows(workers, x + size_t(from) * size_t(width), places.data() + from, to - from, out);
    });
  }

  void clear_padding(const Outputs& out, int64_t source, int64_t length) const {
    const size_t element = int8 ? 1 : 4, missing = size_t(out.slots - length);
    if (!missing) return;
    for (int h = 0; h < heads; h++)
      for (int side = 0; side < 2; side++) {
        const int64_t entry = (source * heads + h) * out.slots + length;
        std::memset(out.side[side] + size_t(entry * d) * element, 0, missing * size_t(d) * element);
        if (int8) std::memset(out.scale + ((source * 2 + side) * heads + h) * out.slots + length, 0, missing * 4);
      }
  }

  void rows(Workers& workers, const float* x, const int64_t* places, int count, const Outputs& out) const {
    Frame frame;
    const size_t w = size_t(inner);
    Activations a = Workers::room(frame, product, count, width);
    float* wide = frame.take<float>(size_t(count) * 2 * w);
    workers.prepare(x, count, width, Norm{}, nullptr, product, a);
    workers.multiply(product, a, count, wide, 2 * w, nullptr);
    workers.each_row(count, 2.0 * inner, [&](int row) {
      const int64_t source = places[row] / out.slots, slot = places[row] % out.slots;
      for (int side = 0; side < 2; side++)
        for (int h = 0; h < heads; h++) {
          const float* from = wide + size_t(row) * 2 * w + side * inner + h * d;
          const int64_t entry = ((source * heads + h) * out.slots + slot) * d;
          if (int8)
            out.scale[((source * 2 + side) * heads + h) * out.slots + slot] =
                workers.path().quantize_head(from, d, reinterpret_cast<int8_t*>(out.side[side] + entry));
          else
            std::memcpy(out.side[side] + entry * 4, from, size_t(d) * 4);
        }
    });
  }
};

}  // namespace

Declaration cross_keys_values() {
  using ort::Type;
  return {"CrossKeysValues",
          {Type::f32, Type::i64, Type::i64},
          true,
          {},
          true,
          [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<CrossKeysValues>(d); }};
}

}  // namespace attendant
