// Compact weights unpacked on AVX2. Knows Simd and how a group lies; multiplies nothing.
#pragma once

#include "compact.hpp"
#include "simd_avx2.hpp"

namespace {

struct Unpack {
  static constexpr int kVectors = 2;

  // A tile's upper bytes by their codes.
  struct Highs {
    __m256i bytes;

    explicit Highs(const std::uint8_t* sixteen)
        : bytes(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)sixteen))) {}
    __m256i of(__m256i codes) const {
      return _mm256_shuffle_epi8(bytes, _mm256_and_si256(codes, _mm256_set1_epi8(0xf)));
    }
  };

  // Both pairs of a group, for the outputs from `part` on; `kept`: the upper bytes, where codes don't tell them.
  static void words(const std::uint8_t* group, const Highs& highs, const std::uint8_t* kept, int part,
                    Simd::F (&out)[anychip::kGroupPairs][kVectors]) {
    // sixteen bytes in turn hold eight values of the first outputs and eight of the others
    for (int v = 0; v < kVectors; ++v) {
      const std::uint8_t* at = group + v * sizeof(__m256i);
      const __m256i codes = load(at);
      __m256i first = highs.of(codes), second = highs.of(_mm256_srli_epi16(codes, 4));
      if (__builtin_expect(kept != nullptr, 0)) {
        first = load(kept + v * sizeof(__m256i));
        second = load(kept + anychip::kPairValues + v * sizeof(__m256i));
      }
      out[0][v] = join(load(at + anychip::kPairValues), first, part);
      out[1][v] = join(load(at + 2 * anychip::kPairValues), second, part);
    }
  }

 private:
  static __m256i load(const std::uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
  static __m256 join(__m256i low, __m256i high, int part) {
    return _mm256_castsi256_ps(part == 0 ? _mm256_unpacklo_epi8(low, high) : _mm256_unpackhi_epi8(low, high));
  }
};

}  // namespace
