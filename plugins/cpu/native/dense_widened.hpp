// Sums of products of pairs that are widened to floats first. Knows Simd; knows no tile.
#pragma once

#include "compact.hpp"
#include "numbers.hpp"

namespace {

struct Dense {
  using F = Simd::F;
  using I = std::int32_t __attribute__((vector_size(sizeof(F))));
  struct Pairs {
    F even, odd;
  };
  static constexpr int kRows = sizeof(F) == 64 ? 12 : 4, kVectors = 2;  // what 32 or 16 registers hold

  static Pairs load(const std::uint32_t* p) { return widen(Simd::load(reinterpret_cast<const float*>(p))); }
  static Pairs set(std::uint32_t pair) {
    float bits;
    __builtin_memcpy(&bits, &pair, sizeof bits);
    return widen(Simd::set(bits));
  }
  using Highs = const std::uint8_t*;  // a tile's upper bytes by their codes

  // A group of a tile's weights, which lie behind `to` then; `kept`: their upper bytes, where codes don't tell them.
  template <bool IsLeft>
  static void unpack(const std::uint8_t* group, Highs highs, const std::uint8_t* kept, std::uint32_t* to, int part,
                     Pairs (&weights)[anychip::kGroupPairs][kVectors]) {
    for (std::int64_t pair = 0; pair < anychip::kGroupPairs; ++pair, to += anychip::kTileOutputs) {
      const std::uint8_t* low = group + (pair + 1) * anychip::kPairValues;
      for (std::int64_t value = 0; value < anychip::kPairValues; ++value) {
        const std::int64_t at = anychip::place_of(value);
        const int high = kept == nullptr ? highs[group[at] >> 4 * pair & 0xf] : kept[pair * anychip::kPairValues + at];
        const auto bits = static_cast<std::uint16_t>(high << 8 | low[at]);
        __builtin_memcpy(reinterpret_cast<char*>(to) + value * sizeof bits, &bits, sizeof bits);
      }
      for (int v = 0; v < kVectors; ++v) weights[pair][v] = load(to + part + v * Simd::kWidth);
    }
  }

  static F dot(F sum, Pairs a, Pairs b) { return Simd::fma(a.even, b.even, Simd::fma(a.odd, b.odd, sum)); }

 private:
  static Pairs widen(F pairs) { return {(F)((I)pairs << 16), (F)((I)pairs & static_cast<std::int32_t>(0xffff0000u))}; }
};

}  // namespace
