// Sums of 8- and 4-bit products on AVX2. Knows how a part of a tile lies; knows no scale.
#pragma once

#include <cstring>

#include "simd_avx2.hpp"

namespace {

struct Engine {
  static constexpr int kRows = 1;

  template <int R, int Bits>
  static void dot(const std::uint8_t* weight, const std::int8_t* levels, const std::int32_t* less, __m256 (*out)[4]) {
    __m256i sums[4];
    if constexpr (Bits == 8)
      eight(weight, levels, sums);
    else
      four(weight, levels, sums);
    for (int v = 0; v < 4; ++v) out[0][v] = _mm256_cvtepi32_ps(_mm256_add_epi32(sums[v], _mm256_set1_epi32(less[0])));
  }

 private:
  // Pairs of 8-bit products don't fit 16 bits, so both sides are widened first.
  static void eight(const std::uint8_t* weight, const std::int8_t* levels, __m256i* sums) {
    __m256i pairs[8];  // of four outputs each: two sums an output
    for (auto& pair : pairs) pair = _mm256_setzero_si256();
    for (int quad = 0; quad < 8; ++quad) {
      std::int32_t word;
      std::memcpy(&word, levels + 4 * quad, sizeof word);
      const __m256i x = _mm256_cvtepi8_epi16(_mm_set1_epi32(word));
      for (int i = 0; i < 8; ++i) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(weight + quad * 128 + i * 16));
        pairs[i] = _mm256_add_epi32(pairs[i], _mm256_madd_epi16(_mm256_cvtepu8_epi16(bytes), x));
      }
    }
    for (int v = 0; v < 4; ++v)
      sums[v] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(pairs[2 * v], pairs[2 * v + 1]), 0xd8);
  }

  // All of a part's pairs of 4-bit products fit 16 bits: 16 * 15 * 127 < 2^15.
  static void four(const std::uint8_t* weight, const std::int8_t* levels, __m256i* sums) {
    const __m256i low = _mm256_set1_epi8(15);
    for (auto* sum = sums; sum < sums + 4; ++sum) *sum = _mm256_setzero_si256();
    for (int quad = 0; quad < 4; ++quad) {
      std::int32_t first, second;
      std::memcpy(&first, levels + 4 * quad, sizeof first);
      std::memcpy(&second, levels + 16 + 4 * quad, sizeof second);
      const __m256i x = _mm256_set1_epi32(first), y = _mm256_set1_epi32(second);
      for (int v = 0; v < 4; ++v) {
        const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(weight + quad * 128 + v * 32));
        const __m256i a = _mm256_maddubs_epi16(_mm256_and_si256(bytes, low), x);
        const __m256i b = _mm256_maddubs_epi16(_mm256_and_si256(_mm256_srli_epi16(bytes, 4), low), y);
        sums[v] = _mm256_add_epi16(sums[v], _mm256_add_epi16(a, b));
      }
    }
    for (int v = 0; v < 4; ++v) sums[v] = _mm256_madd_epi16(sums[v], _mm256_set1_epi16(1));
  }
};

}  // namespace
