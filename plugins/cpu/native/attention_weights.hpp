// What scores of a block of keys become: weights of its values. Knows Simd and an engine; knows no tile's shape.
#pragma once

#include "attention_rows.hpp"

namespace {

// Scores within the cap, by a hyperbolic tangent; scores and results are powers of two. So many are whole vectors.
inline void soften(float* scores, std::int64_t count, float cap) {
  using F = Simd::F;
  const F one = Simd::set(1.0f), power = Simd::set(-2.0f / cap), top = Simd::set(cap * kLog2E);
  for (std::int64_t i = 0; i < count; i += Simd::kWidth) {
    const F x = Simd::load(scores + i), small = exp2(Simd::max(x, Simd::zero() - x) * power);
    const F tangent = (one - small) / (one + small);
    Simd::store(scores + i, Simd::where_negative(x, Simd::zero() - tangent, tangent) * top);
  }
}

// Scores of some rows, [rows, keys], become weights, as units; the rows' earlier sums are to be multiplied by their
// factors.
template <class Engine>
void weigh(RunningSums& sums, std::int64_t first, std::int64_t last, float* scores, float* factors) {
  constexpr int W = Simd::kWidth, kVectors = kBlock / W;
  using F = Simd::F;
  for (std::int64_t row = first; row < last; ++row) {
    const float* own = scores + row * kBlock;
    F top = Simd::load(own);
    for (int j = 1; j < kVectors; ++j) top = Simd::max(top, Simd::load(own + j * W));
    factors[row] = sums.largest(row);
    sums.largest(row) = larger(factors[row], Simd::max(top));
  }
  for (std::int64_t row = first / W * W; row < last; row += W) {
    const F base = Simd::at_least(-kLargest, Simd::load(&sums.largest(row)));
    Simd::store(factors + row, exp2(Simd::load(factors + row) - base));
  }
  for (std::int64_t row = first; row < last; ++row) {
    float* own = scores + row * kBlock;
    const F base = Simd::set(larger(-kLargest, sums.largest(row)));
    F weights[kVectors];
    for (int j = 0; j < kVectors; ++j) weights[j] = exp2(Simd::load(own + j * W) - base);
    const float sum = Simd::sum(Engine::pack_weights(weights, kVectors, own));
    sums.weights(row) = sums.weights(row) * factors[row] + sum;
  }
}

}  // namespace
