// Vocabulary: log-probabilities of the next token, and the top k of them.
//
//   x (R, D), product (D, V) [f32: table (V, D), bias (V)], gamma (D), beta (D), top (1), whole (R)
//   -> top_logprobs (R, k), top_ids (R, k), logprobs (R, V)
//
//   norm = 1: x = LayerNormalization(x, gamma, beta)
//   logprobs = LogSoftmax(product(x)) [f32: LogSoftmax(x . Transpose(table) + bias)]; of rows with whole = 0 it may be
//   left unwritten top_logprobs, top_ids = TopK(logprobs, k = min(top, V)), descending; of equal ones the lower id
//   first
//
// The columns are taken in chunks of 512, by any thread. A chunk gives its maximum, the sum of exp(logit - maximum) and
// its own top k; these are put together in the order of the chunks, so the result does not depend on who did what.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "layers.h"

namespace attendant {

namespace {

constexpr int CHUNK = 512, PANEL = 96;
constexpr float LOWEST = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit;
  int32_t id;
};

// What the chunks leave behind, by row and chunk.
struct Results {
  int chunks, rows, k, kept;  // kept: candidates of a chunk, min(k, CHUNK)
  float *most, *sum;          // (rows, chunks)
  Candidate* best;            // (rows, chunks, kept), descending
  int* found;                 // (rows, chunks)
  std::atomic<float>* kth;    // (rows): k logits at least as high are known; a chunk need not keep lower ones

  size_t at(int row, int chunk) const { return size_t(row) * size_t(chunks) + size_t(chunk); }
};

struct Vocabulary : Operator {
  Machine machine;
  bool int8, normed;
  int words = 0, width = 0;
  Product product;
  Norm norm;

  explicit Vocabulary(const Definition& definition)
      : machine(definition.machine), int8(definition.flag("int8")), normed(definition.flag("norm")) {
    const int64_t count = definition.integer("vocabulary");
    definition.require(count > 0 && count < 1 << 30, "a vocabulary of ", count, " words");
    words = int(count);
    Weights weights(definition, 1, int8);
    if (int8) {
      width = weights.rows_ahead(0);
      product = weights.product("vocabulary", width, words);
    } else {
      const Tensor table = definition.constant(1, "table", ort::Type::f32, {words, -1});
      definition.require(table.shape[1] % 16 == 0 && table.shape[1] > 0 && table.shape[1] <= 1 << 24, "a table of ",
                         table.shape[1], " features: it must be a multiple of 16");
      width = int(table.shape[1]);
      product.weight = table.as<const float>();
      product.bias = definition.constant(2, "bias", ort::Type::f32, {words}).as<const float>();
    }
    Weights after(definition, int8 ? 5 : 3, int8);
    norm = after.norm("norm", width, definition.number("epsilon"));
    if (!normed) norm = Norm{};
  }

  void run(const Run& run) const override {
    const Tensor x = run.input(0, "x", ort::Type::f32, {-1, width});
    const size_t first = int8 ? 7 : 5;
    const int64_t top = *run.input(first, "top", ort::Type::i64, {1}).as<int64_t>();
    run.require(top >= 1, "top is ", top, ", and must be at least 1");
    run.require(x.shape[0] < 1 << 20, "x has ", x.shape[0], " rows: too many");
    const int rows = int(x.shape[0]), k = int(std::min<int64_t>(top, words));
    const int64_t* whole = run.input(first + 1, "whole", ort::Type::i64, {rows}).as<int64_t>();
    float* top_logprobs = run.output<float>(0, {rows, k});
    int64_t* top_ids = run.output<int64_t>(1, {rows, k});
    float* logprobs = run.output<float>(2, {rows, words});
    if (rows == 0) return;

    Frame frame;
    Results results = room_for(frame, rows, k);
    Activations a = Workers::room(frame, product, rows, width);
    const double work = double(rows) * width * words;
    run.team(work < 4e5 ? 1 : machine.threads, [&](Team& team) {
      Workers workers(*machine.path, team);
      workers.prepare(x.as<float>(), rows, width, norm, nullptr, product, a);
      team.parallel(
          results.chunks, [&](int chunk) { take_chunk(a, chunk, results, whole, logprobs); }, true);
      workers.each_row(rows, 64.0 * results.chunks, [&](int row) {
        const float total = log_of_sum(results, row);
        merge(results, row, total, top_logprobs + size_t(row) * size_t(k), top_ids + size_t(row) * size_t(k));
        if (!logprobs || !whole[row]) return;
        float* out = logprobs + size_t(row) * size_t(words);
        for (int i = 0; i < words; i++) out[i] -= total;
      });
    });
  }

  Results room_for(Frame& frame, int rows, int k) const {
    Results r{};
    r.chunks = (words + CHUNK - 1) / CHUNK;
    r.rows = rows;
    r.k = k;
    r.kept = std::min(k, CHUNK);
    const size_t count = size_t(rows) * size_t(r.chunks);
    r.most = frame.take<float>(count);
    r.sum = frame.take<float>(count);
    r.found = frame.take<int>(count);
    r.best = frame.take<Candidate>(count * size_t(r.kept));
    r.kth = frame.take<std::atomic<float>>(size_t(rows));
    for (int row = 0; row < rows; row++) new (r.kth + row) std::atomic<float>(LOWEST);
    return r;
  }

  void take_chunk(const Activations& a, int chunk, const Results& r, const int64_t* whole, float* logprobs) const {
    const Path& path = *machine.path;
    const int first = chunk * CHUNK, last = std::min(first + CHUNK, words), count = last - first;
    Frame frame;
    const int panel = std::min(PANEL, r.rows);
    float* logits = frame.take<float>(size_t(panel) * CHUNK);
    int* indices = frame.take<int>(CHUNK);
    for (int from = 0; from < r.rows; from += panel) {
      const int rows = std::min(panel, r.rows - from);
      const size_t w = size_t(width);
      if (int8)
        path.int8_product({&product.packed, a.q + size_t(from) * w, a.scale + from, rows, first / 32, (last + 31) / 32,
                           logits, CHUNK, nullptr, 0});
      else
        path.table_product(
            {product.weight, product.bias, a.f32 + size_t(from) * w, width, rows, first, last, logits, CHUNK});
      for (int i = 0; i < rows; i++) {
        float* row = logits + size_t(i) * CHUNK;
        const size_t at = r.at(from + i, chunk);
        if (logprobs && whole[from + i])
          std::memcpy(logprobs + size_t(from + i) * size_t(words) + first, row, size_t(count) * 4);
        path.chunk_sum(row, count, r.most + at, r.sum + at);
        r.found[at] =
            candidates(row, count, first, r.most[at], r, r.kth[from + i], r.best + at * size_t(r.kept), indices);
      }
    }
  }

  // The chunk's highest logits in descending order, those that may be among the row's top k.
  int candidates(const float* logits, int count, int first, float most, const Results& r, std::atomic<float>& kth,
                 Candidate* best, int* indices) const {
    const float known = kth.load(std::memory_order_relaxed);
    float least = known > LOWEST ? std::nextafter(known, LOWEST) : LOWEST;  // equal ones with a lower id still count
    int have = 0;
    const auto put = [&](float logit, int id) {
      int at = have < r.kept ? have++ : r.kept - 1;
      for (; at > 0 && logit > best[at - 1].logit; at--) best[at] = best[at - 1];
      best[at] = {logit, id};
    };
    if (most > least) {
      const int found = machine.path->find_greater(logits, count, least, indices);
      for (int i = 0; i < found; i++) {
        const float logit = logits[indices[i]];
        if (have < r.kept || logit > best[have - 1].logit) put(logit, first + indices[i]);
      }
    }
    if (have == r.k && best[have - 1].logit > known) kth.store(best[have - 1].logit, std::memory_order_relaxed);
    for (int i = 0; known == LOWEST && have < r.kept && i < count; i++)
      if (!(logits[i] > LOWEST)) best[have++] = {LOWEST, first + i};  // a word that is ruled out by its bias
    return have;
  }

  float log_of_sum(const Results& r, int row) const {
    const float *most = r.most + r.at(row, 0), *sum = r.sum + r.at(row, 0);
    const float highest = *std::max_element(most, most + r.chunks);
    float total = 0;
    for (int i = 0; i < r.chunks; i++) total += sum[i] * std::exp(most[i] - highest);
    return highest + std::log(total);
  }

  // The row's top k from the chunks' lists: a heap of the lists by their first candidates.
  void merge(const Results& r, int row, float total, float* logprobs, int64_t* ids) const {
    Frame frame;
    struct Head {
      const Candidate *next, *end;
    };
    const auto later = [](const Head& a, const Head& b) {
      return a.next->logit < b.next->logit || (a.next->logit == b.next->logit && a.next->id > b.next->id);
    };
    Head* heads = frame.take<Head>(size_t(r.chunks));
    int count = 0;
    for (int i = 0; i < r.chunks; i++) {
      const size_t at = r.at(row, i);
      const Candidate* best = r.best + at * size_t(r.kept);
      if (r.found[at]) heads[count++] = {best, best + r.found[at]};
    }
    std::make_heap(heads, heads + count, later);
    for (int i = 0; i < r.k; i++) {
      if (count == 0) {  // only logits that are no numbers can leave too few
        logprobs[i] = std::numeric_limits<float>::quiet_NaN();
        ids[i] = 0;
        continue;
      }
      std::pop_heap(heads, heads + count, later);
      Head& head = heads[count - 1];
      logprobs[i] = head.next->logit - total;
      ids[i] = head.next->id;
      if (++head.next == head.end)
        count--;
      else
        std::push_heap(heads, heads + count, later);
    }
  }
};

}  // namespace

Declaration vocabulary() {
  using ort::Type;
  return {
      "Vocabulary", {Type::f32},
      true,         {Type::f32, Type::i64, Type::f32},
      false,        [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<Vocabulary>(d); }};
}

}  // namespace attendant
