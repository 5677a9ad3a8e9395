// Sums of 8- and 4-bit products on AVX-512 VNNI. Knows how a part of a tile lies; knows no scale.
#pragma once

#include <cstring>

#include "products.hpp"
#include "simd_avx512.hpp"

namespace {

struct Engine {
  static constexpr int kRows = 6;

  // Of each row: `less` plus the products of a part's 32 activations with the weights of 32 outputs.
  template <int R, int Bits>
  static void dot(const std::uint8_t* weight, const std::int8_t* levels, const std::int32_t* less, __m512 (*out)[2]) {
    __m512i sums[R][2];
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_set1_epi32(less[r]);
    if constexpr (Bits == 8) {
      for (int quad = 0; quad < 8; ++quad)
        add<R>(load(weight, 2 * quad), load(weight, 2 * quad + 1), levels + 4 * quad, sums);
    } else {
      const __m512i low = _mm512_set1_epi8(15);
      for (int quad = 0; quad < 4; ++quad) {
        const __m512i a = load(weight, 2 * quad), b = load(weight, 2 * quad + 1);
        add<R>(_mm512_and_si512(a, low), _mm512_and_si512(b, low), levels + 4 * quad, sums);
        add<R>(_mm512_and_si512(_mm512_srli_epi16(a, 4), low), _mm512_and_si512(_mm512_srli_epi16(b, 4), low),
               levels + 16 + 4 * quad, sums);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < 2; ++v) out[r][v] = _mm512_cvtepi32_ps(sums[r][v]);
  }

 private:
  static __m512i load(const std::uint8_t* weight, int vector) { return _mm512_loadu_si512(weight + 64 * vector); }

  template <int R>
  static void add(__m512i a, __m512i b, const std::int8_t* levels, __m512i (*sums)[2]) {
    for (int r = 0; r < R; ++r) {
      std::int32_t four;
      std::memcpy(&four, levels + anychip::kPart * r, sizeof four);
      const __m512i x = _mm512_set1_epi32(four);
      sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], a, x);
      sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], b, x);
    }
  }
};

}  // namespace
