// The kernels for portable.
#include "simd_portable.hpp"

#include "integer_portable.hpp"

#include "float_engine.hpp"

#include "unpack_portable.hpp"

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

const Kernels* portable_kernels() {
  static const Kernels kernels = {
      "portable",
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

const ProductKernels* portable_products() {
  static const ProductKernels kernels = products::table("portable");
  return &kernels;
}

const DenseKernels* portable_dense() {
  static const DenseKernels kernels = dense::table("portable");
  return &kernels;
}

const DenseKernels* portable_singles() {
  static const DenseKernels kernels = singles::table("portable");
  return &kernels;
}

}  // namespace anychip
