// Sums of products of pairs on AVX-512 BF16. Knows Simd; knows no tile.
#pragma once

#include "unpack_avx512.hpp"

namespace {

struct Dense {
  using Pairs = __m512bh;
  static constexpr int kRows = 14, kVectors = 2;  // with two vectors of weights, 30 of 32 registers

  static Pairs load(const std::uint32_t* p) { return (Pairs)_mm512_loadu_si512(p); }
  static Pairs set(std::uint32_t pair) { return (Pairs)_mm512_set1_epi32(static_cast<int>(pair)); }
  static __m512 dot(__m512 sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }

  using Highs = Unpack::Highs;

  // A group of a tile's weights, which are also left behind, if wanted; `kept`: their upper bytes, where codes don't
  // tell them.
  template <bool IsLeft>
  static void unpack(const std::uint8_t* group, const Highs& highs, const std::uint8_t* kept, std::uint32_t* to,
                     int part, Pairs (&weights)[anychip::kGroupPairs][kVectors]) {
    Simd::F words[anychip::kGroupPairs][kVectors];
    Unpack::words(group, highs, kept, part, words);
    for (int pair = 0; pair < anychip::kGroupPairs; ++pair, to += anychip::kTileOutputs)
      for (int v = 0; v < kVectors; ++v) {
        weights[pair][v] = (Pairs)words[pair][v];
        if (IsLeft) Simd::store(reinterpret_cast<float*>(to) + v * Simd::kWidth, words[pair][v]);
      }
  }
};

}  // namespace
