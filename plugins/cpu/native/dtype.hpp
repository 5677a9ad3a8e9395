// The element types that kernels are made for. Knows no kernel.
#pragma once

#include <cstdint>

namespace anychip {

enum DType : std::int32_t { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2, kDTypes = 3 };

}  // namespace anychip
