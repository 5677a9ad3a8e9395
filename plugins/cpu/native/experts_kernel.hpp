// What is beside an expert's products: its activation, and the sum over experts. Knows Simd; knows no threads.
//
// Include after rows_kernel.hpp.
#pragma once

#include <initializer_list>

#include "experts.hpp"
#include "rows_kernel.hpp"

namespace {
namespace experts {

using rows::F;
using rows::W;
constexpr std::int64_t kTile = anychip::kTileOutputs;
constexpr float kClamp = 7.0f, kSteepness = 1.702f;

inline F at_most(float high, F x) { return Simd::zero() - Simd::at_least(-high, Simd::zero() - x); }  // a NaN stays one

// (up + 1) * gate * sigmoid(1.702 * gate), of what is cut off at 7
inline F clamped(F gate, F up) {
  const F g = at_most(kClamp, gate), u = Simd::at_least(-kClamp, at_most(kClamp, up));
  return (u + Simd::set(1.0f)) * g * rows::sigmoid(g * Simd::set(kSteepness));
}

template <std::int32_t Kind>
inline F gated(F gate, F up) {
  if constexpr (Kind == anychip::kGatedSilu) return rows::silu(gate) * up;
  if constexpr (Kind == anychip::kGatedGelu) return rows::gelu(gate) * up;
  return clamped(gate, up);
}

template <class T, std::int32_t Kind>
void activate_rows(const float* sums, std::int64_t count, std::int64_t rows, T* out, std::int64_t stride) {
  for (std::int64_t row = 0; row < rows; ++row, sums += 2 * kTile, out += stride) {
    std::int64_t i = 0;
    for (; i + W <= count; i += W)
      Simd::store(out + i, gated<Kind>(Simd::load(sums + i), Simd::load(sums + kTile + i)));
    if (i < count) rows::store_few(out + i, gated<Kind>(Simd::load(sums + i), Simd::load(sums + kTile + i)), count - i);
  }
}

template <class T>
void activate(const float* sums, std::int64_t rows, std::int64_t count, std::int32_t activation, void* out,
              std::int64_t stride) {
  const auto function = activation == anychip::kGatedSilu   ? activate_rows<T, anychip::kGatedSilu>
                        : activation == anychip::kGatedGelu ? activate_rows<T, anychip::kGatedGelu>
                                                            : activate_rows<T, anychip::kGatedClamped>;
  function(sums, count, rows, static_cast<T*>(out), stride);
}

inline void weigh(float* sums, float weight, const float* gate_bias, const float* up_bias) {
  for (const float* bias : {gate_bias, up_bias})
    for (std::int64_t i = 0; i < kTile; i += W, sums += W)
      Simd::store(sums, Simd::fma(Simd::load(sums), Simd::set(weight), bias ? Simd::load(bias + i) : Simd::zero()));
}

template <class T>
void combine(const float* const* parts, const float* weights, std::int64_t columns, std::int64_t first,
             std::int64_t last, void* out) {
  const auto sum = [&](auto load) {
    F total = Simd::zero();
    for (std::int64_t column = 0; column < columns; ++column)
      if (parts[column] != nullptr) total = Simd::fma(load(parts[column]), Simd::set(weights[column]), total);
    return total;
  };
  T* to = static_cast<T*>(out);
  std::int64_t i = first;
  for (; i + W <= last; i += W) Simd::store(to + i, sum([i](const float* part) { return Simd::load(part + i); }));
  const std::int64_t n = last - i;
  if (n > 0) rows::store_few(to + i, sum([i, n](const float* part) { return rows::load_few(part + i, n); }), n);
}

constexpr anychip::ExpertKernels kKernels = {
    {activate<float>, activate<bf16>, activate<half>},
    weigh,
    {combine<float>, combine<bf16>, combine<half>},
};

}  // namespace experts
}  // namespace
