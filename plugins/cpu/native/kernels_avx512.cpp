// The kernels for avx512.
#include "simd_avx512.hpp"

#include "float_engine.hpp"

#include "unpack_avx512.hpp"

#include "dense_widened.hpp"

#include "attention_kernel.hpp"
#include "dense_kernel.hpp"
#include "experts_kernel.hpp"
#include "recurrent_kernel.hpp"
#include "routing_kernel.hpp"
#include "rows_kernel.hpp"
#include "sampling_kernel.hpp"
#include "singles_kernel.hpp"

#include "dispatch.hpp"

namespace anychip {

const Kernels* avx512_kernels() {
  static const Kernels kernels = {
      "avx512",
      {attend<FloatEngine<float>>, attend<FloatEngine<bf16>>, attend<FloatEngine<half>>},
      {merge_partials<FloatEngine<float>>, merge_partials<FloatEngine<bf16>>, merge_partials<FloatEngine<half>>},
      rows::kKernels,
      sampling::kKernels,
      recurrent::kKernels,
      experts::kKernels,
      routing::kKernels,
  };
  return &kernels;
}

const DenseKernels* avx512_dense() {
  static const DenseKernels kernels = dense::table("avx512");
  return &kernels;
}

const DenseKernels* avx512_singles() {
  static const DenseKernels kernels = singles::table("avx512");
  return &kernels;
}

}  // namespace anychip
