// The products of integers for avx512_vnni.
#include "integer_avx512_vnni.hpp"

#include "products_kernel.hpp"

namespace anychip {

const ProductKernels* avx512_vnni_products() {
  static const ProductKernels kernels = products::table("avx512_vnni");
  return &kernels;
}

}  // namespace anychip
