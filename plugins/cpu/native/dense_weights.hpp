// The weights of a tile as they are read, pair by pair. Knows how pairs are multiplied; multiplies nothing.
//
// Include after simd_*.hpp and dense_avx512_bf16.hpp or dense_widened.hpp.
#pragma once

#include "compact.hpp"
#include "products.hpp"

namespace {
namespace dense {

using anychip::CompactTile;
using anychip::DenseRows;
using anychip::kGroupPairs;
using anychip::kPairValues;
using anychip::kTileOutputs;
using anychip::ProductArgs;

constexpr int kVectors = Dense::kVectors;

// As they are.
struct Plain {
  static constexpr std::int64_t kPairs = 1, kPairBytes = kTileOutputs * sizeof(std::uint32_t);
  const std::uint32_t* at;

  Plain(const ProductArgs& args, const DenseRows& rows, std::int64_t tile)
      : Plain(reinterpret_cast<const std::uint32_t*>(args.weight) + tile * rows.pairs * kTileOutputs) {}
  explicit Plain(const std::uint32_t* first) : at(first) {}

  const char* bytes() const { return reinterpret_cast<const char*>(at); }
  Plain again() const { return *this; }
  // for some outputs from `part` on
  void next(int part, Dense::Pairs (&weights)[kPairs][kVectors]) {
    for (int v = 0; v < kVectors; ++v) weights[0][v] = Dense::load(at + part + v * Simd::kWidth);
    at += kTileOutputs;
  }
};

// Compact ones. What one block of rows unpacks it may leave for the others.
template <bool IsLeft>
struct Compact {
  static constexpr std::int64_t kPairs = kGroupPairs, kPairBytes = anychip::kGroupBytes / kGroupPairs;
  const std::uint8_t* group;
  std::int32_t number;
  const std::int32_t* kept_number;  // the next whose upper bytes are kept
  const std::uint8_t* kept_highs;
  Dense::Highs highs;
  std::uint32_t *left, *unpacked;

  Compact(const ProductArgs& args, const DenseRows& rows, std::int64_t tile)
      : Compact(*reinterpret_cast<const CompactTile*>(args.weight + tile * anychip::compact_tile_bytes(args.in)),
                rows.unpacked->outputs) {}
  Compact(const CompactTile& tile, std::uint32_t* to)
      : group(tile.group(0)),
        number(0),
        kept_number(tile.kept_numbers()),
        kept_highs(tile.kept_highs()),
        highs(tile.highs),
        left(to),
        unpacked(to) {}

  const char* bytes() const { return reinterpret_cast<const char*>(group); }
  Plain again() { return Plain(unpacked = left); }
  void next(int part, Dense::Pairs (&weights)[kPairs][kVectors]) {
    const std::uint8_t* kept = nullptr;
    if (__builtin_expect(number++ == *kept_number, 0)) {
      kept = kept_highs;
      ++kept_number;
      kept_highs += kPairs * kPairValues;
    }
    Dense::unpack<IsLeft>(group, highs, kept, unpacked, part, weights);
    group += anychip::kGroupBytes;
    if (IsLeft) unpacked += kPairs * kTileOutputs;
  }
};

}  // namespace dense
}  // namespace
