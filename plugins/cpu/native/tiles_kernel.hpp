// Products of bfloat16 by AMX: rows in panels, and a tile of weights, sixteen pairs of inputs at a time. Knows how weights
// lie; knows no threads.
//
// Include after simd_avx512.hpp. `in` is a multiple of 32.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "dense.hpp"
#include "fetch.hpp"
#include "numbers.hpp"
#include "product_output.hpp"
#include "unpack_avx512.hpp"

namespace {
namespace tiles {

using anychip::CompactTile;
using anychip::DenseRows;
using anychip::kGroupPairs;
using anychip::kPairValues;
using anychip::kTileOutputs;
using anychip::ProductArgs;
using anychip::UnpackedPair;

constexpr std::int64_t kTileRows = 16, kRows = 2 * kTileRows;  // of a block
constexpr std::int64_t kPairs = 16;                            // that are multiplied at a time: a step
constexpr std::int64_t kLine = 64;
constexpr std::int64_t kAhead = 8192;  // bytes from a weight that is used to the one that is fetched
constexpr std::int64_t kSteps = 4;     // that wait unpacked where nobody needs them again

struct alignas(64) Config {
  std::uint8_t palette = 1, start_row = 0, unused[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};

  // Tiles 0 to 3 are sums of rows 0 to 15 and of those from 16 on, for outputs 0 to 15 and from 16 on; 4 and 5 are rows;
  // 6 and 7 are weights.
  explicit Config(std::int64_t count) {
    const auto first = static_cast<std::uint8_t>(smaller(count, kTileRows));
    const auto second = static_cast<std::uint8_t>(count - first);
    const std::uint8_t wanted[8] = {first, first, second, second, first, second, kPairs, kPairs};
    for (int tile = 0; tile < 8; ++tile) {
      rows[tile] = wanted[tile];
      row_bytes[tile] = wanted[tile] == 0 ? 0 : kLine;
    }
  }
};

// What others on this thread have set up is theirs again afterwards.
class Configured {
 public:
  Configured() { _tile_storeconfig(before_); }
  ~Configured() {
    if (before_[0] == 0)
      _tile_release();
    else
      _tile_loadconfig(before_);
  }
  Configured(const Configured&) = delete;
  Configured& operator=(const Configured&) = delete;

 private:
  alignas(64) std::uint8_t before_[64];
};

// Rows as [steps][the block's rows][pairs of a step].
inline void arrange(const ProductArgs& args, const DenseRows& rows, std::int64_t first_pair, std::int64_t last_pair) {
  for (std::int64_t block = 0; block < rows.blocks; ++block) {
    const std::int64_t count = rows.size(block);
    const bf16* x = static_cast<const bf16*>(args.x) + rows.first_row(block) * args.x_stride;
    for (std::int64_t r = 0; r < count; ++r, x += args.x_stride)
      for (std::int64_t pair = first_pair; pair < last_pair; pair += kPairs)
        std::memcpy(rows.panel(block) + pair * count + r * kPairs, x + 2 * pair, kLine);
  }
}

// A step's weights as they are.
struct Plain {
  static constexpr std::int64_t kStepBytes = kPairs * kTileOutputs * sizeof(std::uint32_t);
  const char* at;

  const char* bytes() const { return at; }
  const void* next() {
    const char* found = at;
    at += kStepBytes;
    return found;
  }
};

// Compact ones, unpacked into `room` for so many steps, whose first follows its last.
struct Compact {
  static constexpr std::int64_t kStepBytes = kPairs / kGroupPairs * anychip::kGroupBytes;
  const std::uint8_t* group;
  std::int32_t number = 0;
  const std::int32_t* kept_number;
  const std::uint8_t* kept_highs;
  Unpack::Highs highs;
  float* room;
  std::int64_t steps, step = 0;

  Compact(const CompactTile& tile, void* to, std::int64_t count)
      : group(tile.group(0)),
        kept_number(tile.kept_numbers()),
        kept_highs(tile.kept_highs()),
        highs(tile.highs),
        room(static_cast<float*>(to)),
        steps(count) {}

  const char* bytes() const { return reinterpret_cast<const char*>(group); }
  const void* next() {
    float* to = room + step * kPairs * kTileOutputs;
    step = step + 1 == steps ? 0 : step + 1;
    const float* found = to;
    for (std::int64_t i = 0; i < kPairs / kGroupPairs; ++i, group += anychip::kGroupBytes) {
      const std::uint8_t* kept = nullptr;
      if (__builtin_expect(number++ == *kept_number, 0)) {
        kept = kept_highs;
        ++kept_number;
        kept_highs += kGroupPairs * kPairValues;
      }
      Simd::F words[kGroupPairs][Unpack::kVectors];
      Unpack::words(group, highs, kept, 0, words);
      for (const auto& pair : words)
        for (const Simd::F& word : pair) {
          Simd::store(to, word);
          to += Simd::kWidth;
        }
    }
    return found;
  }
};

// To the compiler: what was stored is about to be loaded, which a tile's load doesn't tell.
inline void written() { __asm__ volatile("" ::: "memory"); }

// What is fetched beside the work: so many lines with each step.
struct Ahead {
  const char* at;
  std::int64_t lines;

  void fetch() {
    for (std::int64_t i = 0; i < lines; ++i, at += kLine) __builtin_prefetch(at);
  }
};

// The sums of a block's rows [rows][kTileOutputs], taken in the order of the steps whatever their number.
template <bool HasSecond, class Weights>
void add(const std::uint32_t* panel, std::int64_t count, std::int64_t steps, Weights& weights, Ahead ahead,
         float* sums) {
  constexpr std::int64_t kRowBytes = kTileOutputs * sizeof(float);
  _tile_zero(0);
  _tile_zero(1);
  if (HasSecond) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const void* behind = weights.next();
  for (std::int64_t step = 0; step < steps; ++step, panel += count * kPairs) {
    const char* from = static_cast<const char*>(behind);
    // a tile's load waits until what was stored just before has left for the cache, so weights are unpacked a step ahead
    if (step + 1 < steps) behind = weights.next();
    ahead.fetch();
    written();
    _tile_loadd(6, from, kRowBytes);
    _tile_loadd(7, from + kLine, kRowBytes);
    _tile_loadd(4, panel, kLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (!HasSecond) continue;
    _tile_loadd(5, panel + kTileRows * kPairs, kLine);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kRowBytes);
  _tile_stored(1, sums + kTileRows, kRowBytes);
  if (!HasSecond) return;
  _tile_stored(2, sums + kTileRows * kTileOutputs, kRowBytes);
  _tile_stored(3, sums + kTileRows * kTileOutputs + kTileRows, kRowBytes);
}

template <class Weights>
void multiply_block(const ProductArgs& args, const DenseRows& rows, std::int64_t block, std::int64_t tile,
                    Weights& weights, Ahead ahead) {
  alignas(64) float sums[kRows * kTileOutputs];
  const std::int64_t count = rows.size(block), steps = rows.pairs / kPairs;
  const Config config(count);
  written();
  _tile_loadconfig(&config);
  const auto function = count > kTileRows ? add<true, Weights> : add<false, Weights>;
  function(rows.panel(block), count, steps, weights, ahead, sums);
  for (std::int64_t r = 0; r < count; ++r)
    products::write_row(args, rows.first_row(block) + r, tile * kTileOutputs, sums + r * kTileOutputs);
}

// The first block takes its weights from memory. Others share them unpacked, and fetch the next tile.
inline void multiply(const ProductArgs& args, const DenseRows& rows, std::int64_t first_block, std::int64_t last_block,
                     std::int64_t tile, std::int64_t next_tile) {
  const Configured configured;
  const bool is_compact = args.bits == anychip::kCompactBits;
  const std::int64_t steps = rows.pairs / kPairs, others = last_block - first_block - 1;
  const std::int64_t step_bytes = is_compact ? Compact::kStepBytes : Plain::kStepBytes;
  const std::int64_t tile_bytes = is_compact ? anychip::compact_tile_bytes(args.in) : steps * step_bytes;
  const auto* from = reinterpret_cast<const char*>(args.weight) + tile * tile_bytes;
  alignas(64) float few[kSteps * kPairs * kTileOutputs];
  Plain again{from};
  if (is_compact) {
    Compact weights(*reinterpret_cast<const CompactTile*>(from), others > 0 ? static_cast<void*>(rows.unpacked) : few,
                    others > 0 ? steps : kSteps);
    again.at = reinterpret_cast<const char*>(rows.unpacked);
    multiply_block(args, rows, first_block, tile, weights, {weights.bytes() + kAhead, step_bytes / kLine});
  } else {
    Plain weights = again;
    multiply_block(args, rows, first_block, tile, weights, {from + kAhead, step_bytes / kLine});
  }
  Ahead ahead{reinterpret_cast<const char*>(args.weight) + next_tile * tile_bytes,
              others > 0 ? step_bytes / kLine / others : 0};
  for (std::int64_t block = first_block + 1; block < last_block; ++block, ahead.at += steps * ahead.lines * kLine) {
    Plain weights = again;
    multiply_block(args, rows, block, tile, weights, ahead);
  }
}

constexpr anychip::DenseKernels table(const char* name) { return {name, kRows, arrange, multiply}; }

}  // namespace tiles
}  // namespace
