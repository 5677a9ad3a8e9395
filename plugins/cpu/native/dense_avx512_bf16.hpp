// Sums of products of pairs on AVX-512 BF16. Knows Simd; knows no tile.
#pragma once

#include "simd_avx512.hpp"

namespace {

struct Dense {
  using Pairs = __m512bh;
  static constexpr int kRows = 14, kVectors = 2;  // with two vectors of weights, 30 of 32 registers

  static Pairs load(const std::uint32_t* p) { return (Pairs)_mm512_loadu_si512(p); }
  static Pairs set(std::uint32_t pair) { return (Pairs)_mm512_set1_epi32(static_cast<int>(pair)); }
  static __m512 dot(__m512 sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }
};

}  // namespace
