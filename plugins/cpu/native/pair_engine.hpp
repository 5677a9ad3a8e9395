// Products of pairs of bfloat16 summed as floats, on AVX-512 BF16. Knows Simd; knows no page.
#pragma once

#include "simd_avx512.hpp"

namespace {

// A unit of 32 bits is a pair of neighbours: dimensions for scores, keys for values.
struct PairEngine {
  using Element = bf16;
  using F = __m512;
  static constexpr int kPerUnit = 2;

  static F load_units(const bf16* p) { return _mm512_castsi512_ps(_mm512_loadu_si512(p)); }
  // the first half of them, as is left where a head is an odd number of vectors long
  static F load_few_units(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_zextsi256_si512(_mm256_loadu_si256((const __m256i*)p)));
  }
  static F dot(F sum, F units, F one) { return _mm512_dpbf16_ps(sum, (__m512bh)units, (__m512bh)one); }
  template <int Vectors>
  static void value_units(const bf16* even, const bf16* odd, F* out) {
    if (Vectors == 1) {
      const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)even));
      const __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)odd));
      out[0] = _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
    alignas(64) static constexpr std::uint16_t kOrder[64] = {
        0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
        11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
        22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
#pragma GCC unroll 4
    for (int j = 0; j + 1 < Vectors; j += 2) {
      __m512i a = _mm512_loadu_si512(even + j * 16), b = _mm512_loadu_si512(odd + j * 16);
      asm("" : "+v"(a), "+v"(b));  // else each is loaded for either
      out[j] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder), b));
      out[j + 1] = _mm512_castsi512_ps(_mm512_permutex2var_epi16(a, _mm512_load_si512(kOrder + 32), b));
    }
  }
  template <int Vectors>
  static void mixed_units(const bf16* even, const bf16* odd, F* out) {
    value_units<Vectors>(even, odd, out);
  }
  static void put_in_order(float*, std::int64_t) {}
  // weights of keys that lie beside each other, as units, and what these sum to
  static F pack_weights(const F* weights, int vectors, float* units) {
    F sum = _mm512_setzero_ps();
    for (int j = 0; j < vectors; j += 2) {
      const __m512i pairs = (__m512i)_mm512_cvtne2ps_pbh(weights[j + 1], weights[j]);
      _mm512_storeu_si512(units + j * 8, pairs);
      sum = _mm512_add_ps(sum, sum_pairs(pairs));
    }
    return sum;
  }

 private:
  // what is summed is what the values are multiplied with
  static F sum_pairs(__m512i pairs) {
    const F even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    const F odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
    return _mm512_add_ps(even, odd);
  }
};

}  // namespace
