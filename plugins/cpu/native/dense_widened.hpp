// Sums of products of pairs that are widened to floats first. Knows Simd; knows no tile.
//
// Include after simd_*.hpp and unpack_*.hpp.
#pragma once

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
  using Highs = Unpack::Highs;

  // A group of a tile's weights, which are also left behind, if wanted; `kept`: their upper bytes, where codes don't
  // tell them.
  template <bool IsLeft>
  static void unpack(const std::uint8_t* group, const Highs& highs, const std::uint8_t* kept, std::uint32_t* to,
                     int part, Pairs (&weights)[anychip::kGroupPairs][kVectors]) {
    F words[anychip::kGroupPairs][kVectors];
    Unpack::words(group, highs, kept, part, words);
    for (int pair = 0; pair < anychip::kGroupPairs; ++pair, to += anychip::kTileOutputs)
      for (int v = 0; v < kVectors; ++v) {
        weights[pair][v] = widen(words[pair][v]);
        if (IsLeft) Simd::store(reinterpret_cast<float*>(to) + part + v * Simd::kWidth, words[pair][v]);
      }
  }

  static F dot(F sum, Pairs a, Pairs b) { return Simd::fma(a.even, b.even, Simd::fma(a.odd, b.odd, sum)); }

 private:
  static Pairs widen(F pairs) { return {(F)((I)pairs << 16), (F)((I)pairs & static_cast<std::int32_t>(0xffff0000u))}; }
};

}  // namespace
