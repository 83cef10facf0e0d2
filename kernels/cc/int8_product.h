// Rows of quantized activations times packed int8 weights, for any instruction set.
//
// An instruction set D (a path file has one) says how four products are summed into one 32-bit lane:
//   Lanes           its 16 lanes; Lanes::I holds 16 sums of int32
//   OFFSET          what is added to activations so that they are stored as its instruction wants them: 128 or 0
//   ROWS, HALVES    the tile: at most ROWS rows times HALVES * 16 columns of sums are held in registers
//   Weights         load(p): 16 columns x 4 weights
//   Rows            spread(p): 4 activations of one row, in every lane
//   zero(), dot(sums, row, weights), plus(a, b), without_offset(sums, column_sums)
#pragma once
#include "path.h"

namespace {

using attendant::Int8Product;

// The sums of one tile in registers, over all of k, then scaled and stored. UNROLL chains of sums for each place: few
// rows would otherwise wait for the latency of the instruction.
template <class D, int ROWS, int HALVES, int UNROLL>
__attribute__((noinline)) void int8_tile(const Int8Product& p, int row, const int8_t* w, int column, int halves,
                                         const int8_t* ahead) {
  using L = typename D::Lanes;
  typename L::I sums[UNROLL][ROWS][HALVES];
#pragma GCC unroll 4
  for (int u = 0; u < UNROLL; u++)
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 2
      for (int h = 0; h < HALVES; h++) sums[u][i][h] = D::zero();

  const int k = p.w->k;
  const size_t stride = size_t(k);
  // One pointer for four rows: with one for each, or one for all, addresses take more registers than there are.
  constexpr int GROUPS = (ROWS + 3) / 4;
  const uint8_t* q[GROUPS];
#pragma GCC unroll 4
  for (int g = 0; g < GROUPS; g++) q[g] = p.q + (row + 4 * g) * stride;
#pragma GCC unroll 1
  for (int left = k; left > 0; left -= 4 * UNROLL) {
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) asm("" : "+r"(q[g]));  // else the compiler goes back to one for each
#pragma GCC unroll 4
    for (int u = 0; u < UNROLL; u++) {
      typename D::Weights weights[HALVES];
#pragma GCC unroll 2
      for (int h = 0; h < HALVES; h++) weights[h] = D::load(w + 64 * h);
      if (ROWS <= 4) {  // weights come from memory: far ahead in the stream
        __builtin_prefetch(w + 4096, 0, 3);
        __builtin_prefetch(w + 4096 + 64, 0, 3);
      } else {  // they come from the cache: the next block into the second level
        __builtin_prefetch(ahead, 0, 2);
        __builtin_prefetch(ahead + 64, 0, 2);
        ahead += 128;
      }
      w += 128;
#pragma GCC unroll 16
      for (int i = 0; i < ROWS; i++) {
        const typename D::Row spread = D::spread(q[i / 4] + (i % 4) * stride + 4 * u);
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) D::dot(sums[u][i][h], spread, weights[h]);
      }
    }
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) q[g] += 4 * UNROLL;
  }

  const int first = 32 * p.first;
#pragma GCC unroll 2
  for (int h = 0; h < HALVES; h++) {
    if (h >= halves) break;
    const int n = column + 16 * h;
    const typename L::F scale = L::load(p.w->scale + n), bias = L::load(p.w->bias + n);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      typename L::I sum = sums[0][i][h];
#pragma GCC unroll 4
      for (int u = 1; u < UNROLL; u++) sum = D::plus(sum, sums[u][i][h]);
      sum = D::without_offset(sum, p.w->sums + n);
      typename L::F y = L::mul(L::from_int32(sum), L::mul(L::set(p.row_scale[row + i]), scale));
      y = L::add(y, bias);
      if (p.add) y = L::add(y, L::load(p.add + (row + i) * p.add_stride + (n - first)));
      L::store(p.y + (row + i) * p.y_stride + (n - first), y);
    }
  }
}

template <class D, int ROWS>
void int8_tile_of(const Int8Product& p, int rows, int row, const int8_t* w, int column, int halves,
                  const int8_t* ahead) {
  if constexpr (ROWS > 0) {
    constexpr int UNROLL = ROWS == 1 ? D::UNROLL : ROWS <= 3 ? (D::UNROLL + 1) / 2 : 1;
    if (rows == ROWS)
      int8_tile<D, ROWS, D::HALVES, UNROLL>(p, row, w, column, halves, ahead);
    else
      int8_tile_of<D, ROWS - 1>(p, rows, row, w, column, halves, ahead);
  }
}

// Panels of at most 96 rows stay in the cache while all blocks of weights pass by; a block serves all tiles of a panel.
template <class D>
void int8_product(const Int8Product& p) {
  constexpr int PANEL = 96;
  const size_t block_bytes = size_t(32) * p.w->k;
  const int panels = (p.rows + PANEL - 1) / PANEL;
  for (int panel = 0; panel < panels; panel++) {
    const int from = int(int64_t(panel) * p.rows / panels), to = int(int64_t(panel + 1) * p.rows / panels);
    const int tiles = (to - from + D::ROWS - 1) / D::ROWS;
    for (int block = p.first; block < p.last; block++) {
      const int8_t* w = p.w->packed + block * block_bytes;
      const int halves = 32 * block + 16 < p.w->n ? 2 : 1;
      for (int half = 0; half < halves; half += D::HALVES)
        for (int tile = 0, row = from; tile < tiles; tile++) {
          const int end = from + (tile + 1) * (to - from) / tiles;
          const int8_t* ahead = tile + 1 == tiles && block + 1 < p.last ? w + block_bytes : w;
          int8_tile_of<D, D::ROWS>(p, end - row, row, w + 64 * half, 32 * block + 16 * half, halves - half, ahead);
          row = end;
        }
    }
  }
}

}  // namespace
