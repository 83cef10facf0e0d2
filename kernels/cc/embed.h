// Token embeddings: a row of the table times its scale, plus the position's row, then a norm where the model has one.
// In int8 the table is a packed weight of D x V, that of the output where they are tied: a token's row is its column.
// A table of positions without rows: the model has none here (they are relative).
#pragma once
#include "layers.h"

namespace attendant {

struct Embedding {
  bool int8, normed;
  int64_t words = 0, places = 0;
  int width = 0;
  const void* table = nullptr;
  const float *scale = nullptr, *positions = nullptr;
  std::vector<float> no_position;  // zeros, in place of a position's row
  Norm norm{};

  // Inputs from `first` on: table, scale (int8: of each row; f32: one factor), positions, gamma, beta.
  Embedding(const Definition& d, size_t first) : int8(d.flag("int8")), normed(d.flag("norm")) {
    const Tensor rows = int8 ? d.constant(first, "table", ort::Type::i8, {-1, -1, 2, 16, 4})
                             : d.constant(first, "table", ort::Type::f32, {-1, -1});
    const Tensor factor = int8 ? d.constant(first + 1, "scale", ort::Type::f32, {-1, 1})
                               : d.constant(first + 1, "factor", ort::Type::f32, {1});
    words = int8 ? factor.shape[0] : rows.shape[0];
    d.require(!int8 || words <= 32 * rows.shape[0], "scales of ", words, " words: the table has ", 32 * rows.shape[0]);
    const int64_t features = int8 ? 4 * rows.shape[1] : rows.shape[1];
    d.require(features > 0 && features % 16 == 0 && features <= 1 << 24, "a table of ", features,
              " features: it must be a multiple of 16");
    width = int(features);
    table = rows.data;
    scale = factor.as<const float>();
    const Tensor places_of = d.constant(first + 2, "positions", ort::Type::f32, {-1, width});
    places = places_of.shape[0];
    positions = places_of.as<const float>();
    if (!places) no_position.resize(size_t(width));
    Weights weights(d, first + 3, int8);
    norm = weights.norm("norm", width, d.number("epsilon"));
  }

  void row(const Run& run, const Path& path, int64_t token, int64_t position, float* y) const {
    run.require(token >= 0 && token < words, "token ", token, " is outside the table of ", words, " words");
    run.require(position >= 0 && (position < places || !places), "position ", position, " is outside the table of ",
                places, " positions");
    const float* place = places ? positions + position * width : no_position.data();
    if (int8) {
      const int64_t block = token / 32 * 32 * width, column = token % 32 * 4;
      path.embed_int8(static_cast<const int8_t*>(table) + block + column, scale[token], place, width, y);
    } else
      path.embed_f32(static_cast<const float*>(table) + token * width, *scale, place, width, y);
    if (normed) path.norm_row(y, width, norm, y, nullptr, nullptr);
  }
};

}  // namespace attendant
