// Rounding of activations, and the sums of a tile's products block by block. Knows Simd and an engine; knows no threads.
//
// Include after simd_*.hpp and an integer engine.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "products.hpp"

namespace {
namespace products {

using anychip::kBlock32;
using anychip::kTileOutputs;
using anychip::ProductArgs;
using anychip::RoundedRows;
using F = Simd::F;

constexpr int kVectors = kTileOutputs / Simd::kWidth;
constexpr float kLeast = 0x1p-100f;    // a block without a larger number counts as zero
constexpr float kToWhole = 12582912.0f;  // adding and subtracting it rounds to the nearest whole number, ties to even

template <class T>
void round_row(const ProductArgs& args, const RoundedRows& rounded, std::int64_t row) {
  const T* from = static_cast<const T*>(args.x) + row * args.x_stride;
  const std::int64_t at = row * rounded.blocks;
  const std::int32_t zero = args.bits == 8 ? -128 : (args.minimum == nullptr ? -8 : 0);
  for (std::int64_t block = 0; block < rounded.blocks; ++block) {
    T padded[kBlock32] = {};
    alignas(64) float x[kBlock32];
    const std::int64_t count = smaller<std::int64_t>(kBlock32, args.in - block * kBlock32);
    const T* source = from + block * kBlock32;
    if (count < kBlock32) {
      std::memcpy(padded, source, count * sizeof(T));
      source = padded;
    }
    for (int i = 0; i < kBlock32; i += Simd::kWidth) Simd::store(x + i, Simd::load(source + i));
    std::uint32_t bits[kBlock32], top = 0;  // sizes compare as their bits do, and what is no number is above all
    std::memcpy(bits, x, sizeof bits);
    for (int i = 0; i < kBlock32; ++i) {
      const std::uint32_t size = bits[i] & 0x7fffffff;
      top = top < size ? size : top;
    }
    float largest;
    std::memcpy(&largest, &top, sizeof largest);
    const bool is_finite = top < 0x7f800000;
    const float factor = is_finite && largest >= kLeast ? 127.0f / largest : 0.0f;
    std::int8_t* levels = rounded.levels + row * rounded.stride + block * kBlock32;
    std::int32_t sum = 0;
    if (factor == 0.0f) {
      std::memset(levels, 0, kBlock32);
    } else {
      for (int i = 0; i < kBlock32; ++i) {
        const std::int32_t level = static_cast<std::int32_t>((x[i] * factor + kToWhole) - kToWhole);
        sum += level;
        levels[i] = static_cast<std::int8_t>(level);
      }
    }
    const float scale = !is_finite ? __builtin_nanf("") : factor == 0.0f ? 0.0f : largest / 127.0f;
    rounded.scale[at + block] = scale;
    rounded.less[at + block] = zero * sum;
    rounded.sum[at + block] = scale * static_cast<float>(sum);
  }
}

// What a tile's sums are multiplied with, for vector v of its outputs.
inline F weight_scale(const ProductArgs& args, std::int64_t group, int v) {
  const std::int64_t at = group * kTileOutputs + v * Simd::kWidth;
  return args.bits == 8 ? Simd::load(static_cast<const float*>(args.scale) + at)
                        : Simd::load(static_cast<const half*>(args.scale) + at);
}

template <class T>
void write(void* out, std::int64_t at, const float* sums, std::int64_t count) {
  T padded[kTileOutputs];
  T* to = static_cast<T*>(out) + at;
  T* first = count == kTileOutputs ? to : padded;
  for (int i = 0; i < kTileOutputs; i += Simd::kWidth) Simd::store(first + i, Simd::load(sums + i));
  if (first == padded) std::memcpy(to, padded, count * sizeof(T));
}

// `args` points to the tile's own weights and scales.
template <int R, int Bits>
void multiply_rows(const ProductArgs& args, const RoundedRows& rounded, std::int64_t first_row, std::int64_t tile) {
  const std::int64_t blocks = rounded.blocks, at = first_row * blocks;
  const bool is_grouped = args.groups > 1 || Bits == 4;
  const std::int64_t blocks_per_group = args.groups > 1 ? blocks / args.groups : blocks;
  constexpr std::int64_t kBytes = kBlock32 * kTileOutputs * Bits / 8;
  const half* minimum = reinterpret_cast<const half*>(args.minimum);
  const std::int8_t* levels = rounded.levels + first_row * rounded.stride;
  F sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::zero();
  for (std::int64_t block = 0; block < blocks; ++block) {
    F dots[R][kVectors];
    Engine::dot<R, Bits>(args.weight + block * kBytes, levels + block * kBlock32, rounded.stride,
                         rounded.less + at + block, blocks, dots);
    const float* scale = rounded.scale + at + block;
    if (!is_grouped) {
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::fma(dots[r][v], Simd::set(scale[r * blocks]), sums[r][v]);
      continue;
    }
    const std::int64_t group = block / blocks_per_group;
    for (int v = 0; v < kVectors; ++v) {
      const F factor = weight_scale(args, group, v);
      for (int r = 0; r < R; ++r)
        sums[r][v] = Simd::fma(dots[r][v] * Simd::set(scale[r * blocks]), factor, sums[r][v]);
      if (minimum == nullptr) continue;
      const F least = Simd::load(minimum + group * kTileOutputs + v * Simd::kWidth);
      for (int r = 0; r < R; ++r)
        sums[r][v] = Simd::fma(Simd::set(rounded.sum[at + block + r * blocks]), least, sums[r][v]);
    }
  }
  const std::int64_t output = tile * kTileOutputs, count = smaller(kTileOutputs, args.outputs - output);
  for (int r = 0; r < R; ++r) {
    alignas(64) float out[kTileOutputs];
    for (int v = 0; v < kVectors; ++v) {
      F sum = is_grouped ? sums[r][v] : sums[r][v] * weight_scale(args, 0, v);
      if (args.bias != nullptr) sum = sum + Simd::load(args.bias + output + v * Simd::kWidth);
      Simd::store(out + v * Simd::kWidth, sum);
    }
    const std::int64_t to = (first_row + r) * args.outputs + output;
    if (args.out_dtype == anychip::kFloat32)
      write<float>(args.out, to, out, count);
    else if (args.out_dtype == anychip::kBFloat16)
      write<bf16>(args.out, to, out, count);
    else
      write<half>(args.out, to, out, count);
  }
}

template <int Bits, int R>
void multiply_rest(const ProductArgs& args, const RoundedRows& rounded, std::int64_t row, std::int64_t tile) {
  if constexpr (R > 0) {
    if (args.rows - row == R) return multiply_rows<R, Bits>(args, rounded, row, tile);
    multiply_rest<Bits, R - 1>(args, rounded, row, tile);
  }
}

template <int Bits>
void multiply_all(const ProductArgs& args, const RoundedRows& rounded, std::int64_t tile) {
  std::int64_t row = 0;
  for (; row + Engine::kRows <= args.rows; row += Engine::kRows)
    multiply_rows<Engine::kRows, Bits>(args, rounded, row, tile);
  multiply_rest<Bits, Engine::kRows - 1>(args, rounded, row, tile);
}

inline void multiply(const ProductArgs& args, const RoundedRows& rounded, std::int64_t tile) {
  ProductArgs own = args;
  const std::int64_t scales = tile * args.groups * kTileOutputs;
  own.weight += tile * rounded.blocks * kBlock32 * kTileOutputs * args.bits / 8;
  if (args.bits == 8) {
    own.scale = static_cast<const float*>(args.scale) + scales;
    return multiply_all<8>(own, rounded, tile);
  }
  own.scale = static_cast<const half*>(args.scale) + scales;
  if (own.minimum != nullptr) own.minimum += scales;
  multiply_all<4>(own, rounded, tile);
}

constexpr anychip::ProductKernels table(const char* name) {
  return {name, Engine::kRows, {round_row<float>, round_row<bf16>, round_row<half>}, multiply};
}

}  // namespace products
}  // namespace
