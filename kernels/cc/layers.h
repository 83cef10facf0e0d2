// What layers are made of, above the instruction sets: weights in either precision, rows of activations ready for a
// product, and how the work on them is shared among the threads of a team.
#pragma once
#include "operator.h"

namespace attendant {

// A product's weights: packed int8 or f32, with bias. Reads its inputs from a node's definition and counts them.
struct Product {
  bool int8 = false;
  int k = 0, n = 0;
  Int8Weights packed{};
  const float* weight = nullptr;  // f32: packed, (blocks of 32 columns, k, 32), zeros beyond n
  const float* bias = nullptr;
};

// Relative positions: what is added to a head's score for each key's position - query's, from -largest on; all beyond
// `largest` are as at `largest`. In the encoder up to +largest, in the decoder up to 0.
struct RelativeBias {
  const float* table = nullptr;  // null: none
  int largest = 0, distances = 0;

  // to[i] for i in [0, count): the bias of a key `first + i` after the query
  void spread(int head, int first, int count, float* to) const;
};

// Reads constant inputs one after the other.
class Weights {
 public:
  Weights(const Definition& definition, size_t first_input, bool int8)
      : definition_(definition), next_(first_input), int8_(int8) {}

  Product product(const char* what, int k, int n);
  Norm norm(const char* what, int width, float epsilon);
  // How many rows the weight of a product has that is read after `skipped` others: the width of what it multiplies.
  int rows_ahead(int skipped) const;
  // The table of relative positions (heads, distances), the last input; empty where the node has none.
  RelativeBias bias(int heads, bool later);

 private:
  const Definition& definition_;
  size_t next_;
  bool int8_;
};

Activation activation_of(const Definition& definition);
// Whether the activation's name says that the feed-forward has a gate: widen computes twice as much.
bool is_gated(const Definition& definition);
// The size of a head, checked: the node's, or `width`, the model's, divided among the heads.
int head_size(const Definition& definition, int width, int64_t heads);

// Rows as a product takes them: bytes with a scale each, or f32.
struct Activations {
  uint8_t* q = nullptr;
  float* scale = nullptr;
  float* f32 = nullptr;
  size_t f32_stride = 0;
};

// The work on `rows` rows by a team: phases over rows, or over columns of products.
class Workers {
 public:
  Workers(const Path& path, Team& team) : path_(path), team_(team) {}

  const Path& path() const { return path_; }
  int team_size() const { return team_.size(); }

  // Memory for rows of up to `width` features as `product` takes them.
  static Activations room(Frame& frame, const Product& product, int rows, int width);

  // f(row) for each; `work` is a row's number of elementary operations, which decides whether it is worth sharing
  template <class F>
  void each_row(int rows, double work, F&& f) {
    const int most = rows < 4 * team_.size() ? rows : 4 * team_.size();
    const int parts = team_.size() > 1 && rows * work > SHARED ? most : 1;
    team_.parallel(parts, [&](int part) {
      const int from = int(int64_t(part) * rows / parts), to = int(int64_t(part + 1) * rows / parts);
      for (int row = from; row < to; row++) f(row);
    });
  }

  // a = x, normed where there is a norm; y, if given, is the norm's result in f32 (and may be x)
  void prepare(const float* x, int rows, int width, const Norm& norm, float* y, const Product& to, Activations& a);
  // y = norm(x)
  void normalize(const float* x, int rows, int width, const Norm& norm, float* y);
  // a = activation(x), in place in f32; gated, activation(x) times the `width` values behind it
  void activate(float* x, int rows, int width, Activation activation, bool gated, const Product& to, Activations& a);
  // y = a * product + bias [+ add], with rows of `stride` floats
  void multiply(const Product& product, const Activations& a, int rows, float* y, size_t stride, const float* add);

 private:
  static constexpr double SHARED = 30000;  // elementary operations from which on a phase is shared

  const Path& path_;
  Team& team_;
};

// Calls f(workers, from, to) for ranges that make up all rows: ranges of their own for threads where there are enough
// rows (6 a thread; at most 192 in a range), else once with a team that shares the columns of each product. `work`:
// elementary operations of one row.
template <class F>
void split_rows(const Run& run, const Machine& machine, int rows, double work, F&& f) {
  constexpr int FEW = 6, MANY = 192;
  constexpr double ALONE = 3e6;  // less is not worth waking a thread for
  const int threads = rows * work < ALONE ? 1 : machine.threads;
  const auto alone = [&](int part, int parts) {
    Team one(1);
    Workers workers(*machine.path, one);
    f(workers, int(int64_t(part) * rows / parts), int(int64_t(part + 1) * rows / parts));
  };
  const int ranges = (rows + MANY - 1) / MANY;
  if (threads <= 1) {
    for (int part = 0; part < ranges; part++) alone(part, ranges);
  } else if (rows < FEW * threads) {
    run.team(threads, [&](Team& team) {
      Workers workers(*machine.path, team);
      f(workers, 0, rows);
    });
  } else {
    const int parts = ranges <= threads ? threads : (ranges + threads - 1) / threads * threads;
    run.team(threads, [&](Team& team) {
      team.parallel(
          parts, [&](int part) { alone(part, parts); }, true);
    });
  }
}

}  // namespace attendant
