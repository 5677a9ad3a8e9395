// Compact weights unpacked on AVX-512. Knows Simd and how a group lies; multiplies nothing.
#pragma once

#include "compact.hpp"
#include "simd_avx512.hpp"

namespace {

struct Unpack {
  static constexpr int kVectors = 2;

  // A tile's upper bytes by their codes.
  struct Highs {
    __m512i bytes;

    explicit Highs(const std::uint8_t* sixteen)
        : bytes(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)sixteen))) {}
    __m512i of(__m512i codes) const {
      return _mm512_shuffle_epi8(bytes, _mm512_and_si512(codes, _mm512_set1_epi8(0xf)));
    }
  };

  // Both pairs of a group; two vectors are all of a tile's outputs. `kept`: the upper bytes, where codes don't tell them.
  static void words(const std::uint8_t* group, const Highs& highs, const std::uint8_t* kept, int,
                    Simd::F (&out)[anychip::kGroupPairs][kVectors]) {
    const __m512i codes = _mm512_loadu_si512(group);
    __m512i first = highs.of(codes), second = highs.of(_mm512_srli_epi16(codes, 4));
    if (__builtin_expect(kept != nullptr, 0)) {
      first = _mm512_loadu_si512(kept);
      second = _mm512_loadu_si512(kept + anychip::kPairValues);
    }
    join(_mm512_loadu_si512(group + anychip::kPairValues), first, out[0]);
    join(_mm512_loadu_si512(group + 2 * anychip::kPairValues), second, out[1]);
  }

 private:
  static void join(__m512i low, __m512i high, Simd::F (&out)[kVectors]) {
    out[0] = _mm512_castsi512_ps(_mm512_unpacklo_epi8(low, high));
    out[1] = _mm512_castsi512_ps(_mm512_unpackhi_epi8(low, high));
  }
};

}  // namespace
