// What one instruction set has to offer: a table of plain functions, chosen once when the library is registered.
//
// A path is one file, path_NAME.cc, compiled with that instruction set's flags. Nothing outside these files uses more
// than the base instructions. Every function gives the same bits on every path: integer sums are exact, and sums of
// floats are made in the order of 16 lanes (lanes.h) whatever the registers' width.
#pragma once
#include <cstddef>
#include <cstdint>

namespace attendant {

constexpr int PACKED_GROUP = 128;  // bytes of a packed int8 weight's group: 4 rows of 32 columns

// An int8 product's weights, K x N, packed in blocks of 32 columns (docs/kernels.md draws it):
// packed[b][g][h][c][j] = w[4g + j][32b + 16h + c], zeros beyond N.
struct Int8Weights {
  int k, n;              // k is a multiple of 16; n as in the model, the arrays below have n rounded up to 32
  const int8_t* packed;  // -63 ... 63
  const float* scale;    // of each column
  const int32_t* sums;   // of each column's weights
  const float* bias;
  int blocks() const { return (n + 31) / 32; }
};

// Rows times blocks [first, last) of the weights' columns. `y` and `add` point at the first block's first column.
// y = float(sum of q * w) * (row_scale * column_scale) + bias [+ add]; columns from w.n rounded up to 16 on are not
// written.
struct Int8Product {
  const Int8Weights* w;
  const uint8_t* q;  // rows of quantized activations, w->k bytes each
  const float* row_scale;
  int rows, first, last;
  float* y;
  size_t y_stride;   // in floats, from row to row
  const float* add;  // null, or what is added; may be y
  size_t add_stride;
};

// The same in f32: y = x * w + bias [+ add] for columns [first, last), multiples of 16; `first` is one of 32.
// Column c of row i of the weights is at w[c / 32 * block_stride + i * w_stride + c % 32]: packed weights have a
// w_stride of 32 and a block_stride of 32 * k, a plain (k, n) matrix n and 32.
struct F32Product {
  const float* w;
  size_t w_stride, block_stride;
  const float* bias;  // null, or n floats
  const float* x;
  size_t x_stride;
  int k, rows, first, last;
  float* y;  // column 0 of the result
  size_t y_stride;
  const float* add;
  size_t add_stride;
  float* room;  // of a plain matrix: scratch for 32 * k floats, or null
};

// y[r][c] = x[r] . table[first + c] + bias[first + c] for c in [0, last - first): the vocabulary in f32.
struct TableProduct {
  const float* table;  // (words, k)
  const float* bias;
  const float* x;  // (rows, k)
  int k, rows, first, last;
  float* y;
  size_t y_stride;
};

struct Norm {
  const float* gamma;  // null: no norm
  const float* beta;
  float epsilon;
  bool rms;  // RMSNorm: the mean is taken to be 0
};

enum class Activation : int { relu, gelu, silu, gelu_tanh };

// One query row of some heads over the first `length` slots of their caches (heads, slots, d).
struct Attention {
  int heads, d, length;
  const float* query;  // (heads, d)
  const void* key;     // int8 or f32
  const void* value;
  size_t head_stride;      // in elements, from one head's cache to the next
  const float* key_scale;  // int8: (heads, slots)
  const float* value_scale;
  size_t scale_stride;  // in floats, from head to head
  float factor;         // 1 / sqrt(d)
  const float* bias;    // null, or what is added to the scores: (heads, length), `bias_stride` floats apart
  size_t bias_stride;   // at least `length` rounded up to 16
  float* scores;        // scratch: heads * (length rounded up to 16, and one more)
  float* out;           // (heads, d)
};

struct Path {
  const char* name;

  void (*int8_product)(const Int8Product&);
  void (*f32_product)(const F32Product&);
  void (*table_product)(const TableProduct&);

  // y = norm(x) (not written if null), and quantized: q and its scale (not if null). Without gamma, norm(x) = x. x may
  // be y.
  void (*norm_row)(const float* x, int width, const Norm&, float* y, uint8_t* q, float* scale);
  // In place: x = activation(x), times the gate if there is one (not null); and quantized likewise.
  void (*activate_row)(float* x, int width, Activation, const float* gate, uint8_t* q, float* scale);
  // One head's key or value for the cache, int8 without an offset; returns its scale. d is a multiple of 8.
  float (*quantize_head)(const float* x, int d, int8_t* q);

  void (*attend_int8)(const Attention&);
  void (*attend_f32)(const Attention&);

  // y = table row * scale + position; width is a multiple of 16. In int8 the row is a column of a packed weight, whose
  // 4 values of each group are PACKED_GROUP bytes apart.
  void (*embed_int8)(const int8_t* column, float scale, const float* position, int width, float* y);
  void (*embed_f32)(const float* row, float scale, const float* position, int width, float* y);

  // to[c][r] = from[r][c] for `rows` rows of `columns`, a multiple of 8; zeros in [rows, rows rounded up to 16)
  void (*transpose)(const float* from, size_t stride, int rows, int columns, float* to, size_t to_stride);
  // In place: x = softmax(x * factor) over `length` values; `length` rounded up to 16 may be written (zeros).
  void (*softmax)(float* x, int length, float factor);
  // In place: x = x * factor + bias; up to `length` rounded up to 16 values are read and written.
  void (*add_bias)(float* x, const float* bias, int length, float factor);
  // The maximum of a chunk of logits and the sum of exp(logit - maximum); rounded up to 16 values may be read and
  // written.
  void (*chunk_sum)(float* x, int length, float* most, float* sum);
  // Indices of values greater than `least`, at most 16 * ceil(length / 16); returns how many.
  int (*find_greater)(const float* x, int length, float least, int* found);
};

extern const Path path_portable;
#if defined(__x86_64__)
extern const Path path_avx512vnni, path_avxvnni, path_avx2;
#elif defined(__aarch64__)
extern const Path path_i8mm, path_dotprod;
#endif

// The names of the paths that this machine can run, the fastest first, separated by spaces.
const char* supported_paths();
// The path of that name, or the fastest if it is empty; an Error if the machine cannot run it.
const Path& choose_path(const char* name);

}  // namespace attendant
