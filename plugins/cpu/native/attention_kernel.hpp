// The kernels of attention for one instruction set: include after simd_*.hpp and the engines.
#pragma once

#include "attention_rows.hpp"
#include "attention_stream.hpp"
#include "attention_tiles.hpp"

namespace {

// So many heads of a token that read the same keys make it worthwhile to pack these.
constexpr std::int32_t kRichHeads = 16;

template <class Engine>
void attend(const Tile* tiles, std::int64_t count, float* scratch) {
  const AttentionArgs& args = *tiles->args;
  const bool is_rich = args.kv_heads == 1 && args.heads >= kRichHeads;
  if (tiles->tokens == 1 && !is_rich)
    Stream<Engine>(tiles, count, scratch).run();
  else
    Tiles<Engine>(*tiles, scratch).run();
}

// partials: [spans][rows], `stride` floats from one span to the next; the first span's are overwritten
template <class Engine>
void merge_partials(const Tile& tile, float* partials, std::int64_t count, std::int64_t stride) {
  using T = typename Engine::Element;
  const AttentionArgs& args = *tile.args;
  const std::int64_t group = args.heads / args.kv_heads, dim = args.value_dim;
  T* out = static_cast<T*>(args.out) + (tile.token * args.heads + tile.kv_head * group) * dim;
  for (std::int64_t row = 0; row < tile.kv_heads * group; ++row, out += dim) {
    float* all = partials + row * anychip::partial_floats(args);
    for (std::int64_t span = 1; span < count; ++span) {
      const float* more = all + span * stride;
      RunningSums::merge(all, all[dim], all[dim + 1], more, more[dim], more[dim + 1], dim);
    }
    const float sink = RunningSums::sink_weight(args, tile.kv_head * group + row, all[dim]);
    RunningSums::write(out, all, all[dim + 1] + sink, dim);
  }
}

}  // namespace
