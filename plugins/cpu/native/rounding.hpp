// Rounding of activations to whole numbers, in parts of a row. Knows Simd; knows no weight.
//
// Include after simd_*.hpp.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "products.hpp"

namespace {
namespace products {

using anychip::kPart;
using anychip::ProductArgs;
using anychip::RoundedRows;
using F = Simd::F;

constexpr float kLevels = 127.0f;
constexpr float kLeast = 0x1p-100f;  // a part without a larger number counts as zero
// adding it rounds to the nearest whole number, ties to even, whose lowest byte is that of the sum's bits
constexpr float kToWhole = 12582912.0f;

// `at`: where the part's numbers lie; `zero`: minus the level that stands for zero.
template <class T>
void round_part(const T* from, const RoundedRows& rounded, std::int64_t at, std::int32_t zero) {
  F x[kPart / Simd::kWidth], top = Simd::zero(), sums = Simd::zero();
  for (F& part : x) {
    part = Simd::load(from + (&part - x) * Simd::kWidth);
    top = Simd::larger_size(top, Simd::size(part));
  }
  const float largest = Simd::largest_size(top);
  const bool is_finite = largest < kInfinity, is_zero = largest < kLeast;
  const F by = Simd::set(is_finite & !is_zero ? kLevels / largest : 0.0f), to_whole = Simd::set(kToWhole);
  for (F& part : x) {
    const F shifted = part * by + to_whole;
    Simd::store_low_bytes(rounded.levels + at * kPart + (&part - x) * Simd::kWidth, shifted);
    sums = sums + (shifted - to_whole);
  }
  const float sum = is_finite ? Simd::sum(sums) : 0.0f, scale = is_zero ? 0.0f : largest / kLevels;
  rounded.scale[at] = is_finite ? scale : __builtin_nanf("");
  rounded.less[at] = zero * static_cast<std::int32_t>(sum);
  rounded.sum[at] = rounded.scale[at] * sum;
}

template <class T>
void round_rows(const ProductArgs& args, const RoundedRows& rounded, std::int64_t first_part, std::int64_t last_part) {
  const std::int32_t zero = args.bits == 8 ? -128 : (args.minimum == nullptr ? -8 : 0);
  const std::int64_t whole = smaller(last_part, args.in / kPart);
  for (std::int64_t block = 0; block < rounded.blocks; ++block) {
    const std::int64_t rows = rounded.size(block), first_row = rounded.first_row(block);
    for (std::int64_t r = 0; r < rows; ++r) {
      const T* row = static_cast<const T*>(args.x) + (first_row + r) * args.x_stride;
      const std::int64_t first = first_row * rounded.parts + r;
      for (std::int64_t part = first_part; part < whole; ++part)
        round_part(row + part * kPart, rounded, first + part * rows, zero);
      if (whole == last_part) continue;
      T padded[kPart] = {};  // what is missing of the row is zero
      std::memcpy(padded, row + whole * kPart, (args.in - whole * kPart) * sizeof(T));
      round_part(padded, rounded, first + whole * rows, zero);
    }
  }
}

}  // namespace products
}  // namespace
