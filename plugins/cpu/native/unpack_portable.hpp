// Compact weights unpacked one by one. Knows Simd and how a group lies; multiplies nothing.
#pragma once

#include "compact.hpp"
#include "numbers.hpp"

namespace {

struct Unpack {
  static constexpr int kVectors = 2;
  using Highs = const std::uint8_t*;  // a tile's upper bytes by their codes

  // Both pairs of a group, for the outputs from `part` on; `kept`: the upper bytes, where codes don't tell them.
  static void words(const std::uint8_t* group, Highs highs, const std::uint8_t* kept, int part,
                    Simd::F (&out)[anychip::kGroupPairs][kVectors]) {
    constexpr std::int64_t kValues = 2 * kVectors * Simd::kWidth;
    for (std::int64_t pair = 0; pair < anychip::kGroupPairs; ++pair) {
      const std::uint8_t* low = group + (pair + 1) * anychip::kPairValues;
      alignas(Simd::F) std::uint16_t bits[kValues];
      for (std::int64_t value = 0; value < kValues; ++value) {
        const std::int64_t at = anychip::place_of(2 * part + value);
        const int high = kept == nullptr ? highs[group[at] >> 4 * pair & 0xf] : kept[pair * anychip::kPairValues + at];
        bits[value] = static_cast<std::uint16_t>(high << 8 | low[at]);
      }
      __builtin_memcpy(out[pair], bits, sizeof bits);
    }
  }
};

}  // namespace
