// The kernels for avx512_bf16: as for avx512, but for products of bfloat16.
#include "simd_avx512.hpp"

#include "float_engine.hpp"
#include "pair_engine.hpp"

#include "dense_avx512_bf16.hpp"

#include "attention_kernel.hpp"
#include "dense_kernel.hpp"
#include "experts_kernel.hpp"
#include "recurrent_kernel.hpp"
#include "routing_kernel.hpp"
#include "rows_kernel.hpp"
#include "sampling_kernel.hpp"

#include "dispatch.hpp"

namespace anychip {

const Kernels* avx512_bf16_kernels() {
  static const Kernels kernels = {
      "avx512_bf16",
      {attend<FloatEngine<float>>, attend<PairEngine>, attend<FloatEngine<half>>},
      {merge_partials<FloatEngine<float>>, merge_partials<PairEngine>, merge_partials<FloatEngine<half>>},
      rows::kKernels,
      sampling::kKernels,
      recurrent::kKernels,
      experts::kKernels,
      routing::kKernels,
  };
  return &kernels;
}

const DenseKernels* avx512_bf16_dense() {
  static const DenseKernels kernels = dense::table("avx512_bf16");
  return &kernels;
}

}  // namespace anychip
