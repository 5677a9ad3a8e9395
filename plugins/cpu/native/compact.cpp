// Packs bfloat16 weights into twelve bits each. Knows no product.
#include "compact.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>

#include "share.hpp"

namespace anychip {

namespace {

constexpr std::uint8_t kNone = 0xff;

// The upper byte's number among a tile's.
struct Codes {
  std::uint8_t of[256];

  explicit Codes(const CompactTile& head) {
    std::memset(of, kNone, sizeof of);
    for (int code = 0; code < 16; ++code) of[head.highs[code]] = static_cast<std::uint8_t>(code);
  }
};

// The weights of a tile's group; outputs that only fill the tile are zero.
struct Group {
  std::uint16_t values[kGroupPairs][kPairValues];

  Group(const CompactArgs& args, std::int64_t tile, std::int64_t number) {
    for (std::int64_t output = 0; output < kTileOutputs; ++output) {
      const std::int64_t row = tile * kTileOutputs + output;
      std::uint16_t inputs[kGroupInputs] = {};
      if (row < args.outputs)
        std::memcpy(inputs, args.source + row * args.stride + kGroupInputs * number, sizeof inputs);
      for (std::int64_t pair = 0; pair < kGroupPairs; ++pair)
        std::memcpy(&values[pair][2 * output], inputs + 2 * pair, 2 * sizeof *inputs);
    }
  }

  bool is_kept(const Codes& codes) const {
    const std::uint16_t* all = values[0];
    std::uint8_t found = 0;
    for (std::int64_t i = 0; i < kGroupPairs * kPairValues; ++i) found |= codes.of[all[i] >> 8];
    return found == kNone;
  }
};

void choose_highs(const CompactArgs& args, std::int64_t tile) {
  constexpr int kCounters = kGroupInputs;  // neighbours mostly count the same byte, and would wait for each other
  std::uint32_t counts[kCounters][256] = {};
  const std::int64_t end = (tile + 1) * kTileOutputs, last = std::min(args.outputs, end);
  for (std::int64_t row = tile * kTileOutputs; row < last; ++row) {
    const std::uint16_t* values = args.source + row * args.stride;
    for (std::int64_t i = 0; i < args.in; i += kCounters)
      for (int counter = 0; counter < kCounters; ++counter) ++counts[counter][values[i + counter] >> 8];
  }
  for (int high = 0; high < 256; ++high)
    for (int counter = 1; counter < kCounters; ++counter) counts[0][high] += counts[counter][high];
  counts[0][0] += static_cast<std::uint32_t>((end - last) * args.in);
  std::uint8_t order[256];
  std::iota(order, order + 256, 0);
  CompactTile& head = args.heads[tile];
  const auto is_more = [&](std::uint8_t a, std::uint8_t b) { return counts[0][a] > counts[0][b]; };
  std::partial_sort(order, order + 16, order + 256, is_more);
  std::copy(order, order + 16, head.highs);
}

void plan_tiles(const CompactArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t tile = begin; tile < end; ++tile) {
    choose_highs(args, tile);
    const Codes codes(args.heads[tile]);
    std::int64_t& count = args.heads[tile].count;
    count = 0;
    for (std::int64_t number = 0; number < args.in / kGroupInputs; ++number)
      count += Group(args, tile, number).is_kept(codes);
  }
}

void pack_group(const Group& group, const Codes& codes, std::uint8_t* out) {
  for (std::int64_t value = 0; value < kPairValues; ++value) {
    const std::int64_t place = place_of(value);
    const std::uint16_t first = group.values[0][value], second = group.values[1][value];
    out[place] = static_cast<std::uint8_t>((codes.of[first >> 8] & 0xf) | codes.of[second >> 8] << 4);
    out[kPairValues + place] = static_cast<std::uint8_t>(first);
    out[2 * kPairValues + place] = static_cast<std::uint8_t>(second);
  }
}

void pack_tiles(const CompactArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t tile = begin; tile < end; ++tile) {
    std::uint8_t* to = args.out + tile * compact_tile_bytes(args.in);
    const CompactTile& head = *new (to) CompactTile(args.heads[tile]);
    const Codes codes(head);
    auto* number = const_cast<std::int32_t*>(head.kept_numbers());
    auto* highs = const_cast<std::uint8_t*>(head.kept_highs());
    for (std::int64_t at = 0; at < args.in / kGroupInputs; ++at) {
      const Group group(args, tile, at);
      pack_group(group, codes, const_cast<std::uint8_t*>(head.group(at)));
      if (!group.is_kept(codes)) continue;
      *number++ = static_cast<std::int32_t>(at);
      for (std::int64_t pair = 0; pair < kGroupPairs; ++pair, highs += kPairValues)
        for (std::int64_t value = 0; value < kPairValues; ++value)
          highs[place_of(value)] = static_cast<std::uint8_t>(group.values[pair][value] >> 8);
    }
    *number = kNoGroup;
  }
}

std::int64_t tiles_of(const CompactArgs& args) { return (args.outputs + kTileOutputs - 1) / kTileOutputs; }

}  // namespace

std::int64_t plan_compact(const CompactArgs& args) {
  const std::int64_t tiles = tiles_of(args), tile_bytes = compact_tile_bytes(args.in);
  share_rows(args, plan_tiles, tiles, kTileOutputs * args.in);
  std::int64_t end = tiles * tile_bytes;
  for (std::int64_t tile = 0; tile < tiles; ++tile) {
    CompactTile& head = args.heads[tile];
    head.kept = end - tile * tile_bytes;
    end += CompactTile::kept_numbers_bytes(head.count) + head.count * kGroupPairs * kPairValues;
  }
  return end;
}

void pack_compact(const CompactArgs& args) {
  share_rows(args, pack_tiles, tiles_of(args), kTileOutputs * args.in);
}

}  // namespace anychip
