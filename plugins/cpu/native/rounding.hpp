// Rounding of activations to whole numbers, in blocks. Knows Simd; knows no weight.
//
// Include after simd_*.hpp.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "products.hpp"

namespace {
namespace products {

using anychip::kBlock32;
using anychip::ProductArgs;
using anychip::RoundedRows;
using F = Simd::F;

constexpr float kLevels = 127.0f;
constexpr float kLeast = 0x1p-100f;  // a block without a larger number counts as zero
// adding it rounds to the nearest whole number, ties to even, whose lowest byte is that of the sum's bits
constexpr float kToWhole = 12582912.0f;

// As many neighbouring blocks as a vector has places: what there is one of in each block is worked out for all at once.
struct Blocks {
  static constexpr int kCount = Simd::kWidth;

  alignas(64) float x[kCount][kBlock32];
  alignas(64) float largest[kCount], factor[kCount], sum[kCount];

  template <class T>
  void load(const T* from, std::int64_t count) {
    for (int block = 0; block < kCount; ++block, from += kBlock32, count -= kBlock32) {
      if (count >= kBlock32) {
        widen(from, x[block]);
        continue;
      }
      T padded[kBlock32] = {};
      if (count > 0) std::memcpy(padded, from, count * sizeof(T));
      widen(padded, x[block]);
    }
  }

  void find_largest() {
    F most[kCount];
    for (int block = 0; block < kCount; ++block) {
      most[block] = Simd::size(Simd::load(x[block]));
      for (int i = Simd::kWidth; i < kBlock32; i += Simd::kWidth)
        most[block] = Simd::larger_size(most[block], Simd::size(Simd::load(x[block] + i)));
    }
    Simd::transpose(most);
    for (int i = 1; i < kCount; ++i) most[0] = Simd::larger_size(most[0], most[i]);
    Simd::store(largest, most[0]);
    for (int block = 0; block < kCount; ++block) {
      const float factor_here = kLevels / largest[block];
      factor[block] = (largest[block] >= kLeast) & (largest[block] < kInfinity) ? factor_here : 0.0f;
    }
  }

  // Each row of `levels` is a block's.
  void round(std::int8_t* levels, std::int64_t blocks) {
    F sums[kCount];
    for (int block = 0; block < kCount; ++block) {
      sums[block] = Simd::zero();
      if (block >= blocks) continue;
      const F by = Simd::set(factor[block]), to_whole = Simd::set(kToWhole);
      for (int i = 0; i < kBlock32; i += Simd::kWidth) {
        const F shifted = Simd::load(x[block] + i) * by + to_whole;
        Simd::store_low_bytes(levels + block * kBlock32 + i, shifted);
        sums[block] = sums[block] + (shifted - to_whole);
      }
    }
    Simd::transpose(sums);
    for (int i = 1; i < kCount; ++i) sums[0] = sums[0] + sums[i];
    Simd::store(sum, sums[0]);
  }

 private:
  template <class T>
  static void widen(const T* from, float* to) {
    for (int i = 0; i < kBlock32; i += Simd::kWidth) Simd::store(to + i, Simd::load(from + i));
  }
};

template <class T>
void round_row(const ProductArgs& args, const RoundedRows& rounded, std::int64_t row) {
  const T* from = static_cast<const T*>(args.x) + row * args.x_stride;
  const std::int32_t zero = args.bits == 8 ? -128 : (args.minimum == nullptr ? -8 : 0);
  Blocks own;
  for (std::int64_t first = 0; first < rounded.blocks; first += Blocks::kCount) {
    const std::int64_t count = smaller<std::int64_t>(Blocks::kCount, rounded.blocks - first);
    const std::int64_t at = row * rounded.blocks + first;
    own.load(from + first * kBlock32, args.in - first * kBlock32);
    own.find_largest();
    own.round(rounded.levels + row * rounded.stride + first * kBlock32, count);
    for (std::int64_t block = 0; block < count; ++block) {
      const bool is_zero = own.factor[block] == 0.0f;
      const float sum = is_zero ? 0.0f : own.sum[block];
      const float scale = own.largest[block] < kLeast ? 0.0f : own.largest[block] / kLevels;
      rounded.scale[at + block] = own.largest[block] < kInfinity ? scale : __builtin_nanf("");
      rounded.less[at + block] = zero * static_cast<std::int32_t>(sum);
      rounded.sum[at + block] = rounded.scale[at + block] * sum;
    }
  }
}

}  // namespace products
}  // namespace
