// ARM64 with i8mm: smmla multiplies two rows of 8 activations with two columns of 8 weights at once, twice the rate of
// sdot. It wants 8 weights of a column side by side; the packed weights have 4, so two vectors are woven into two.
#include "dot_neon.h"
#include "path_table.h"

namespace {

// Up to PAIRS pairs of rows times 16 columns; `rows` says how many rows there are (the last pair may have one).
template <int PAIRS>
void i8mm_tile(const Int8Product& p, int row, int rows, const int8_t* w, int column) {
  using L = NeonLanes;
  int32x4_t sums[PAIRS][8];  // of a pair and two columns: r0c0, r0c1, r1c0, r1c1
#pragma GCC unroll 4
  for (int i = 0; i < PAIRS; i++)
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++) sums[i][c] = vdupq_n_s32(0);
  const size_t stride = size_t(p.w->k);
  const int8_t* q = reinterpret_cast<const int8_t*>(p.q) + row * stride;
  for (int at = 0; at < p.w->k; at += 8, w += 256) {
    int8x16_t pairs[PAIRS];
#pragma GCC unroll 4
    for (int i = 0; i < PAIRS; i++) {
      const int8_t* first = q + 2 * i * stride + at;
      pairs[i] = vcombine_s8(vld1_s8(first), vld1_s8(2 * i + 1 < rows ? first + stride : first));
    }
#pragma GCC unroll 4
    for (int four = 0; four < 4; four++) {
      const int32x4_t low = vreinterpretq_s32_s8(vld1q_s8(w + 16 * four));
      const int32x4_t high = vreinterpretq_s32_s8(vld1q_s8(w + 128 + 16 * four));
      const int8x16_t left = vreinterpretq_s8_s32(vzip1q_s32(low, high)),
                      right = vreinterpretq_s8_s32(vzip2q_s32(low, high));
#pragma GCC unroll 4
      for (int i = 0; i < PAIRS; i++) {
        sums[i][2 * four] = vmmlaq_s32(sums[i][2 * four], pairs[i], left);
        sums[i][2 * four + 1] = vmmlaq_s32(sums[i][2 * four + 1], pairs[i], right);
      }
    }
  }
  const int to = column - 32 * p.first;
  const L::F scale = L::load(p.w->scale + column), bias = L::load(p.w->bias + column);
#pragma GCC unroll 4
  for (int i = 0; i < 2 * PAIRS; i++) {
    if (i >= rows) break;
    L::I sum;
#pragma GCC unroll 4
    for (int four = 0; four < 4; four++) {
      const int64x2_t a = vreinterpretq_s64_s32(sums[i / 2][2 * four]),
                      b = vreinterpretq_s64_s32(sums[i / 2][2 * four + 1]);
      sum.v[four] = vreinterpretq_s32_s64(i % 2 ? vzip2q_s64(a, b) : vzip1q_s64(a, b));
    }
    L::F y = L::mul(L::from_int32(sum), L::mul(L::set(p.row_scale[row + i]), scale));
    y = L::add(y, bias);
    if (p.add) y = L::add(y, L::load(p.add + (row + i) * p.add_stride + to));
    L::store(p.y + (row + i) * p.y_stride + to, y);
  }
}

void i8mm_product(const Int8Product& p) {
  if (p.rows == 1) return int8_product<DotNeon>(p);  // half of smmla would be for nothing
  for (int block = p.first; block < p.last; block++)
    for (int half = 0; half < 2 && 32 * block + 16 * half < p.w->n; half++) {
      const int8_t* w = p.w->packed + size_t(block) * 32 * size_t(p.w->k) + 64 * half;
      for (int row = 0; row < p.rows; row += 4) {
        const int rows = p.rows - row < 4 ? p.rows - row : 4;
        if (rows > 2)
          i8mm_tile<2>(p, row, rows, w, 32 * block + 16 * half);
        else
          i8mm_tile<1>(p, row, rows, w, 32 * block + 16 * half);
      }
    }
}

constexpr attendant::Path with_i8mm() {
  attendant::Path path = make_path<DotNeon, 6>("i8mm");
  path.int8_product = i8mm_product;
  return path;
}

}  // namespace

const attendant::Path attendant::path_i8mm = with_i8mm();
