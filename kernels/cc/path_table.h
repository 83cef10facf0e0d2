// A path's table from its instruction set D (int8_product.h says what that is). REGISTERS: sums of 16 f32 lanes that
// fit into the registers beside weights and activations.
#pragma once
#include "attention.h"
#include "f32_product.h"
#include "int8_product.h"
#include "path.h"
#include "rows.h"

namespace {

template <class D, int REGISTERS>
constexpr attendant::Path make_path(const char* name) {
  using L = typename D::Lanes;
  return {name,
          int8_product<D>,
          f32_product<L, REGISTERS>,
          table_product<L, (REGISTERS >= 20 ? 4 : 1)>,
          norm_row<L, D::OFFSET>,
          activate_row<L, D::OFFSET>,
          quantize_head<L>,
          attend<L, int8_t>,
          attend<L, float>,
          embed_int8<L>,
          embed_f32<L>,
          transpose<L>,
          softmax<L>,
          add_bias<L>,
          chunk_sum<L>,
          find_greater<L>};
}

}  // namespace
