// Rows arranged in panels, and their products with a tile of weights. Knows Simd and how pairs are multiplied; knows no
// threads.
//
// Include after simd_*.hpp and dense_avx512_bf16.hpp or dense_widened.hpp.
#pragma once

#include <cstring>
#include <utility>

#include "dense.hpp"
#include "numbers.hpp"
#include "product_output.hpp"

namespace {
namespace dense {

using anychip::DenseRows;
using anychip::kTileOutputs;
using anychip::ProductArgs;
using F = Simd::F;

constexpr int kVectors = Dense::kVectors;
constexpr int kOutputs = kVectors * Simd::kWidth;  // that are summed at a time
constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kPairBytes = kTileOutputs * sizeof(std::uint32_t);
// bytes from a weight that is used to the one that is fetched: what a core works through while memory answers
constexpr std::int64_t kAhead = 8192;
// pairs of a tile that stay in the first cache until two blocks have used them, at most
constexpr std::int64_t kChunk = 128;
// from so many rows on squares are turned faster than pairs are copied
constexpr int kWorthTurning = 5;

// How many lines are fetched with each pair: into the first cache, or into the second.
enum Fetch { kTwoLines, kLine, kFarLine };

template <Fetch Where>
inline void fetch(const char* at) {
  if constexpr (Where == kFarLine) return __builtin_prefetch(at, 0, 2);
  __builtin_prefetch(at);
  if constexpr (Where == kTwoLines) __builtin_prefetch(at + kCacheLine);
}

// Pairs `first` to `last` of R rows. Vectors of W pairs are turned as squares; each is stored whole, and what it leaves
// behind its own R pairs the next ones overwrite, the last of them one by one.
template <int R>
void arrange_block(const ProductArgs& args, const DenseRows& rows, std::int64_t block, std::int64_t first,
                   std::int64_t last) {
  constexpr int W = Simd::kWidth;
  const std::int64_t whole = smaller(last, args.in / 2);
  const bf16* x = static_cast<const bf16*>(args.x) + rows.first_row(block) * args.x_stride;
  std::uint32_t* panel = rows.panel(block);
  std::int64_t p = first;
  if constexpr (R >= kWorthTurning) {
    for (; p + 2 * W <= whole; p += W) {
      F square[W] = {};
      for (int r = 0; r < R; ++r) square[r] = Simd::load(reinterpret_cast<const float*>(x + r * args.x_stride + 2 * p));
      Simd::transpose(square);
      for (int i = 0; i < W; ++i) Simd::store(reinterpret_cast<float*>(panel + (p + i) * R), square[i]);
    }
  }
  for (int r = 0; r < R; ++r, x += args.x_stride) {
    for (std::int64_t rest = p; rest < whole; ++rest) std::memcpy(panel + rest * R + r, x + 2 * rest, sizeof *panel);
    if (whole < last) panel[whole * R + r] = x[2 * whole].bits;
  }
}

// What is fetched beside the work: every time `step` bytes on.
struct Ahead {
  const char* at;
  std::int64_t step;
};

// Some pairs of R rows [pairs][R] and of a tile's weights, added to `sums` [R][kTileOutputs]. Each sum is taken in the
// order of the pairs, so a row's result depends on that row alone.
template <int R, Fetch Where>
void add_pairs(const std::uint32_t* rows, const std::uint32_t* weight, std::int64_t pairs, bool is_first, Ahead ahead,
               float* sums) {
  for (int part = 0; part < kTileOutputs; part += kOutputs) {
    const std::uint32_t *x = rows, *w = weight + part;
    F sum[R][kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = is_first ? Simd::zero() : Simd::load(sums + r * kTileOutputs + part + v * Simd::kWidth);
    for (std::int64_t p = 0; p < pairs; ++p, x += R, w += kTileOutputs, ahead.at += ahead.step) {
      Dense::Pairs weights[kVectors];
      for (int v = 0; v < kVectors; ++v) weights[v] = Dense::load(w + v * Simd::kWidth);
      fetch<Where>(ahead.at);
      for (int r = 0; r < R; ++r) {
        const Dense::Pairs one = Dense::set(x[r]);
        for (int v = 0; v < kVectors; ++v) sum[r][v] = Dense::dot(sum[r][v], weights[v], one);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) Simd::store(sums + r * kTileOutputs + part + v * Simd::kWidth, sum[r][v]);
  }
}

// The functions for blocks of one size; `add` by what is fetched.
struct Sized {
  decltype(&arrange_block<1>) arrange;
  decltype(&add_pairs<1, kLine>) add[3];
};

template <int... R>
const Sized& sized(std::int64_t rows, std::integer_sequence<int, R...>) {
  static constexpr Sized kSized[] = {
      {arrange_block<R + 1>, {add_pairs<R + 1, kTwoLines>, add_pairs<R + 1, kLine>, add_pairs<R + 1, kFarLine>}}...};
  return kSized[rows - 1];
}

inline const Sized& sized(std::int64_t rows) { return sized(rows, std::make_integer_sequence<int, Dense::kRows>()); }

inline void arrange(const ProductArgs& args, const DenseRows& rows, std::int64_t first_pair, std::int64_t last_pair) {
  for (std::int64_t block = 0; block < rows.blocks; ++block)
    sized(rows.size(block)).arrange(args, rows, block, first_pair, last_pair);
}

// So many pairs of a tile are worked through by all blocks before the next; what is fetched with each of a block's.
struct Course {
  std::int64_t pairs, step;
  Fetch fetch;
};

// One block takes its weights straight from memory. Two share a chunk in the first cache and fetch the next one. More
// share a tile in the second cache and fetch the next one.
inline Course course(std::int64_t blocks, std::int64_t pairs) {
  if (blocks == 1) return {pairs, kPairBytes, kTwoLines};
  if (blocks > 2) return {pairs, kPairBytes / blocks, kFarLine};
  const std::int64_t chunks = (pairs + kChunk - 1) / kChunk;
  return {(pairs + chunks - 1) / chunks, kPairBytes / blocks, kLine};
}

inline void multiply(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                     std::int64_t tile, std::int64_t next_tile) {
  const std::int64_t blocks = last_block - first_block, tile_pairs = rows.pairs * kTileOutputs;
  const auto* weight = reinterpret_cast<const std::uint32_t*>(args.weight);
  const std::uint32_t *own = weight + tile * tile_pairs, *next = weight + next_tile * tile_pairs;
  const Course way = course(blocks, rows.pairs);
  alignas(64) float sums[2][Dense::kRows * kTileOutputs];  // blocks take turns
  for (std::int64_t first = 0, last; first < rows.pairs; first = last) {
    last = smaller(first + way.pairs, rows.pairs);
    const auto* ahead = reinterpret_cast<const char*>(last < rows.pairs ? own + last * kTileOutputs : next);
    if (blocks == 1) ahead = reinterpret_cast<const char*>(own) + kAhead;
    for (std::int64_t block = first_block; block < last_block; ++block) {
      const std::int64_t count = rows.size(block);
      float* to = sums[block % 2];
      sized(count).add[way.fetch](rows.panel(block) + first * count, own + first * kTileOutputs, last - first,
                                  first == 0, {ahead, way.step}, to);
      ahead += (last - first) * way.step;
      if (last < rows.pairs) continue;
      for (std::int64_t r = 0; r < count; ++r)
        products::write_row(args, rows.first_row(block) + r, tile * kTileOutputs, to + r * kTileOutputs);
    }
  }
}

constexpr anychip::DenseKernels table(const char* name) { return {name, Dense::kRows, arrange, multiply}; }

}  // namespace dense
}  // namespace
