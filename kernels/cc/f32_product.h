// Products in f32. Each result is one chain of fused multiply-adds in the order of k (a table's rows: in 16 lanes), so
// that it does not depend on the tile that computes it.
#pragma once
#include "path.h"

namespace {

using attendant::F32Product;
using attendant::TableProduct;

// ROWS rows times BLOCKS blocks of VECTORS * 16 columns, over all of k.
template <class L, int ROWS, int BLOCKS, int VECTORS>
__attribute__((noinline)) void f32_tile(const F32Product& p, int row, int column, const float* w, size_t w_stride) {
  constexpr int AHEAD = 32;  // rows of weights that are fetched ahead where they come from memory
  typename L::F sums[ROWS][BLOCKS][VECTORS];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; b++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) sums[i][b][v] = L::set(0);
  const float* x = p.x + row * p.x_stride;
#pragma GCC unroll 1
  for (int at = 0; at < p.k; at++, w += w_stride) {
    typename L::F weights[BLOCKS][VECTORS];
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; b++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        weights[b][v] = L::load(w + b * p.block_stride + 16 * v);
        if (ROWS <= 4) __builtin_prefetch(w + b * p.block_stride + AHEAD * w_stride + 16 * v, 0, 3);
      }
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; i++) {
      const typename L::F spread = L::set(x[i * p.x_stride + at]);
#pragma GCC unroll 8
      for (int b = 0; b < BLOCKS; b++)
#pragma GCC unroll 2
        for (int v = 0; v < VECTORS; v++) sums[i][b][v] = L::fma(spread, weights[b][v], sums[i][b][v]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 8
    for (int b = 0; b < BLOCKS; b++)
#pragma GCC unroll 2
      for (int v = 0; v < VECTORS; v++) {
        const int n = column + 32 * b + 16 * v;
        typename L::F y = sums[i][b][v];
        if (p.bias) y = L::add(y, L::load(p.bias + n));
        if (p.add) y = L::add(y, L::load(p.add + (row + i) * p.add_stride + n));
        L::store(p.y + (row + i) * p.y_stride + n, y);
      }
}

template <class L, int ROWS, int BLOCKS, int VECTORS>
void f32_tile_of(const F32Product& p, int rows, int row, int column, const float* w, size_t w_stride) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      f32_tile<L, ROWS, BLOCKS, VECTORS>(p, row, column, w, w_stride);
    else
      f32_tile_of<L, ROWS - 1, BLOCKS, VECTORS>(p, rows, row, column, w, w_stride);
  }
}

// Strips of BLOCKS blocks, from `column` on as many as there are whole; tiles of at most ROWS rows. Returns the column
// behind the last strip.
template <class L, int ROWS, int BLOCKS, int VECTORS>
int f32_strips(const F32Product& p, int column) {
  constexpr int WIDTH = BLOCKS == 1 ? 16 * VECTORS : 32 * BLOCKS;
  const int tiles = (p.rows + ROWS - 1) / ROWS;
  for (; column + WIDTH <= p.last; column += WIDTH) {
    const float* w = p.w + size_t(column / 32) * p.block_stride;
    size_t stride = p.w_stride;
    if (BLOCKS == 1 && tiles > 1 && p.room) {  // used often: a stride of a power of two has few places in a cache
      for (int at = 0; at < p.k; at++)
        for (int v = 0; v < VECTORS; v++)
          L::store(p.room + (size_t(at) * VECTORS + v) * 16, L::load(w + at * stride + 16 * v));
      w = p.room;
      stride = 16 * VECTORS;
    }
    for (int tile = 0, row = 0; tile < tiles; tile++) {
      const int end = int(int64_t(tile + 1) * p.rows / tiles);
      f32_tile_of<L, ROWS, BLOCKS, VECTORS>(p, end - row, row, column, w, stride);
      row = end;
    }
  }
  return column;
}

template <class L, int REGISTERS>
void f32_product(const F32Product& p) {  // REGISTERS: sums of 16 lanes that fit
  int column = p.first;
  if (p.rows == 1)
    column = f32_strips<L, 1, (REGISTERS >= 16 ? 8 : REGISTERS / 2), 2>(p, column);
  else if (p.rows <= 3 && REGISTERS >= 24)
    column = f32_strips<L, 3, 4, 2>(p, column);
  else if (p.rows <= 6 && REGISTERS >= 24)
    column = f32_strips<L, 6, 2, 2>(p, column);
  column = f32_strips<L, REGISTERS / 2, 1, 2>(p, column);
  f32_strips<L, REGISTERS / 2, 1, 1>(p, column);
}

// Four rows of the table at a time times up to ROWS rows of x.
template <class L, int ROWS>
void table_tile(const TableProduct& p, int row, int column) {
  const int count = p.last - column < 4 ? p.last - column : 4;
  const float* t[4];
  for (int c = 0; c < 4; c++) t[c] = p.table + size_t(column + (c < count ? c : count - 1)) * p.k;
  const float* x = p.x + size_t(row) * p.k;
  typename L::F sums[ROWS][4];
#pragma GCC unroll 4
  for (int i = 0; i < ROWS; i++)
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) sums[i][c] = L::set(0);
#pragma GCC unroll 1
  for (int at = 0; at < p.k; at += 16) {
    typename L::F words[4];
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) words[c] = L::load(t[c] + at);
#pragma GCC unroll 4
    for (int i = 0; i < ROWS; i++) {
      const typename L::F features = L::load(x + size_t(i) * p.k + at);
#pragma GCC unroll 4
      for (int c = 0; c < 4; c++) sums[i][c] = L::fma(features, words[c], sums[i][c]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < ROWS; i++) {
    float out[4];
    L::sum4(sums[i][0], sums[i][1], sums[i][2], sums[i][3], out);
    float* y = p.y + (row + i) * p.y_stride + (column - p.first);
    for (int c = 0; c < count; c++) y[c] = out[c] + p.bias[column + c];
  }
}

template <class L, int ROWS>
void table_product(const TableProduct& p) {
  for (int column = p.first; column < p.last; column += 4) {
    int row = 0;
    for (; row + ROWS <= p.rows; row += ROWS) table_tile<L, ROWS>(p, row, column);
    for (; row < p.rows; row++) table_tile<L, 1>(p, row, column);
  }
}

}  // namespace
