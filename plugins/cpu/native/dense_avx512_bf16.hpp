// Sums of products of pairs on AVX-512 BF16. Knows Simd; knows no tile.
#pragma once

#include "compact.hpp"
#include "simd_avx512.hpp"

namespace {

struct Dense {
  using Pairs = __m512bh;
  static constexpr int kRows = 14, kVectors = 2;  // with two vectors of weights, 30 of 32 registers

  static Pairs load(const std::uint32_t* p) { return (Pairs)_mm512_loadu_si512(p); }
  static Pairs set(std::uint32_t pair) { return (Pairs)_mm512_set1_epi32(static_cast<int>(pair)); }
  static __m512 dot(__m512 sum, Pairs a, Pairs b) { return _mm512_dpbf16_ps(sum, a, b); }

  // A tile's upper bytes by their codes.
  struct Highs {
    __m512i bytes;

    explicit Highs(const std::uint8_t* sixteen)
        : bytes(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)sixteen))) {}
    __m512i of(__m512i codes) const {
      return _mm512_shuffle_epi8(bytes, _mm512_and_si512(codes, _mm512_set1_epi8(0xf)));
    }
  };

  // A group of a tile's weights, which are also left behind, if wanted; `kept`: their upper bytes, where codes don't
  // tell them.
  template <bool IsLeft>
  static void unpack(const std::uint8_t* group, const Highs& highs, const std::uint8_t* kept, std::uint32_t* to, int,
                     Pairs (&weights)[anychip::kGroupPairs][kVectors]) {
    const __m512i codes = _mm512_loadu_si512(group);
    __m512i first = highs.of(codes), second = highs.of(_mm512_srli_epi16(codes, 4));
    if (__builtin_expect(kept != nullptr, 0)) {
      first = _mm512_loadu_si512(kept);
      second = _mm512_loadu_si512(kept + anychip::kPairValues);
    }
    join<IsLeft>(_mm512_loadu_si512(group + anychip::kPairValues), first, weights[0], to);
    join<IsLeft>(_mm512_loadu_si512(group + 2 * anychip::kPairValues), second, weights[1], to + anychip::kTileOutputs);
  }

 private:
  template <bool IsLeft>
  static void join(__m512i low, __m512i high, Pairs (&pairs)[kVectors], std::uint32_t* to) {
    pairs[0] = (Pairs)_mm512_unpacklo_epi8(low, high);
    pairs[1] = (Pairs)_mm512_unpackhi_epi8(low, high);
    if (!IsLeft) return;
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_si512(to + v * Simd::kWidth, (__m512i)pairs[v]);
  }
};

}  // namespace
