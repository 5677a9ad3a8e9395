// Rows arranged in panels, and their products with a tile of weights. Knows Simd and how pairs are multiplied; knows no
// threads.
//
// Include after simd_*.hpp and dense_avx512_bf16.hpp or dense_widened.hpp.
#pragma once

#include <cstring>
#include <utility>

#include "dense.hpp"
#include "numbers.hpp"

namespace {
namespace dense {

using anychip::DenseRows;
using anychip::kTileOutputs;
using anychip::ProductArgs;
using F = Simd::F;

constexpr int kVectors = Dense::kVectors;
constexpr int kOutputs = kVectors * Simd::kWidth;  // that are summed at a time
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kPairBytes = kTileOutputs * sizeof(std::uint32_t);
// How far ahead of its use a weight is fetched when it is used once: the time that memory takes
constexpr std::int64_t kAhead = 8192;

template <int R>
void arrange_block(const ProductArgs& args, const DenseRows& rows, std::int64_t block, std::int64_t first,
                   std::int64_t last) {
  const std::int64_t whole = smaller(last, args.in / 2);
  std::uint32_t* panel = rows.panel(block);
  const bf16* x = static_cast<const bf16*>(args.x) + rows.first_row(block) * args.x_stride;
  for (int r = 0; r < R; ++r, x += args.x_stride) {
    for (std::int64_t p = first; p < whole; ++p) std::memcpy(panel + p * R + r, x + 2 * p, sizeof *panel);
    if (whole < last) panel[whole * R + r] = x[2 * whole].bits;
  }
}

template <class T>
void write(void* out, std::int64_t at, const F* sums, std::int64_t count) {
  T padded[kOutputs];
  T* to = static_cast<T*>(out) + at;
  T* first = count == kOutputs ? to : padded;
  for (int v = 0; v < kVectors; ++v) Simd::store(first + v * Simd::kWidth, sums[v]);
  if (first == padded) std::memcpy(to, padded, count * sizeof(T));
}

inline void finish(const ProductArgs& args, std::int64_t row, std::int64_t output, F* sums) {
  const std::int64_t count = smaller<std::int64_t>(kOutputs, args.outputs - output), at = row * args.outputs + output;
  if (args.bias != nullptr)
    for (int v = 0; v < kVectors; ++v) sums[v] = sums[v] + Simd::load(args.bias + output + v * Simd::kWidth);
  if (count <= 0) return;
  if (args.out_dtype == anychip::kFloat32)
    write<float>(args.out, at, sums, count);
  else
    write<bf16>(args.out, at, sums, count);
}

// What is fetched beside the work: `Lines` of the cache with each pair, every time `step` bytes on.
struct Ahead {
  const char* at;
  std::int64_t step;
};

// One block and one tile, whose weights these are. Every sum is taken in the order of the pairs, so a row's result
// depends on that row alone.
template <int R, int Lines>
void multiply_block(const ProductArgs& args, const DenseRows& rows, std::int64_t block, std::int64_t tile,
                    const std::uint32_t* weight, Ahead ahead) {
  for (std::int64_t part = 0; part < kTileOutputs; part += kOutputs) {
    const std::uint32_t* x = rows.panel(block);
    const std::uint32_t* w = weight + part;
    F sums[R][kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::zero();
    for (std::int64_t p = 0; p < rows.pairs; ++p, x += R, w += kTileOutputs, ahead.at += ahead.step) {
      Dense::Pairs weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = Dense::load(w + v * Simd::kWidth);
      if (Lines == 1) __builtin_prefetch(ahead.at, 0, 2);
      if (Lines == 2) __builtin_prefetch(ahead.at), __builtin_prefetch(ahead.at + kLine);
      for (int r = 0; r < R; ++r) {
        const Dense::Pairs one = Dense::set(x[r]);
        for (int v = 0; v < kVectors; ++v) sums[r][v] = Dense::dot(sums[r][v], weights[v], one);
      }
    }
    for (int r = 0; r < R; ++r) finish(args, rows.first_row(block) + r, tile * kTileOutputs + part, sums[r]);
  }
}

struct Sized {
  decltype(&arrange_block<1>) arrange;
  decltype(&multiply_block<1, 1>) multiply, multiply_once;
};

// by the rows of a block, less one
template <int... R>
const Sized& sized(std::int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Sized kSized[] = {{arrange_block<R + 1>, multiply_block<R + 1, 1>, multiply_block<R + 1, 2>}...};
  return kSized[rows - 1];
}

inline const Sized& sized(const DenseRows& rows, std::int64_t block) {
  return sized(rows.first_row(block + 1) - rows.first_row(block), std::make_integer_sequence<int, Dense::kRows>());
}

inline void arrange(const ProductArgs& args, const DenseRows& rows, std::int64_t first_pair, std::int64_t last_pair) {
  for (std::int64_t block = 0; block < rows.blocks; ++block)
    sized(rows, block).arrange(args, rows, block, first_pair, last_pair);
}

// Weights that are used for one block come straight from memory; those for several wait in the second cache, into which
// the blocks fetch the next tile, each its share.
inline void multiply(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                     std::int64_t tile) {
  const std::int64_t tile_bytes = rows.pairs * kPairBytes, blocks = last_block - first_block;
  const char* weight = reinterpret_cast<const char*>(args.weight) + tile * tile_bytes;
  const auto* pairs = reinterpret_cast<const std::uint32_t*>(weight);
  if (blocks == 1)
    return sized(rows, first_block).multiply_once(args, rows, first_block, tile, pairs, {weight + kAhead, kPairBytes});
  const std::int64_t step = kPairBytes / blocks;
  for (std::int64_t block = 0; block < blocks; ++block) {
    const Ahead ahead = {weight + tile_bytes + block * rows.pairs * step, step};
    sized(rows, first_block + block).multiply(args, rows, first_block + block, tile, pairs, ahead);
  }
}

constexpr anychip::DenseKernels table(const char* name) { return {name, Dense::kRows, arrange, multiply}; }

}  // namespace dense
}  // namespace
