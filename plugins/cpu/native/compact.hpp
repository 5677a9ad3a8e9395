// Bfloat16 weights in twelve bits each, without loss: how they lie and how they are packed. Knows no instruction set.
//
// The upper bytes of a matrix's weights, a sign and seven bits of the exponent, are nearly all of a few values. Of each
// tile the sixteen most frequent ones are written down once, and which of them a weight has takes four bits. Where it
// has none of them, the upper bytes of all its group are kept aside.
#pragma once

#include <cstdint>
#include <limits>

#include "products.hpp"

namespace anychip {

constexpr std::int64_t kGroupPairs = 2, kGroupInputs = 2 * kGroupPairs;  // that are packed together
constexpr std::int64_t kPairValues = 2 * kTileOutputs;
constexpr std::int64_t kGroupBytes = 3 * kPairValues;
constexpr std::int32_t kNoGroup = std::numeric_limits<std::int32_t>::max();

// Begins a tile; its groups follow. A group is [64 codes of its first pair, those of the second in the upper halves]
// [64 lower bytes of the first pair][64 of the second]; all three in the order of `place_of`.
struct alignas(64) CompactTile {
  std::uint8_t highs[16];
  std::int64_t count;  // of groups with other upper bytes
  // bytes from here to their numbers, which kNoGroup ends; behind them, at the next line, [count][2 pairs][64 bytes]
  std::int64_t kept;

  const std::uint8_t* group(std::int64_t number) const {
    return reinterpret_cast<const std::uint8_t*>(this + 1) + number * kGroupBytes;
  }
  const std::int32_t* kept_numbers() const {
    return reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::uint8_t*>(this) + kept);
  }
  const std::uint8_t* kept_highs() const {
    return reinterpret_cast<const std::uint8_t*>(this) + kept + kept_numbers_bytes(count);
  }
  static std::int64_t kept_numbers_bytes(std::int64_t count) {
    constexpr std::int64_t kLine = 64, kNumbers = kLine / sizeof(std::int32_t);
    return (count / kNumbers + 1) * kLine;  // kNoGroup is one more
  }
};

// Where the byte of a pair's value lies: the bytes that unpacking to words puts side by side are eight apart.
constexpr std::int64_t place_of(std::int64_t value) {
  const std::int64_t half = value / 32, eight = value % 32 / 8;
  return 16 * eight + 8 * half + value % 8;
}

struct CompactArgs {
  const std::uint16_t* source;  // [outputs, in]; `in` is a multiple of kGroupInputs
  CompactTile* heads;           // [tiles]
  std::uint8_t* out;            // as many bytes as `plan_compact` tells
  std::int64_t outputs, in, stride, threads;
};

constexpr std::int64_t compact_tile_bytes(std::int64_t in) {
  return sizeof(CompactTile) + in / kGroupInputs * kGroupBytes;
}

// Fills in the heads; how many bytes all takes.
std::int64_t plan_compact(const CompactArgs& args);
// Packs, as the heads say.
void pack_compact(const CompactArgs& args);

}  // namespace anychip
