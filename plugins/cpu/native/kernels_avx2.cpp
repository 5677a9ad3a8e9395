// The kernels for avx2.
#include "simd_avx2.hpp"

#include "integer_avx2.hpp"

#include "float_engine.hpp"

#include "unpack_avx2.hpp"

#include "dense_widened.hpp"

#include "attention_kernel.hpp"
#include "dense_kernel.hpp"
#include "experts_kernel.hpp"
#include "products_kernel.hpp"
#include "recurrent_kernel.hpp"
#include "routing_kernel.hpp"
#include "rows_kernel.hpp"
#include "sampling_kernel.hpp"
#include "singles_kernel.hpp"

#include "dispatch.hpp"

namespace anychip {

const Kernels* avx2_kernels() {
  static const Kernels kernels = {
      "avx2",
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

const ProductKernels* avx2_products() {
  static const ProductKernels kernels = products::table("avx2");
  return &kernels;
}

const DenseKernels* avx2_dense() {
  static const DenseKernels kernels = dense::table("avx2");
  return &kernels;
}

const DenseKernels* avx2_singles() {
  static const DenseKernels kernels = singles::table("avx2");
  return &kernels;
}

}  // namespace anychip
