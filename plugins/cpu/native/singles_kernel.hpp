// Products of single floats with a tile of weights [in][32 outputs]. Knows Simd; knows no threads.
//
// Include after simd_*.hpp.
#pragma once

#include <cstring>

#include "dense.hpp"
#include "fetch.hpp"
#include "numbers.hpp"
#include "product_output.hpp"

namespace {
namespace singles {

using anychip::DenseRows;
using anychip::kTileOutputs;
using anychip::ProductArgs;
using F = Simd::F;

constexpr int kVectors = 2, kOutputs = kVectors * Simd::kWidth;      // that are summed at a time
constexpr int kRows = sizeof(F) == 64 ? 12 : sizeof(F) == 32 ? 5 : 4;  // what 32 or 16 registers hold
constexpr std::int64_t kAhead = 64;  // inputs from a weight that is used to the one that is fetched
constexpr std::int64_t kLine = 64;

// Inputs of each row of a block as floats, those of one place side by side.
template <class T>
void arrange_rows(const ProductArgs& args, const DenseRows& rows, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t W = Simd::kWidth;
  for (std::int64_t block = 0; block < rows.blocks; ++block) {
    const std::int64_t count = rows.size(block);
    const T* x = static_cast<const T*>(args.x) + rows.first_row(block) * args.x_stride;
    float* panel = reinterpret_cast<float*>(rows.panel(block));
    for (std::int64_t r = 0; r < count; ++r, x += args.x_stride)
      for (std::int64_t i = first; i < last; i += W) {
        const std::int64_t few = smaller(W, last - i);
        T padded[W] = {};
        float wide[W];
        if (few < W) std::memcpy(padded, x + i, few * sizeof(T));
        Simd::store(wide, Simd::load(few < W ? padded : x + i));
        for (std::int64_t j = 0; j < few; ++j) panel[(i + j) * count + r] = wide[j];
      }
  }
}

inline void arrange(const ProductArgs& args, const DenseRows& rows, std::int64_t first, std::int64_t last) {
  const auto function = args.x_dtype == anychip::kFloat32    ? arrange_rows<float>
                        : args.x_dtype == anychip::kBFloat16 ? arrange_rows<bf16>
                                                             : arrange_rows<half>;
  function(args, rows, first, last);
}

// Each sum is taken in the order of the inputs, so a row's result depends on that row alone.
template <int R>
void add(const float* x, const float* weights, std::int64_t in, float* sums) {
  for (int part = 0; part < kTileOutputs; part += kOutputs) {
    F sum[R][kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::zero();
    const float* at = weights + part;
    for (std::int64_t i = 0; i < in; ++i, at += kTileOutputs) {
      for (int byte = 0; byte < kOutputs * 4; byte += kLine)
        fetch_once(reinterpret_cast<const char*>(at + kAhead * kTileOutputs) + byte);
      F weight[kVectors];
      for (int v = 0; v < kVectors; ++v) weight[v] = Simd::load(at + v * Simd::kWidth);
      for (int r = 0; r < R; ++r)
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Simd::fma(weight[v], Simd::set(x[i * R + r]), sum[r][v]);
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) Simd::store(sums + r * kTileOutputs + part + v * Simd::kWidth, sum[r][v]);
  }
}

template <int R = kRows>
void add_rows(std::int64_t rows, const float* x, const float* weights, std::int64_t in, float* sums) {
  if constexpr (R > 0) {
    if (rows == R) return add<R>(x, weights, in, sums);
    add_rows<R - 1>(rows, x, weights, in, sums);
  }
}

inline void multiply(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                     std::int64_t tile, std::int64_t) {
  const float* weights = reinterpret_cast<const float*>(args.weight) + tile * args.in * kTileOutputs;
  alignas(64) float sums[kRows * kTileOutputs];
  for (std::int64_t block = first_block; block < last_block; ++block) {
    const std::int64_t count = rows.size(block);
    add_rows(count, reinterpret_cast<const float*>(rows.panel(block)), weights, args.in, sums);
    for (std::int64_t r = 0; r < count; ++r)
      products::write_row(args, rows.first_row(block) + r, tile * kTileOutputs, sums + r * kTileOutputs);
  }
}

constexpr anychip::DenseKernels table(const char* name) { return {name, kRows, arrange, multiply}; }

}  // namespace singles
}  // namespace
