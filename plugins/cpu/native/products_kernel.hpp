// Sums of a tile's products block by block. Knows Simd and an engine; knows no threads.
//
// Include after simd_*.hpp and an integer engine.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "product_output.hpp"
#include "products.hpp"
#include "rounding.hpp"

namespace {
namespace products {

using anychip::kTileOutputs;

constexpr int kVectors = kTileOutputs / Simd::kWidth;
constexpr std::int64_t kLine = 64;
// How far ahead of a single pass memory is read.
constexpr std::int64_t kAheadBytes = 4096;
// Rows of more than one pass share what lies in the nearest cache; so many at most, since sums wait there too.
constexpr std::int64_t kChunkBytes = 16384, kChunkedRows = 64;

// What a tile's outputs are made of: blocks' sums times one scale an output, or one for each of its groups, or that plus
// a minimum.
enum class Scales { kOutput, kGroup, kGroupAndMinimum };

template <int Bits>
constexpr std::int64_t kBlockBytes = kBlock32 * kTileOutputs * Bits / 8;

// What all passes over a tile's blocks know. `args` points to the tile's own weights and scales.
struct Tile {
  const ProductArgs& args;
  const RoundedRows& rounded;
  std::int64_t output;  // the first
};

// Blocks begin .. end for some rows. With each block a pass fetches some of the lines behind them, so that memory is not
// idle while arithmetic is busy.
struct Pass {
  std::int64_t begin, end, row;
  const std::uint8_t* ahead;
  std::int64_t lines;
  float* held;  // sums from one chunk of blocks to the next
};

// What a tile's sums are multiplied with, for vector v of its outputs.
inline F weight_scale(const ProductArgs& args, std::int64_t group, int v) {
  const std::int64_t at = group * kTileOutputs + v * Simd::kWidth;
  return args.bits == 8 ? Simd::load(static_cast<const float*>(args.scale) + at)
                        : Simd::load(static_cast<const half*>(args.scale) + at);
}

template <Scales S, int R>
void finish(const Tile& tile, std::int64_t first_row, const F (&sums)[R][kVectors]) {
  for (int r = 0; r < R; ++r) {
    alignas(64) float out[kTileOutputs];
    for (int v = 0; v < kVectors; ++v)
      Simd::store(out + v * Simd::kWidth,
                  S == Scales::kOutput ? sums[r][v] * weight_scale(tile.args, 0, v) : sums[r][v]);
    write_row(tile.args, first_row + r, tile.output, out);
  }
}

template <Scales S, int R>
void add_block(const Tile& tile, std::int64_t row, std::int64_t block, const F (&dots)[R][kVectors],
               F (&sums)[R][kVectors]) {
  const std::int64_t blocks = tile.rounded.blocks, at = row * blocks + block;
  const float* scale = tile.rounded.scale + at;
  if constexpr (S == Scales::kOutput) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::fma(dots[r][v], Simd::set(scale[r * blocks]), sums[r][v]);
    return;
  }
  const std::int64_t group = block / (blocks / tile.args.groups);
  const half* minimum = reinterpret_cast<const half*>(tile.args.minimum) + group * kTileOutputs;
  for (int v = 0; v < kVectors; ++v) {
    const F factor = weight_scale(tile.args, group, v);
    for (int r = 0; r < R; ++r)
      sums[r][v] = Simd::fma(dots[r][v] * Simd::set(scale[r * blocks]), factor, sums[r][v]);
    if constexpr (S == Scales::kGroupAndMinimum) {
      const F least = Simd::load(minimum + v * Simd::kWidth);
      for (int r = 0; r < R; ++r)
        sums[r][v] = Simd::fma(Simd::set(tile.rounded.sum[at + r * blocks]), least, sums[r][v]);
    }
  }
}

template <int Bits, Scales S, int R>
__attribute__((noinline)) void run(const Tile& tile, const Pass& pass) {
  const RoundedRows& rounded = tile.rounded;
  const std::int8_t* levels = rounded.levels + pass.row * rounded.stride;
  const std::int32_t* less = rounded.less + pass.row * rounded.blocks;
  const std::uint8_t* ahead = pass.ahead;
  F sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = pass.begin == 0 ? Simd::zero() : Simd::load(pass.held + r * kTileOutputs + v * Simd::kWidth);
  for (std::int64_t block = pass.begin; block < pass.end; ++block) {
    for (std::int64_t line = 0; line < pass.lines; ++line, ahead += kLine) __builtin_prefetch(ahead);
    F dots[R][kVectors];
    Engine::dot<R, Bits>(tile.args.weight + block * kBlockBytes<Bits>, levels + block * kBlock32, rounded.stride,
                         less + block, rounded.blocks, dots);
    add_block<S>(tile, pass.row, block, dots, sums);
  }
  if (pass.end == rounded.blocks) return finish<S>(tile, pass.row, sums);
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v) Simd::store(pass.held + r * kTileOutputs + v * Simd::kWidth, sums[r][v]);
}

template <int Bits, Scales S, int R = Engine::kRows>
void run_rows(std::int64_t rows, const Tile& tile, const Pass& pass) {
  if constexpr (R > 0) {
    if (rows == R) return run<Bits, S, R>(tile, pass);
    run_rows<Bits, S, R - 1>(rows, tile, pass);
  }
}

template <int Bits, Scales S>
void multiply_tile(const Tile& tile) {
  const std::int64_t rows = tile.args.rows, blocks = tile.rounded.blocks;
  const std::int64_t passes = (rows + Engine::kRows - 1) / Engine::kRows;
  const bool is_chunked = passes > 1 && rows <= kChunkedRows;
  const std::int64_t step = is_chunked ? kChunkBytes / kBlockBytes<Bits> : blocks;
  const std::int64_t lines = (kBlockBytes<Bits> / kLine + passes - 1) / passes;
  alignas(64) float held[kChunkedRows * kTileOutputs];
  for (std::int64_t begin = 0; begin < blocks; begin += step) {
    const std::int64_t end = smaller(begin + step, blocks);
    const std::uint8_t* ahead = tile.args.weight + (passes == 1 ? kAheadBytes : end * kBlockBytes<Bits>);
    std::int64_t row = 0, fetched = 0;  // lines for each block
    for (std::int64_t i = 0; i < passes; ++i) {
      const std::int64_t until = rows * (i + 1) / passes;
      const std::int64_t more = smaller(lines, kBlockBytes<Bits> / kLine - fetched);
      const Pass pass{begin, end, row, ahead + fetched * (end - begin) * kLine, more,
                      held + (is_chunked ? row * kTileOutputs : 0)};
      run_rows<Bits, S>(until - row, tile, pass);
      row = until;
      fetched += more;
    }
  }
}

inline void multiply(const ProductArgs& args, const RoundedRows& rounded, std::int64_t tile) {
  ProductArgs own = args;
  const std::int64_t scales = tile * args.groups * kTileOutputs;
  own.weight += tile * rounded.blocks * kBlock32 * kTileOutputs * args.bits / 8;
  const Tile found{own, rounded, tile * kTileOutputs};
  if (args.bits == 8) {
    own.scale = static_cast<const float*>(args.scale) + scales;
    return args.groups == 1 ? multiply_tile<8, Scales::kOutput>(found) : multiply_tile<8, Scales::kGroup>(found);
  }
  own.scale = static_cast<const half*>(args.scale) + scales;
  if (own.minimum == nullptr) return multiply_tile<4, Scales::kGroup>(found);
  own.minimum += scales;
  multiply_tile<4, Scales::kGroupAndMinimum>(found);
}

constexpr anychip::ProductKernels table(const char* name) {
  return {name, Engine::kRows, {round_row<float>, round_row<bf16>, round_row<half>}, multiply};
}

}  // namespace products
}  // namespace
