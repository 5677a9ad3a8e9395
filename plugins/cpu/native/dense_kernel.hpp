// Rows arranged in panels, and their products with a tile of weights. Knows Simd and how pairs are multiplied; knows no
// threads.
//
// Include after simd_*.hpp and dense_avx512_bf16.hpp or dense_widened.hpp.
#pragma once

#include <cstring>
#include <type_traits>
#include <utility>

#include "dense.hpp"
#include "dense_weights.hpp"
#include "fetch.hpp"
#include "numbers.hpp"
#include "product_output.hpp"

namespace {
namespace dense {

using F = Simd::F;

constexpr int kOutputs = kVectors * Simd::kWidth;  // that are summed at a time
constexpr std::int64_t kCacheLine = 64;
// bytes from a weight that is used to the one that is fetched: what a core works through while memory answers
constexpr std::int64_t kAhead = 8192;
// pairs of a tile that stay in the first cache until two blocks have used them, at most
constexpr std::int64_t kChunk = 128;
// from so many rows on squares are turned faster than pairs are copied
constexpr int kWorthTurning = 5;

// What is fetched beside the work: every time `step` bytes on.
struct Ahead {
  const char* at;
  std::int64_t step;
};

// What is fetched with each pair: all of one, or a line, into the first cache alone or into the second.
enum Fetch { kPair, kLine, kFarLine };

template <Fetch Where, class Weights>
inline void fetch(Ahead& ahead) {
  if constexpr (Where == kPair)
    for (std::int64_t at = 0; at < Weights::kPairs * Weights::kPairBytes; at += kCacheLine)
      fetch_once(ahead.at + at);
  for (std::int64_t pair = 0; pair < Weights::kPairs; ++pair, ahead.at += ahead.step)
    if constexpr (Where == kLine) fetch_once(ahead.at);
    else if constexpr (Where == kFarLine) __builtin_prefetch(ahead.at, 0, kFar);
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

// Some pairs of R rows [pairs][R] and of a tile's weights, added to `sums` [R][kTileOutputs]; what comes behind the
// weights. Each sum is taken in the order of the pairs, so a row's result depends on that row alone.
template <int R, Fetch Where, class Weights>
Weights add_pairs(const std::uint32_t* rows, const Weights& first, std::int64_t pairs, bool is_first, Ahead ahead,
                  float* sums) {
  Weights from = first;
  for (int part = 0; part < kTileOutputs; part += kOutputs) {
    const std::uint32_t* x = rows;
    from = first;
    F sum[R][kVectors];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v)
        sum[r][v] = is_first ? Simd::zero() : Simd::load(sums + r * kTileOutputs + part + v * Simd::kWidth);
    for (std::int64_t p = 0; p < pairs; p += Weights::kPairs) {
      Dense::Pairs weights[Weights::kPairs][kVectors];
      from.next(part, weights);
      fetch<Where, Weights>(ahead);
      for (int i = 0; i < Weights::kPairs; ++i, x += R) {
        for (int r = 0; r < R; ++r) {
          const Dense::Pairs one = Dense::set(x[r]);
          for (int v = 0; v < kVectors; ++v) sum[r][v] = Dense::dot(sum[r][v], weights[i][v], one);
        }
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) Simd::store(sums + r * kTileOutputs + part + v * Simd::kWidth, sum[r][v]);
  }
  return from;
}

// The functions for blocks of one size; to add, by what is fetched.
struct Sized {
  template <class Weights>
  using Add = decltype(&add_pairs<1, kLine, Weights>);

  decltype(&arrange_block<1>) arrange;
  Add<Plain> plain[3];
  Add<Compact<false>> alone[1];
  Add<Compact<true>> first[3];

  template <class Weights>
  Add<Weights> add(Fetch where) const {
    if constexpr (std::is_same_v<Weights, Plain>)
      return plain[where];
    else if constexpr (std::is_same_v<Weights, Compact<true>>)
      return first[where];
    else
      return alone[where];
  }
};

template <int... R>
const Sized& sized(std::int64_t rows, std::integer_sequence<int, R...>) {
  using Alone = Compact<false>;
  using First = Compact<true>;
  static constexpr Sized kSized[] = {
      {arrange_block<R + 1>,
       {add_pairs<R + 1, kPair, Plain>, add_pairs<R + 1, kLine, Plain>, add_pairs<R + 1, kFarLine, Plain>},
       {add_pairs<R + 1, kPair, Alone>},
       {nullptr, add_pairs<R + 1, kLine, First>, add_pairs<R + 1, kFarLine, First>}}...};
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
inline Course course(std::int64_t blocks, std::int64_t pairs, std::int64_t pair_bytes) {
  if (blocks == 1) return {pairs, pair_bytes, kPair};
  if (blocks > 2) return {pairs, pair_bytes / blocks, kFarLine};
  const std::int64_t chunks = (pairs + kChunk - 1) / kChunk;
  return {round_up((pairs + chunks - 1) / chunks, kGroupPairs), pair_bytes / blocks, kLine};
}

template <class Weights>
void multiply_tile(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                   std::int64_t tile, std::int64_t next_tile) {
  const std::int64_t blocks = last_block - first_block;
  const Course way = course(blocks, rows.pairs, Weights::kPairBytes);
  Weights weights(args, rows, tile);
  const Weights next(args, rows, next_tile);
  alignas(64) float sums[2][Dense::kRows * kTileOutputs];  // blocks take turns
  for (std::int64_t first = 0, last; first < rows.pairs; first = last) {
    last = smaller(first + way.pairs, rows.pairs);
    const std::int64_t pairs = last - first;
    const Plain again = weights.again();
    const char* ahead = last < rows.pairs ? weights.bytes() + pairs * Weights::kPairBytes : next.bytes();
    if (blocks == 1) ahead = weights.bytes() + kAhead;
    for (std::int64_t block = first_block; block < last_block; ++block, ahead += pairs * way.step) {
      const std::int64_t count = rows.size(block);
      const std::uint32_t* x = rows.panel(block) + first * count;
      float* to = sums[block % 2];
      if (block == first_block)
        weights = sized(count).template add<Weights>(way.fetch)(x, weights, pairs, first == 0, {ahead, way.step}, to);
      else
        sized(count).template add<Plain>(way.fetch)(x, again, pairs, first == 0, {ahead, way.step}, to);
      if (last < rows.pairs) continue;
      for (std::int64_t r = 0; r < count; ++r)
        products::write_row(args, rows.first_row(block) + r, tile * kTileOutputs, to + r * kTileOutputs);
    }
  }
}

inline void multiply(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                     std::int64_t tile, std::int64_t next_tile) {
  const bool is_alone = last_block - first_block == 1;
  const auto compact = is_alone ? multiply_tile<Compact<false>> : multiply_tile<Compact<true>>;
  const auto function = args.bits == anychip::kCompactBits ? compact : multiply_tile<Plain>;
  function(args, rows, first_block, last_block, tile, next_tile);
}

constexpr anychip::DenseKernels table(const char* name) { return {name, Dense::kRows, arrange, multiply}; }

}  // namespace dense
}  // namespace
