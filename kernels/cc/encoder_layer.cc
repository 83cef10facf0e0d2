// EncoderLayer: one layer of the encoder over the tokens of all sources, one source after the other, without padding.
//
//   x (N, D), length (B), source_length (B), products qkv (D, 3 H d), out (H d, D), widen (D, F or 2 F), narrow (F, D),
//   norms attention, feed-forward [, bias (H, 2 M + 1)] -> y (N, D)
//
//   Sublayer(x, f) = x + f(norm(x)) with pre_norm, else norm(x + f(x)).
//   1. q, k, v = qkv(x); out(Softmax(q . k / sqrt(d)) . v), each source and head alone, over the source's first
//   `length`
//      tokens (source_length counts those that are laid out; the end token may not be attended)
//      With the attribute `relative` = M, bias[h, clip(key's position - query's, -M, M) + M] is added to a score.
//   2. narrow(activation(widen(x))), or gated narrow(activation(first half of widen(x)) * second half)
//   Norms are LayerNorm, or with `rms` RMSNorm. H d = D unless the attribute `head` says d.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "feed_forward.h"

namespace attendant {

namespace {

// Sources next to each other: their tokens are rows [from, to).
struct Range {
  int first, last, from, to;
};

struct EncoderLayer : Operator {
  Machine machine;
  bool int8, pre_norm;
  int heads = 0, d = 0, width = 0, inner = 0;  // inner: features of all heads
  Product qkv, out;
  FeedForward feed_forward;
  Norm norm;
  RelativeBias bias;

  explicit EncoderLayer(const Definition& definition)
      : machine(definition.machine), int8(definition.flag("int8")), pre_norm(definition.flag("pre_norm")) {
    Weights weights(definition, 3, int8);
    width = weights.rows_ahead(0);
    const int wide = weights.rows_ahead(3);
    const int64_t count = definition.integer("heads");
    d = head_size(definition, width, count);
    heads = int(count);
    inner = heads * d;
    qkv = weights.product("qkv", width, 3 * inner);
    out = weights.product("out", inner, width);
    feed_forward.read(definition, weights, width, wide);
    const float epsilon = definition.number("epsilon");
    norm = weights.norm("attention norm", width, epsilon);
    feed_forward.norm = weights.norm("feed-forward norm", width, epsilon);
    feed_forward.pre_norm = pre_norm;
    bias = weights.bias(heads, true);
  }

  void run(const Run& run) const override {
    const Tensor x = run.input(0, "x", ort::Type::f32, {-1, width});
    const int64_t tokens = x.shape[0];
    run.require(tokens < 1 << 24, "x has ", tokens, " tokens: too many");
    const Tensor attended = run.input(1, "length", ort::Type::i64, {-1});
    const int64_t sources = attended.shape[0];
    const int64_t* length = attended.as<int64_t>();
    const int64_t* laid_out = run.input(2, "source_length", ort::Type::i64, {sources}).as<int64_t>();
    int64_t sum = 0;
    for (int64_t b = 0; b < sources; b++) {
      run.require(laid_out[b] >= 0 && length[b] >= 0 && length[b] <= laid_out[b], "source ", b, " attends ", length[b],
                  " of its ", laid_out[b], " tokens");
      sum += laid_out[b];
      run.require(sum <= tokens, "the sources have more than the ", tokens, " tokens of x");
    }
    run.require(sum == tokens, "the sources have ", sum, " tokens, and x has ", tokens);
    float* y = run.output<float>(0, {tokens, width});
    if (y != x.data && tokens) std::memcpy(y, x.data, size_t(tokens * width) * 4);
    share(run, y, int(tokens), length, laid_out, int(sources));
  }

  // Whole sources for each thread where there are enough of them, else all threads on all sources.
  void share(const Run& run, float* x, int tokens, const int64_t* length, const int64_t* laid_out, int sources) const {
    const double work = tokens * (4.0 * width * inner + 2.0 * width * feed_forward.widen.n);
    constexpr double ALONE = 8e6;  // less is not worth waking a thread for
    const int threads = work < ALONE ? 1 : machine.threads;
    const int most =
        threads == 1 ? 192 : std::max(std::min(192, tokens / (4 * threads)), std::min(96, tokens / threads));
    std::vector<Range> ranges;
    Range range{0, 0, 0, 0};
    for (int b = 0; b < sources; b++) {
      range.last = b + 1;
      range.to += int(laid_out[b]);
      if (range.to - range.from < most && b + 1 < sources) continue;
      ranges.push_back(range);
      range.first = range.last;
      range.from = range.to;
    }
    const auto one = [&](Team& team, const Range& part) {
      Workers workers(*machine.path, team);
      layer(workers, x + size_t(part.from) * size_t(width), length + part.first, laid_out + part.first,
            part.last - part.first, part.to - part.from);
    };
    const auto alone = [&](int i) {
      Team team(1);
      one(team, ranges[size_t(i)]);
    };
    const int count = int(ranges.size());
    if (threads == 1)
      for (int i = 0; i < count; i++) alone(i);
    else if (count < threads)
      run.team(threads, [&](Team& team) { one(team, {0, sources, 0, tokens}); });
    else
      run.team(threads, [&](Team& team) { team.parallel(count, alone, true); });
  }

  void layer(Workers& workers, float* x, const int64_t* length, const int64_t* laid_out, int sources, int rows) const {
    if (rows == 0) return;
    const size_t w = size_t(width), all = size_t(inner);
    {
      Frame frame;
      Activations a = Workers::room(frame, qkv, rows, std::max(width, inner));
      float* wide = frame.take<float>(size_t(rows) * 3 * all);
      float* attended = frame.take<float>(size_t(rows) * all);
      workers.prepare(x, rows, width, pre_norm ? norm : Norm{}, nullptr, qkv, a);
      workers.multiply(qkv, a, rows, wide, 3 * all, nullptr);
      attend(workers, wide, length, laid_out, sources, rows, attended);
      workers.prepare(attended, rows, inner, Norm{}, nullptr, out, a);
      workers.multiply(out, a, rows, x, w, x);
      if (!pre_norm) workers.normalize(x, rows, width, norm, x);
    }
    feed_forward.run(workers, x, rows);
  }

  // Some queries of one head of one source.
  struct Task {
    int head, row, queries, keys, first_key;
  };

  void attend(Workers& workers, const float* wide, const int64_t* length, const int64_t* laid_out, int sources,
              int rows, float* attended) const {
    constexpr int QUERIES = 96;  // whose scores stay in the cache
    std::vector<Task> tasks;
    for (int b = 0, row = 0; b < sources; b++) {
      const int tokens = int(laid_out[b]);
      for (int h = 0; h < heads; h++)
        for (int from = 0; from < tokens; from += QUERIES)
          tasks.push_back({h, row + from, std::min(QUERIES, tokens - from), int(length[b]), row});
      row += tokens;
    }
    const double work = 4.0 * rows * inner * double(rows) / sources;
    workers.each_row(int(tasks.size()), work / double(tasks.size()),
                     [&](int i) { attend_task(workers.path(), wide, tasks[size_t(i)], attended); });
  }

  // Scores = queries . keys and then weights . values, as products of f32; keys are transposed for the first.
  void attend_task(const Path& path, const float* wide, const Task& task, float* attended) const {
    const size_t w = size_t(inner), stride = 3 * w;
    float* result = attended + size_t(task.row) * w + size_t(task.head * d);
    if (task.keys == 0) {
      for (int i = 0; i < task.queries; i++) std::memset(result + size_t(i) * w, 0, size_t(d) * 4);
      return;
    }
    const float* query = wide + size_t(task.row) * stride + size_t(task.head * d);
    const float* key = wide + size_t(task.first_key) * stride + w + size_t(task.head * d);
    const float* value = key + w;
    const int keys = (task.keys + 15) / 16 * 16, features = (d + 15) / 16 * 16;
    Frame frame;
    float* room = frame.take<float>(size_t(32) * size_t(std::max(keys, features)));
    float* transposed = frame.take<float>(size_t(d) * size_t(keys));
    path.transpose(key, stride, task.keys, d, transposed, size_t(keys));
    float* scores = frame.take<float>(size_t(task.queries) * size_t(keys));
    path.f32_product({transposed, size_t(keys), 32, nullptr, query, stride, d, task.queries, 0, keys, scores,
                      size_t(keys), nullptr, 0, room});
    const float factor = 1.0f / std::sqrt(float(d));
    if (bias.table) add_bias(path, task, scores, keys, factor);
    for (int i = 0; i < task.queries; i++)
      path.softmax(scores + size_t(i) * size_t(keys), task.keys, bias.table ? 1.0f : factor);
    if (features == d) {
      path.f32_product({value, stride, 32, nullptr, scores, size_t(keys), task.keys, task.queries, 0, d, result, w,
                        nullptr, 0, room});
      return;
    }
    // A head's size that is no multiple of 16: beside it lie other heads, so it is copied out and in.
    float* padded = frame.take<float>(size_t(task.keys) * size_t(features));
    float* padded_result = frame.take<float>(size_t(task.queries) * size_t(features));
    for (int j = 0; j < task.keys; j++) {
      std::memcpy(padded + j * features, value + size_t(j) * stride, size_t(d) * 4);
      std::memset(padded + j * features + d, 0, size_t(features - d) * 4);
    }
    path.f32_product({padded, size_t(features), 32, nullptr, scores, size_t(keys), task.keys, task.queries, 0, features,
                      padded_result, size_t(features), nullptr, 0, room});
    for (int i = 0; i < task.queries; i++)
      std::memcpy(result + size_t(i) * w, padded_result + i * features, size_t(d) * 4);
  }

  // scores = scores * factor + bias. The bias of a query begins one further back than that of the query before it.
  void add_bias(const Path& path, const Task& task, float* scores, int keys, float factor) const {
    const int first_query = task.row - task.first_key, last_query = first_query + task.queries - 1;
    Frame frame;
    float* spread = frame.take<float>(size_t(keys + task.queries));
    bias.spread(task.head, -last_query, keys + task.queries - 1, spread);
    for (int i = 0; i < task.queries; i++)
      path.add_bias(scores + size_t(i) * size_t(keys), spread + (task.queries - 1 - i), task.keys, factor);
  }
};

}  // namespace

Declaration encoder_layer() {
  using ort::Type;
  return {"EncoderLayer",
          {Type::f32, Type::i64, Type::i64},
          true,
          {Type::f32},
          false,
          [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<EncoderLayer>(d); }};
}

}  // namespace attendant
