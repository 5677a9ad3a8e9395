// Sums of a tile's products part by part. Knows Simd and an engine; knows no threads.
//
// Include after simd_*.hpp and an integer engine.
#pragma once

#include "fetch.hpp"
#include "numbers.hpp"
#include "product_output.hpp"
#include "products.hpp"
#include "rounding.hpp"

namespace {
namespace products {

using anychip::kTileOutputs;

constexpr int kVectors = kTileOutputs / Simd::kWidth;
constexpr std::int64_t kLine = 64;
// How far ahead of a single block of rows memory is read.
constexpr std::int64_t kAheadBytes = 4096;
// Several blocks share what lies in the nearest cache; so many at most, since sums wait there too.
constexpr std::int64_t kChunkBytes = 16384, kChunkedBlocks = 10;

// What a tile's outputs are made of: parts' sums times one scale an output, or one for each of its groups, or that plus
// a minimum.
enum class Scales { kOutput, kGroup, kGroupAndMinimum };

template <int Bits>
constexpr std::int64_t kPartBytes = kPart * kTileOutputs * Bits / 8;

// `args` points to the tile's own weights and scales.
struct Tile {
  const ProductArgs& args;
  const RoundedRows& rounded;
  std::int64_t output;       // the first
  const std::uint8_t* next;  // weights of the tile that follows
};

// Parts begin .. end for a block of rows. With each part some lines of the weights behind them are fetched, so that
// memory is not idle while arithmetic is busy.
struct Pass {
  std::int64_t first_row, begin, end, lines;
  const std::uint8_t* ahead;
  bool is_soon;  // what is fetched is used before it leaves the first cache, and then no more
  float* held;  // sums from one chunk of parts to the next
};

// What a tile's sums are multiplied with, for vector v of its outputs.
template <int Bits>
F weight_scale(const ProductArgs& args, std::int64_t group, int v) {
  const std::int64_t at = group * kTileOutputs + v * Simd::kWidth;
  return Bits == 8 ? Simd::load(static_cast<const float*>(args.scale) + at)
                   : Simd::load(static_cast<const half*>(args.scale) + at);
}

template <int Bits, Scales S, int R>
void finish(const Tile& tile, std::int64_t first_row, const F (&sums)[R][kVectors]) {
  for (int r = 0; r < R; ++r) {
    alignas(64) float out[kTileOutputs];
    for (int v = 0; v < kVectors; ++v) {
      const F sum = S == Scales::kOutput ? sums[r][v] * weight_scale<Bits>(tile.args, 0, v) : sums[r][v];
      Simd::store(out + v * Simd::kWidth, sum);
    }
    write_row(tile.args, first_row + r, tile.output, out);
  }
}

// `at`: where the part's numbers of this block of rows lie.
template <int Bits, Scales S, int R>
void add_part(const Tile& tile, std::int64_t at, std::int64_t part, const F (&dots)[R][kVectors],
              F (&sums)[R][kVectors]) {
  const float* scale = tile.rounded.scale + at;
  if constexpr (S == Scales::kOutput) {
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Simd::fma(dots[r][v], Simd::set(scale[r]), sums[r][v]);
    return;
  }
  const std::int64_t group = part / (tile.rounded.parts / tile.args.groups);
  for (int v = 0; v < kVectors; ++v) {
    const F factor = weight_scale<Bits>(tile.args, group, v);
    for (int r = 0; r < R; ++r) sums[r][v] = Simd::fma(dots[r][v] * Simd::set(scale[r]), factor, sums[r][v]);
    if constexpr (S == Scales::kGroupAndMinimum) {
      const half* minimum = reinterpret_cast<const half*>(tile.args.minimum) + group * kTileOutputs;
      const F least = Simd::load(minimum + v * Simd::kWidth);
      for (int r = 0; r < R; ++r) sums[r][v] = Simd::fma(Simd::set(tile.rounded.sum[at + r]), least, sums[r][v]);
    }
  }
}

template <int Bits, Scales S, int R>
void run(const Tile& tile, const Pass& pass) {
  const RoundedRows& rounded = tile.rounded;
  const std::uint8_t* ahead = pass.ahead;
  F sums[R][kVectors];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = pass.begin == 0 ? Simd::zero() : Simd::load(pass.held + r * kTileOutputs + v * Simd::kWidth);
  for (std::int64_t part = pass.begin; part < pass.end; ++part) {
    for (std::int64_t line = 0; line < pass.lines; ++line, ahead += kLine)
      pass.is_soon ? fetch_once(ahead) : __builtin_prefetch(ahead);
    const std::int64_t at = pass.first_row * rounded.parts + part * R;
    F dots[R][kVectors];
    Engine::dot<R, Bits>(tile.args.weight + part * kPartBytes<Bits>, rounded.levels + at * kPart, rounded.less + at,
                         dots);
    add_part<Bits, S>(tile, at, part, dots, sums);
  }
  if (pass.end == rounded.parts) return finish<Bits, S>(tile, pass.first_row, sums);
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
void multiply_tile(const Tile& tile, std::int64_t first_block, std::int64_t last_block) {
  constexpr std::int64_t kLines = kPartBytes<Bits> / kLine;
  const RoundedRows& rounded = tile.rounded;
  const std::int64_t blocks = last_block - first_block;
  const bool is_chunked = blocks > 1 && blocks <= kChunkedBlocks;
  const std::int64_t step = is_chunked ? kChunkBytes / kPartBytes<Bits> : rounded.parts;
  alignas(64) float held[kChunkedBlocks][Engine::kRows * kTileOutputs];
  for (std::int64_t begin = 0; begin < rounded.parts; begin += step) {
    const std::int64_t end = smaller(begin + step, rounded.parts);
    const std::uint8_t* behind = end < rounded.parts ? tile.args.weight + end * kPartBytes<Bits> : tile.next;
    if (blocks == 1) behind = tile.args.weight + kAheadBytes;
    for (std::int64_t i = 0; i < blocks; ++i) {
      const std::int64_t fetched = kLines * i / blocks, lines = kLines * (i + 1) / blocks - fetched;
      const std::int64_t first_row = rounded.first_row(first_block + i);
      const std::uint8_t* ahead = behind + fetched * (end - begin) * kLine;
      const Pass pass{first_row, begin, end, lines, ahead, is_chunked || blocks == 1, held[is_chunked ? i : 0]};
      run_rows<Bits, S>(rounded.size(first_block + i), tile, pass);
    }
  }
}

inline void multiply(const ProductArgs& args, const RoundedRows& rounded, std::int64_t first_block,
                     std::int64_t last_block, std::int64_t tile, std::int64_t next) {
  ProductArgs own = args;
  const std::int64_t scales = tile * args.groups * kTileOutputs;
  const std::int64_t bytes = rounded.parts * kPart * kTileOutputs * args.bits / 8;
  own.weight += tile * bytes;
  const Tile found{own, rounded, tile * kTileOutputs, args.weight + next * bytes};
  if (args.bits == 8) {
    own.scale = static_cast<const float*>(args.scale) + scales;
    return args.groups == 1 ? multiply_tile<8, Scales::kOutput>(found, first_block, last_block)
                            : multiply_tile<8, Scales::kGroup>(found, first_block, last_block);
  }
  own.scale = static_cast<const half*>(args.scale) + scales;
  if (own.minimum == nullptr) return multiply_tile<4, Scales::kGroup>(found, first_block, last_block);
  own.minimum += scales;
  multiply_tile<4, Scales::kGroupAndMinimum>(found, first_block, last_block);
}

constexpr anychip::ProductKernels table(const char* name) {
  return {name, Engine::kRows, {round_rows<float>, round_rows<bf16>, round_rows<half>}, multiply};
}

}  // namespace products
}  // namespace
