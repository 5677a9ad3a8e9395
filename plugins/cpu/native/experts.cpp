// Sorts rows by experts, then shares tiles of the experts' outputs among threads. Knows no instruction set.
#include "experts.hpp"

#include <algorithm>
#include <cstring>

#include "dispatch.hpp"
#include "expert_product.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// of an expert's rows that pass a tile of weights before the next tile: they stay in a member's cache
constexpr std::int64_t kSegmentRows = 256;
// of intermediate results, which tokens are taken in parts for
constexpr std::int64_t kBytesAtOnce = 96 << 20;
// of what is left a member takes a half of its share
constexpr std::int64_t kShares = 2;
// elements of a row that a member sums at a time
constexpr std::int64_t kCombined = 1024;

// Where each row of tokens first .. goes when they are sorted by experts, and into which segments and blocks.
void sort_rows(ExpertWork& work) {
  ExpertScratch& to = work.scratch;
  const ExpertsArgs& args = work.args;
  const std::int64_t count = work.tokens * args.columns;
  const std::int32_t* ids = args.ids + work.first_token * args.columns;
  const auto local = [&](std::int64_t i) {
    const std::int64_t expert = ids[i] - args.first;
    return expert >= 0 && expert < args.experts ? expert : args.experts;
  };
  std::fill(to.starts.begin(), to.starts.end(), 0);
  for (std::int64_t i = 0; i < count; ++i) ++to.starts[local(i) + 1];
  for (std::int64_t expert = 0; expert < args.experts; ++expert) to.starts[expert + 1] += to.starts[expert];
  to.segments.clear(), to.blocks.clear();
  const std::int64_t at_once = rows_at_once(work.gate_up);
  for (std::int64_t expert = 0; expert < args.experts; ++expert) {
    const std::int64_t first = to.starts[expert], rows = to.starts[expert + 1] - first;
    const RowBlocks segments{rows, ceil_div(rows, kSegmentRows)};
    for (std::int64_t i = 0; i < segments.blocks; ++i) {
      const Segment segment{expert, first + segments.first_row(i), segments.size(i)};
      const RowBlocks blocks = blocks_of(segment, at_once);
      to.segments.push_back(segment);
      for (std::int64_t block = 0; block < blocks.blocks; ++block)
        to.blocks.push_back({expert, segment.first + blocks.first_row(block), blocks.size(block)});
    }
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t expert = local(i);
    to.parts[i] = nullptr;
    if (expert == args.experts) continue;
    const std::int64_t row = to.starts[expert]++;
    to.order[row] = static_cast<std::int32_t>(i);
    to.parts[i] = to.outs.data() + row * args.hidden;
  }
}

// Rows of a block side by side.
void gather(const ExpertWork& work, Segment block, std::uint8_t* to) {
  const ExpertsArgs& args = work.args;
  const std::int64_t size = element_bytes(args.dtype);
  for (std::int64_t i = 0; i < block.rows; ++i, to += args.hidden * size) {
    const std::int64_t at = work.first_token * args.columns + work.scratch.order[block.first + i];
    std::memcpy(to, static_cast<const char*>(args.x) + at / args.columns * args.x_stride * size, args.hidden * size);
  }
}

void arrange_blocks(ExpertWork& work, const Team& team) {
  const std::vector<Segment>& blocks = work.scratch.blocks;
  const std::int64_t bytes = rows_at_once(work.gate_up) * work.args.hidden * element_bytes(work.args.dtype);
  std::uint8_t* gathered = work.scratch.gathered.data() + team.rank * bytes;
  for (;;) {
    const std::int64_t at = work.next.fetch_add(1, std::memory_order_relaxed);
    if (at >= static_cast<std::int64_t>(blocks.size())) return;
    gather(work, blocks[at], gathered);
    ProductArgs args = args_of(work.gate_up, blocks[at]);
    args.x = gathered;
    args.x_stride = work.args.hidden;
    arrange(work.gate_up, args, blocks[at], 0, ceil_div(work.args.hidden, kPart));
  }
}

// What multiplies the input may as well multiply its products, before a bias is added.
void weigh_rows(const ExpertWork& work, Segment segment, float* sums, const float* gate_bias, const float* up_bias) {
  const float* weights = work.args.weights + work.first_token * work.args.columns;
  for (std::int64_t row = 0; row < segment.rows; ++row, sums += 2 * kTileOutputs)
    chosen_kernels()->experts.weigh(sums, weights[work.scratch.order[segment.first + row]], gate_bias, up_bias);
}

// A tile of an expert's inner values for a segment's rows, ready to be multiplied with down's weights.
void gate_tile(ExpertWork& work, Segment segment, std::int64_t tile, std::int64_t next, unsigned rank) {
  const ExpertsArgs& mixture = work.args;
  const std::int64_t half = work.gate_up.tiles / 2;
  float* sums = work.scratch.sums.data() + rank * kSegmentRows * 2 * kTileOutputs;
  const float* biases[2];
  for (int part = 0; part < 2; ++part) {
    ProductArgs args = from_tile(args_of(work.gate_up, segment), part * half + tile);
    biases[part] = args.bias;
    if (mixture.is_on_input) args.bias = nullptr;
    args.outputs = 2 * kTileOutputs;
    args.out = sums + part * kTileOutputs;
    multiply(work.gate_up, args, segment, 0, part == 0 ? half : next - half - tile, rank);
  }
  if (mixture.is_on_input) weigh_rows(work, segment, sums, biases[0], biases[1]);
  const std::int32_t dtype = work.down.dtype;
  const std::int64_t size = element_bytes(dtype), first = tile * kTileOutputs;
  std::uint8_t* inner = work.scratch.inner.data() + segment.first * mixture.inner * size;
  chosen_kernels()->experts.activate[dtype](sums, segment.rows, std::min(kTileOutputs, mixture.inner - first),
                                            mixture.activation, inner + first * size, mixture.inner);
  ProductArgs args = args_of(work.down, segment);
  args.x = inner;
  args.x_stride = mixture.inner;
  arrange(work.down, args, segment, tile, tile + 1);
}

// A tile of an expert's outputs for a segment's rows.
void down_tile(ExpertWork& work, Segment segment, std::int64_t tile, std::int64_t next, unsigned rank) {
  ProductArgs args = args_of(work.down, segment);
  args.outputs = work.args.hidden;
  args.out = work.scratch.outs.data() + segment.first * args.outputs;
  multiply(work.down, args, segment, tile, next, rank);
}

struct Turn {
  std::int64_t begin, end;
};

// Less each time, so that members read long stretches of weights and yet end together.
Turn take_turn(std::atomic<std::int64_t>& next, std::int64_t all, unsigned members) {
  std::int64_t begin = next.load(std::memory_order_relaxed), end;
  do {
    if (begin >= all) return {all, all};
    end = begin + std::max<std::int64_t>(1, (all - begin) / (kShares * members));
  } while (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  return {begin, end};
}

using TileFunction = void (*)(ExpertWork& work, Segment segment, std::int64_t tile, std::int64_t next, unsigned rank);

// All segments' tiles; members take stretches of them, over the borders of experts too.
void share_tiles(ExpertWork& work, TileFunction function, std::int64_t tiles, const Team& team) {
  const std::vector<Segment>& segments = work.scratch.segments;
  const std::int64_t all = static_cast<std::int64_t>(segments.size()) * tiles;
  for (Turn turn = take_turn(work.next, all, team.size); turn.begin < turn.end;) {
    const std::int64_t at = turn.begin++, segment = at / tiles;
    if (turn.begin == turn.end) turn = take_turn(work.next, all, team.size);
    const bool is_same = turn.begin < turn.end && turn.begin / tiles == segment;
    function(work, segments[segment], at % tiles, is_same ? turn.begin % tiles : at % tiles, team.rank);
  }
}

void combine(ExpertWork& work, const Team& team) {
  static_cast<void>(team);
  const ExpertsArgs& args = work.args;
  const std::int64_t stretches = ceil_div(args.hidden, kCombined), size = element_bytes(args.dtype);
  const std::vector<float> ones(args.is_on_input ? args.columns : 0, 1.0f);
  for (;;) {
    const std::int64_t at = work.next.fetch_add(1, std::memory_order_relaxed), token = at / stretches;
    if (token >= work.tokens) return;
    const std::int64_t row = work.first_token + token, first = at % stretches * kCombined;
    const float* weights = args.is_on_input ? ones.data() : args.weights + row * args.columns;
    chosen_kernels()->experts.combine[args.dtype](work.scratch.parts.data() + token * args.columns, weights,
                                                  args.columns, first, std::min(first + kCombined, args.hidden),
                                                  static_cast<char*>(args.out) + row * args.hidden * size);
  }
}

// The team meets, and one member makes ready for what comes next.
template <class Ready>
void meet(ExpertWork& work, Team& team, Ready ready) {
  team.wait();
  if (team.rank == 0) {
    ready();
    work.next.store(0, std::memory_order_relaxed);
  }
  team.wait();
}

std::int64_t worthwhile_threads(const ExpertsArgs& args) {
  const bool is_small = args.tokens * args.columns * args.hidden * args.inner < kWorthThreads;
  return is_small ? 1 : std::max<std::int64_t>(args.threads, 1);
}

// How many tokens' intermediate results are not too many bytes.
std::int64_t tokens_of(const ExpertsArgs& args) {
  const std::int64_t size = element_bytes(args.dtype);
  const std::int64_t bytes = args.columns * (args.hidden * (size + 4) + args.inner * (size + 4));
  return std::min(args.tokens, std::max<std::int64_t>(1, kBytesAtOnce / bytes));
}

}  // namespace

void ExpertScratch::make_room(std::int64_t members) {
  const std::size_t all = std::max<std::int64_t>(members, 1);
  gate_up.make_room(all), down.make_room(all);
  if (gathered.size() < all * member_bytes) gathered.resize(all * member_bytes);
  const std::size_t wanted = all * kSegmentRows * 2 * kTileOutputs;
  if (sums.size() < wanted) sums.resize(wanted);
}

ExpertWork::ExpertWork(const ExpertsArgs& mixture, ExpertScratch& to)
    : args(mixture), scratch(to), tokens_at_once(tokens_of(mixture)), first_token(0), tokens(0) {
  const std::int64_t rows = tokens_at_once * args.columns, size = element_bytes(args.dtype);
  gate_up = product_of(args, true, rows, scratch.gate_up);
  down = product_of(args, false, rows, scratch.down);
  scratch.starts.resize(args.experts + 2);
  const auto grow = [](auto& vector, std::int64_t count) {
    if (vector.size() < static_cast<std::size_t>(count)) vector.resize(count);
  };
  grow(scratch.order, rows), grow(scratch.parts, rows);
  grow(scratch.inner, rows * args.inner * element_bytes(down.dtype)), grow(scratch.outs, rows * args.hidden);
  scratch.segments.reserve(rows), scratch.blocks.reserve(rows);
  scratch.member_bytes = std::max(scratch.member_bytes, rows_at_once(gate_up) * args.hidden * size);
  scratch.make_room(args.threads);
}

void experts_in_team(ExpertWork& work, Team& team) {
  for (std::int64_t first = 0; first < work.args.tokens; first += work.tokens_at_once) {
    meet(work, team, [&] {
      work.first_token = first;
      work.tokens = std::min(work.tokens_at_once, work.args.tokens - first);
      sort_rows(work);
    });
    arrange_blocks(work, team);
    meet(work, team, [] {});
    share_tiles(work, gate_tile, work.gate_up.tiles / 2, team);
    meet(work, team, [] {});
    share_tiles(work, down_tile, work.down.tiles, team);
    meet(work, team, [] {});
    combine(work, team);
  }
}

void experts(const ExpertsArgs& args) {
  thread_local ExpertScratch scratch;
  if (args.tokens == 0) return;
  ExpertWork work(args, scratch);
  const auto run = [](void* data, Team& team) { experts_in_team(*static_cast<ExpertWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(worthwhile_threads(args)));
}

}  // namespace anychip
