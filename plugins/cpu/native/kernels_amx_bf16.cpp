// Products of bfloat16 by the processor's matrix tiles (AMX).
#include "simd_avx512.hpp"

#include "tiles_kernel.hpp"

namespace anychip {

const DenseKernels* amx_bf16_dense() {
  static const DenseKernels kernels = tiles::table("amx_bf16");
  return &kernels;
}

}  // namespace anychip
