// DecoderLayer: one layer of the decoder for one new token of each row.
//
//   x (R, D), position (R), source_row (R), source_length (B),
//   self_key, self_value (R, H, P, d) [, self_scale (R, 2, H, P)], cross_key, cross_value (B, H, S, d) [, cross_scale
//   (B, 2, H, S)], products qkv (D, 3 H d), self out (H d, D), cross queries (D, H d), cross out (H d, D), widen (D, F
//   or 2 F), narrow (F, D), norms self, cross, feed-forward [, bias (H, M + 1)] -> y (R, D), present_key, present_value
//   [, present_scale]
//
//   Sublayer(x, f) = x + f(norm(x)) with pre_norm, else norm(x + f(x)).
//   1. q, k, v = qkv(x); k and v of row r go to slot position[r] of its cache; out(Attention(q, slots 0 ... position))
//   2. out(Attention(queries(x), slots 0 ... source_length[source_row] - 1 of the source's cache))
//   3. narrow(activation(widen(x))), or gated narrow(activation(first half of widen(x)) * second half)
//   With the attribute `relative` = M, bias[h, max(slot - position, -M) + M] is added to a score of self-attention.
//   Norms are LayerNorm, or with `rms` RMSNorm. H d = D unless the attribute `head` says d.
//   Attention: Softmax(q . key / sqrt(d)) . value, each head alone. int8: a key, a value is q * scale, with one scale
//   for each slot and head: scale (rows, 0 keys or 1 values, H, slots).
//
// If an output of the cache is bound to its input's memory, only the new entry is written; else the input is copied.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "feed_forward.h"

namespace attendant {

namespace {

// A cache's memory: keys, values, and in int8 their scales, for rows (or sources) of `heads` times `slots`.
struct Cache {
  char *key = nullptr, *value = nullptr;
  float* scale = nullptr;
  int64_t heads = 0, slots = 0, d = 0;
  size_t element = 4;

  size_t entry(int64_t row, int64_t head, int64_t slot) const {
    return size_t(((row * heads + head) * slots + slot) * d) * element;
  }
  float* scales(int64_t row, int side, int64_t head) const { return scale + ((row * 2 + side) * heads + head) * slots; }
};

struct DecoderLayer : Operator {
  Machine machine;
  bool int8, pre_norm;
  int heads = 0, d = 0, width = 0, inner = 0;  // inner: features of all heads
  Product qkv, self_out, queries, cross_out;
  FeedForward feed_forward;
  Norm self_norm, cross_norm;
  RelativeBias bias;

  explicit DecoderLayer(const Definition& definition)
      : machine(definition.machine), int8(definition.flag("int8")), pre_norm(definition.flag("pre_norm")) {
    Weights weights(definition, int8 ? 10 : 8, int8);
    width = weights.rows_ahead(0);
    const int wide = weights.rows_ahead(5);
    const int64_t count = definition.integer("heads");
    d = head_size(definition, width, count);
    heads = int(count);
    inner = heads * d;
    qkv = weights.product("qkv", width, 3 * inner);
    self_out = weights.product("self out", inner, width);
    queries = weights.product("cross queries", width, inner);
    cross_out = weights.product("cross out", inner, width);
    feed_forward.read(definition, weights, width, wide);
    const float epsilon = definition.number("epsilon");
    self_norm = weights.norm("self norm", width, epsilon);
    cross_norm = weights.norm("cross norm", width, epsilon);
    feed_forward.norm = weights.norm("feed-forward norm", width, epsilon);
    feed_forward.pre_norm = pre_norm;
    bias = weights.bias(heads, false);
  }

  struct Inputs {
    const int64_t *position, *source_row, *source_length;
    Cache self, cross;
  };

  Cache cache(const Run& run, size_t first, const char* what, int64_t rows) const {
    const ort::Type type = int8 ? ort::Type::i8 : ort::Type::f32;
    const std::string name(what);
    const Tensor key = run.input(first, (name + "_key").c_str(), type, {rows, heads, -1, d});
    Cache cache;
    cache.heads = heads;
    cache.slots = key.shape[2];
    cache.d = d;
    cache.element = int8 ? 1 : 4;
    run.require(cache.slots < 1 << 24, what, "_key has ", cache.slots, " slots: too many");
    cache.key = key.as<char>();
    cache.value = run.input(first + 1, (name + "_value").c_str(), type, {rows, heads, cache.slots, d}).as<char>();
    if (int8)
      cache.scale =
          run.input(first + 2, (name + "_scale").c_str(), ort::Type::f32, {rows, 2, heads, cache.slots}).as<float>();
    return cache;
  }

  // The outputs of the self-attention's cache, filled from the inputs unless they are the same memory.
  void present(const Run& run, Cache& cache, int64_t rows) const {
    const size_t bytes = size_t(rows * heads * cache.slots * d) * cache.element;
    const auto bring = [](auto*& memory, void* output, size_t size) {
      if (!output) return;
      if (output != memory && size) std::memcpy(output, memory, size);
      memory = static_cast<std::remove_reference_t<decltype(memory)>>(output);
    };
    bring(cache.key, run.output<char>(1, {rows, heads, cache.slots, d}), bytes);
    bring(cache.value, run.output<char>(2, {rows, heads, cache.slots, d}), bytes);
    if (int8)
      bring(cache.scale, run.output<float>(3, {rows, 2, heads, cache.slots}),
            size_t(rows * 2 * heads * cache.slots) * 4);
  }

  void run(const Run& run) const override {
    const Tensor x = run.input(0, "x", ort::Type::f32, {-1, width});
    const int64_t rows = x.shape[0];
    run.require(rows < 1 << 24, "x has ", rows, " rows: too many");
    const Tensor lengths = run.input(3, "source_length", ort::Type::i64, {-1});
    const int64_t sources = lengths.shape[0];
    Inputs in{run.input(1, "position", ort::Type::i64, {rows}).as<const int64_t>(),
              run.input(2, "source_row", ort::Type::i64, {rows}).as<const int64_t>(), lengths.as<const int64_t>(),
              cache(run, 4, "self", rows), cache(run, int8 ? 7 : 6, "cross", sources)};
    for (int64_t row = 0; row < rows; row++) {
      run.require(in.position[row] >= 0 && in.position[row] < in.self.slots, "position ", in.position[row], " of row ",
                  row, " is outside the cache of ", in.self.slots, " slots");
      run.require(in.source_row[row] >= 0 && in.source_row[row] < sources, "source_row ", in.source_row[row],
                  " of row ", row, " is outside the ", sources, " sources");
    }
    for (int64_t b = 0; b < sources; b++)
      run.require(in.source_length[b] >= 0 && in.source_length[b] <= in.cross.slots, "source_length ",
                  in.source_length[b], " of source ", b, " is outside 0 to ", in.cross.slots);
    float* y = run.output<float>(0, {rows, width});
    if (y != x.data && rows) std::memcpy(y, x.data, size_t(rows * width) * 4);
    present(run, in.self, rows);
    const double work = 6.0 * width * inner + 2.0 * width * feed_forward.widen.n;
    split_rows(run, machine, int(rows), work, [&](Workers& workers, int from, int to) {
      layer(workers, in, y + size_t(from) * size_t(width), from, to);
    });
  }

  // x: the rows from `from` to `to` of y, in place
  void layer(Workers& workers, const Inputs& in, float* x, int from, int to) const {
    const int rows = to - from;
    const size_t w = size_t(width), all = size_t(inner);
    Frame frame;
    Activations a = Workers::room(frame, qkv, rows, std::max(width, inner));
    float* wide = frame.take<float>(size_t(rows) * 3 * all);
    float* attended = frame.take<float>(size_t(rows) * all);
    const Norm none{};

    workers.prepare(x, rows, width, pre_norm ? self_norm : none, nullptr, qkv, a);
    workers.multiply(qkv, a, rows, wide, 3 * all, nullptr);
    attend(workers, in, from, rows, wide, 3 * all, true, attended);
    workers.prepare(attended, rows, inner, none, nullptr, self_out, a);
    workers.multiply(self_out, a, rows, x, w, x);

    workers.prepare(x, rows, width, pre_norm ? cross_norm : self_norm, pre_norm ? nullptr : x, queries, a);
    workers.multiply(queries, a, rows, wide, all, nullptr);
    attend(workers, in, from, rows, wide, all, false, attended);
    workers.prepare(attended, rows, inner, none, nullptr, cross_out, a);
    workers.multiply(cross_out, a, rows, x, w, x);
    if (!pre_norm) workers.normalize(x, rows, width, cross_norm, x);

    feed_forward.run(workers, x, rows);
  }

  // Rows and, where rows are few, groups of heads in parallel. query: rows of `stride` floats, in self-attention with
  // key and value behind.
  void attend(Workers& workers, const Inputs& in, int from, int rows, const float* query, size_t stride, bool self,
              float* out) const {
    const Cache& cache = self ? in.self : in.cross;
    int groups = rows < 2 * workers.team_size() ? 2 * workers.team_size() / rows : 1;
    if (groups > heads) groups = heads;
    if (workers.team_size() == 1) groups = 1;
    workers.each_row(rows * groups, 2.0 * double(cache.slots) * inner / groups, [&](int task) {
      const int row = task / groups, group = task % groups;
      const int first = group * heads / groups, last = (group + 1) * heads / groups;
      const float* q = query + size_t(row) * stride;
      const int64_t at = from + row;
      if (self) store(workers.path(), q, cache, at, in.position[at], first, last);
      const int64_t owner = self ? at : in.source_row[at];
      const int64_t length = self ? in.position[at] + 1 : in.source_length[owner];
      attend_row(workers.path(), q, cache, owner, int(length), first, last, self, out + size_t(row) * size_t(inner));
    });
  }

  // The row's key and value, behind its query, into the cache.
  void store(const Path& path, const float* q, const Cache& cache, int64_t row, int64_t slot, int first,
             int last) const {
    for (int side = 0; side < 2; side++)
      for (int h = first; h < last; h++) {
        const float* x = q + (side + 1) * inner + h * d;
        char* entry = (side ? cache.value : cache.key) + cache.entry(row, h, slot);
        if (int8)
          cache.scales(row, side, h)[slot] = path.quantize_head(x, d, reinterpret_cast<int8_t*>(entry));
        else
          std::memcpy(entry, x, size_t(d) * 4);
      }
  }

  void attend_row(const Path& path, const float* q, const Cache& cache, int64_t owner, int length, int first, int last,
                  bool self, float* out) const {
    const int count = last - first;
    if (length == 0) {
      std::memset(out + first * d, 0, size_t(count) * size_t(d) * 4);
      return;
    }
    Frame frame;
    Attention a{};
    a.heads = count;
    a.d = d;
    a.length = length;
    a.query = q + first * d;
    a.key = cache.key + cache.entry(owner, first, 0);
    a.value = cache.value + cache.entry(owner, first, 0);
    a.head_stride = size_t(cache.slots * d);
    a.factor = 1.0f / std::sqrt(float(d));
    a.scores = frame.take<float>(size_t(count) * ((size_t(length) + 15) / 16 * 16 + 1));
    a.out = out + first * d;
    if (self && bias.table) {
      a.bias_stride = (size_t(length) + 15) / 16 * 16;
      float* spread = frame.take<float>(size_t(count) * a.bias_stride);
      for (int h = 0; h < count; h++)
        bias.spread(first + h, 1 - length, int(a.bias_stride), spread + size_t(h) * a.bias_stride);
      a.bias = spread;
    }
    if (int8) {
      a.key_scale = cache.scales(owner, 0, first);
      a.value_scale = cache.scales(owner, 1, first);
      a.scale_stride = size_t(cache.slots);
      path.attend_int8(a);
    } else {
      path.attend_f32(a);
    }
  }
};

}  // namespace

Declaration decoder_layer() {
  using ort::Type;
  return {"DecoderLayer",
          {Type::f32, Type::i64, Type::i64, Type::i64},
          true,
          {Type::f32},
          true,
          [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<DecoderLayer>(d); }};
}

}  // namespace attendant
