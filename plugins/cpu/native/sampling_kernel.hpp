// The passes over a whole vocabulary that drawing a token takes. Knows Simd; knows no filter and no random number.
//
// Include after rows_kernel.hpp.
#pragma once

#include "numbers.hpp"
#include "sampling.hpp"

namespace {

namespace sampling {

using anychip::kStretch;
using anychip::Scale;

constexpr int kDoubles = Simd::kWidth / 2;
using D = Simd::D;
using I = std::int64_t __attribute__((vector_size(8 * kDoubles)));
using Floats = float __attribute__((vector_size(4 * kDoubles)));

// 1 / n!: on half of ln 2 to each side these are e^x to 2e-13
constexpr double kExp[] = {1.0,         1.0,          1.0 / 2,       1.0 / 6,        1.0 / 24,       1.0 / 120,
                           1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800};
constexpr int kDegree = 10;
constexpr double kLog2EDouble = 1.4426950408889634;
constexpr double kLn2 = 0.6931471805599453;
// adding it leaves a whole number in the lowest bits
constexpr double kWhole = 0x1.8p52;
// where the powers are still normal numbers, and next to nothing beside 1
constexpr double kLowest = -700.0;

// e^x for x <= 0
inline D exponential(D x) {
  x = x < kLowest ? D{} + kLowest : x;
  const D shifted = Simd::fma(x, D{} + kLog2EDouble, D{} + kWhole);
  const D rest = Simd::fma(kWhole - shifted, D{} + kLn2, x);
  D sum = D{} + kExp[kDegree];
  for (int i = kDegree - 1; i >= 0; --i) sum = Simd::fma(sum, rest, D{} + kExp[i]);
  return (D)((I)sum + ((I)shifted << 52));
}

inline D weight(const float* logits, const Scale& scale) {
  Floats few;
  __builtin_memcpy(&few, logits, sizeof few);
  return exponential((__builtin_convertvector(few, D) - scale.largest) * scale.inverse_temperature);
}

// The first n < kDoubles, -infinity's weight behind them.
inline D weight_of_few(const float* logits, std::int64_t n, const Scale& scale) {
  float few[kDoubles];
  for (std::int64_t i = 0; i < kDoubles; ++i) few[i] = i < n ? logits[i] : -kInfinity;
  return weight(few, scale);
}

inline bool maxima(const float* logits, std::int64_t count, float* out) {
  bool is_strange = false;
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const rows::Most found = rows::most_of(logits, begin, smaller(begin + kStretch, count));
    *out++ = found.value;
    is_strange |= found.is_strange;
  }
  return !is_strange;
}

inline void weights(const float* logits, std::int64_t count, const Scale& scale, double* out) {
  std::int64_t i = 0;
  for (; i + kDoubles <= count; i += kDoubles) {
    const D found = weight(logits + i, scale);
    __builtin_memcpy(out + i, &found, sizeof found);
  }
  const D rest = weight_of_few(logits + i, count - i, scale);
  __builtin_memcpy(out + i, &rest, static_cast<std::size_t>(count - i) * sizeof(double));
}

inline double total_weight(const float* logits, std::int64_t count, const Scale& scale) {
  constexpr int kSums = 4;  // exponentials beside each other
  D sums[kSums] = {};
  std::int64_t i = 0;
  for (; i + kSums * kDoubles <= count; i += kSums * kDoubles)
    for (int j = 0; j < kSums; ++j) sums[j] += weight(logits + i + j * kDoubles, scale);
  for (; i + kDoubles <= count; i += kDoubles) sums[0] += weight(logits + i, scale);
  sums[1] += weight_of_few(logits + i, count - i, scale);
  const D sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  double total = 0.0;
  for (int j = 0; j < kDoubles; ++j) total += sum[j];
  return total;
}

constexpr anychip::SamplingKernels kKernels = {maxima, weights, total_weight};

}  // namespace sampling

}  // namespace
