// The feed-forward sublayer, the same in encoder and decoder.
#pragma once
#include "layers.h"

namespace attendant {

struct FeedForward {
  Product widen, narrow;
  Norm norm;
  Activation activation;
  bool pre_norm, gated;

  // Reads widen and narrow; `wide`: the features between them.
  void read(const Definition& definition, Weights& weights, int width, int wide) {
    activation = activation_of(definition);
    gated = is_gated(definition);
    widen = weights.product("widen", width, gated ? 2 * wide : wide);
    narrow = weights.product("narrow", wide, width);
  }

  // pre_norm: x += narrow(activation(widen(norm(x)))); else x = norm(x + narrow(activation(widen(x)))). Gated, the
  // first half of what widen computes is activated, and multiplied by the second. In panels of rows, so that what is
  // wide stays in the cache.
  void run(Workers& workers, float* x, int rows) const {
    const int width = widen.k, wide = narrow.k, panel = 96 * workers.team_size();
    for (int from = 0; from < rows; from += panel) {
      const int count = rows - from < panel ? rows - from : panel;
      float* part = x + size_t(from) * size_t(width);
      Frame frame;
      Activations a = Workers::room(frame, widen, count, width);
      workers.prepare(part, count, width, pre_norm ? norm : Norm{}, nullptr, widen, a);
      float* hidden = frame.take<float>(size_t(count) * size_t(widen.n));
      workers.multiply(widen, a, count, hidden, size_t(widen.n), nullptr);
      Activations b;
      if (narrow.int8) b = Workers::room(frame, narrow, count, wide);
      workers.activate(hidden, count, wide, activation, gated, narrow, b);
      workers.multiply(narrow, b, count, part, size_t(width), part);
      if (!pre_norm) workers.normalize(part, count, width, norm, part);
    }
  }
};

}  // namespace attendant
