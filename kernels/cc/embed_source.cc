// EmbedSource: the embeddings of all sources' tokens, one source after the other, padding left out.
//
//   source (B, S), source_length (B), table, scale, positions (P, D), gamma (D), beta (D) -> (N, D)
//   y = Compress(source * table's row * scale + position counted from 0 in each source), N = sum of source_length;
//   norm = 1: y = LayerNormalization(y, gamma, beta). table and scale: as in EmbedTarget.
#include "embed.h"

namespace attendant {

namespace {

struct EmbedSource : Operator {
  Machine machine;
  Embedding embedding;

  explicit EmbedSource(const Definition& d) : machine(d.machine), embedding(d, 2) {}

  void run(const Run& run) const override {
    const Tensor source = run.input(0, "source", ort::Type::i64, {-1, -1});
    const int64_t sources = source.shape[0], width = source.shape[1];
    const Tensor length = run.input(1, "source_length", ort::Type::i64, {sources});
    const int64_t* lengths = length.as<int64_t>();
    int64_t tokens = 0;
    for (int64_t b = 0; b < sources; b++) {
      run.require(lengths[b] >= 0 && lengths[b] <= width, "source_length ", lengths[b], " of source ", b,
                  " is outside 0 to ", width);
      tokens += lengths[b];
    }
    float* y = run.output<float>(0, {tokens, embedding.width});
    for (int64_t b = 0; b < sources; b++)
      for (int64_t t = 0; t < lengths[b]; t++, y += embedding.width)
        embedding.row(run, *machine.path, source.as<int64_t>()[b * width + t], t, y);
  }
};

}  // namespace

Declaration embed_source() {
  return {
      "EmbedSource", {ort::Type::i64, ort::Type::i64},
      true,          {ort::Type::f32},
      false,         [](const Definition& d) -> std::unique_ptr<Operator> { return std::make_unique<EmbedSource>(d); }};
}

}  // namespace attendant
