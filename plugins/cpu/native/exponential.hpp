// Powers of two and of e for vectors. Knows Simd; knows no kernel.
#pragma once

#include "numbers.hpp"

namespace {

// 2^f for f in [-0.5, 0.5]
inline Simd::F exp2_fraction(Simd::F f) {
  Simd::F y = Simd::set(kExp2[6]);
  for (int i = 5; i >= 0; --i) y = Simd::fma(y, f, Simd::set(kExp2[i]));
  return y;
}

inline Simd::F exp2(Simd::F x) {
  x = Simd::at_least(-200.0f, x);
  const Simd::F power = Simd::round(x);
  return Simd::scale(exp2_fraction(x - power), power);
}

inline float exp2(float x) {
  alignas(64) float lanes[Simd::kWidth];
  Simd::store(lanes, exp2(Simd::set(x)));
  return lanes[0];
}

// e^x for x <= 0. What is left of x behind the power of two is exact but for one rounding: the first part of ln 2 has
// so few digits that its multiples are exact.
inline Simd::F exp_negative(Simd::F x) {
  x = Simd::at_least(-104.0f, x);
  const Simd::F power = Simd::round(x * Simd::set(kLog2E));
  const Simd::F rest = (x - power * Simd::set(0.693359375f)) + power * Simd::set(2.12194440e-4f);
  return Simd::scale(exp2_fraction(rest * Simd::set(kLog2E)), power);
}

}  // namespace
