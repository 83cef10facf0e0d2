// EmbedTarget: the embeddings of one target token for each row.
//
//   token (R), position (R), table, scale, positions (P, D), gamma (D), beta (D) -> (R, D)
//   y = Gather(table, token) * scale + Gather(positions, position); norm = 1: y = LayerNormalization(y, gamma, beta)
//   int8: table (V, D) int8 with a scale for each row (V, 1); else table (V, D) and one factor (1)
#include "embed.h"

namespace attendant {

namespace {

struct EmbedTarget : Operator {
  Machine machine;
  Embedding embedding;

  explicit EmbedTarget(const Definition& d) : machine(d.machine), embedding(d, 2) {}

  void run(const Run& run) const override {
    const Tensor token = run.input(0, "token", ort::Type::i64, {-1});
    const int64_t rows = token.shape[0];
    const Tensor position = run.input(1, "position", ort::Type::i64, {rows});
    float* y = run.output<float>(0, {rows, embedding.width});
    for (int64_t row = 0; row < rows; row++)
      embedding.row(run, *machine.path, token.as<int64_t>()[row], position.as<int64_t>()[row],
                    y + row * embedding.width);
  }
};

}  // namespace

Declaration embed_target() {
  return {
      "EmbedTarget", {ort::Type::i64, ort::Type::i64},
      true,          {ort::Type::f32},
      false,         [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<EmbedTarget>(d); }};
}

}  // namespace attendant
