// Sums of 8- and 4-bit products, one by one. Knows how a part of a tile lies; knows no scale.
#pragma once

#include "simd_portable.hpp"

namespace {

struct Engine {
  static constexpr int kRows = 1;

  template <int R, int Bits>
  static void dot(const std::uint8_t* weight, const std::int8_t* levels, const std::int32_t* less, Simd::F (*out)[8]) {
    for (int v = 0; v < 8; ++v) {
      Simd::I sums = {less[0], less[0], less[0], less[0]};
      for (int i = 0; i < 4; ++i) sums[i] += output<Bits>(weight + 4 * (4 * v + i), levels);
      out[0][v] = __builtin_convertvector(sums, Simd::F);
    }
  }

 private:
  template <int Bits>
  static std::int32_t output(const std::uint8_t* weight, const std::int8_t* levels) {
    std::int32_t sum = 0;
    for (int quad = 0; quad < Bits; ++quad)
      for (int i = 0; i < 4; ++i) {
        const std::int32_t byte = weight[quad * 128 + i];
        if (Bits == 8)
          sum += byte * levels[4 * quad + i];
        else
          sum += (byte & 15) * levels[4 * quad + i] + (byte >> 4) * levels[16 + 4 * quad + i];
      }
    return sum;
  }
};

}  // namespace
