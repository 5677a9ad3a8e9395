// Products of single floats: 16-bit elements are widened as they are packed. Knows Simd; knows no page.
#pragma once

#include "numbers.hpp"

namespace {

// What is multiplied at a time is a unit of 32 bits: here one float.
template <class T>
struct FloatEngine {
  using Element = T;
  using F = Simd::F;
  static constexpr int kPerUnit = 1;

  static F load_units(const T* p) { return Simd::load(p); }
  static F load_few_units(const T* p) { return Simd::load(p); }
  static F dot(F sum, F units, F one) { return Simd::fma(units, one, sum); }
  template <int Vectors>
  static void value_units(const T* even, const T*, F* out) {
    for (int j = 0; j < Vectors; ++j) out[j] = Simd::load(even + j * Simd::kWidth);
  }
  // the same in an order in which they are cheaper to have; put_in_order is for sums of such
  template <int Vectors>
  static void mixed_units(const T* even, const T*, F* out) {
#pragma GCC unroll 4
    for (int j = 0; j + 1 < Vectors; j += 2) Simd::load_two(even + j * Simd::kWidth, out + j);
    if (Vectors % 2 != 0) out[Vectors - 1] = Simd::load(even + (Vectors - 1) * Simd::kWidth);
  }
  static void put_in_order(float* sums, std::int64_t count) {
    for (std::int64_t i = 0; i + 2 * Simd::kWidth <= count; i += 2 * Simd::kWidth) Simd::put_in_order<T>(sums + i);
  }
  // weights as units, and what they sum to
  static F pack_weights(const F* weights, int vectors, float* units) {
    F sum = weights[0];
    Simd::store(units, weights[0]);
    for (int j = 1; j < vectors; ++j) {
      Simd::store(units + j * Simd::kWidth, weights[j]);
      sum = sum + weights[j];
    }
    return sum;
  }
};

}  // namespace
