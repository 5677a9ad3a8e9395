// Matrix products with bfloat16 weights: how weights and activations lie. Knows no instruction set.
#pragma once

#include <cstdint>

#include "products.hpp"

namespace anychip {

struct DenseKernels {
  const char* name;
  std::int64_t rows_at_once;  // of a block, at most
  // these pairs of all rows
  void (*arrange)(const ProductArgs& args, const DenseRows& rows, std::int64_t first_pair, std::int64_t last_pair);
  // these blocks for one tile of outputs; the weights of the next are fetched meanwhile
  void (*multiply)(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                   std::int64_t tile, std::int64_t next_tile);
};

const DenseKernels* portable_dense();
const DenseKernels* avx2_dense();
const DenseKernels* avx512_dense();
const DenseKernels* avx512_bf16_dense();

}  // namespace anychip
