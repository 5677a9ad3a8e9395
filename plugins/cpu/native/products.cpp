// Rounds or arranges activations, then shares the tiles of outputs among threads. Knows no instruction set.
#include "products.hpp"

#include <algorithm>

#include "dense.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// rows that a thread rounds at a time
constexpr std::int64_t kRowGrain = 4;
// what a thread takes at a time is an eighth of its share
constexpr std::int64_t kTurns = 8;
// keeps rows that are a power of two apart from falling into the same lines of the cache
constexpr std::int64_t kRowGap = 64;
// so many blocks of arranged rows stay in the last cache while the weights pass
constexpr std::int64_t kBlocksAtOnce = 36;
// of what is left a member takes a half of its share
constexpr std::int64_t kShares = 2;

void round_rows(ProductWork& work) {
  for (;;) {
    const std::int64_t begin = work.next_row.fetch_add(kRowGrain, std::memory_order_relaxed);
    if (begin >= work.args.rows) return;
    for (std::int64_t row = begin; row < std::min(begin + kRowGrain, work.args.rows); ++row)
      work.kernels->round[work.args.x_dtype](work.args, work.rounded, row);
  }
}

void multiply_tiles(ProductWork& work) {
  for (;;) {
    const std::int64_t begin = work.next_tile.fetch_add(work.grain, std::memory_order_relaxed);
    if (begin >= work.tiles) return;
    for (std::int64_t tile = begin; tile < std::min(begin + work.grain, work.tiles); ++tile)
      work.kernels->multiply(work.args, work.rounded, tile);
  }
}

// A member arranges its share of the pairs of all rows.
void arrange_rows(ProductWork& work, const Team& team) {
  const std::int64_t pairs = work.rows.pairs;
  work.dense->arrange(work.args, work.rows, pairs * team.rank / team.size, pairs * (team.rank + 1) / team.size);
}

struct Turn {
  std::int64_t begin, end;
};

// Less each time, so that members read long stretches of weights and yet end together.
Turn take_turn(ProductWork& work, std::int64_t all, unsigned members) {
  std::int64_t begin = work.next_tile.load(std::memory_order_relaxed), end;
  do {
    end = begin + std::max<std::int64_t>(1, (all - begin) / (kShares * members));
    if (begin >= all) return {all, all};
  } while (!work.next_tile.compare_exchange_weak(begin, end, std::memory_order_relaxed));
  return {begin, end};
}

// All tiles for the first blocks of rows, then for the next.
void multiply_dense_tiles(ProductWork& work, const Team& team) {
  const std::int64_t blocks = work.rows.blocks, groups = (blocks + kBlocksAtOnce - 1) / kBlocksAtOnce;
  const std::int64_t all = groups * work.tiles;
  Turn turn = take_turn(work, all, team.size);
  while (turn.begin < turn.end) {
    const std::int64_t at = turn.begin++, first = at / work.tiles * kBlocksAtOnce;
    if (turn.begin == turn.end) turn = take_turn(work, all, team.size);
    const std::int64_t next = turn.begin < turn.end ? turn.begin : at;
    work.dense->multiply(work.args, work.rows, first, std::min(first + kBlocksAtOnce, blocks), at % work.tiles,
                         next % work.tiles);
  }
}

std::int64_t worthwhile_threads(const ProductArgs& args) {
  const bool is_small = args.rows * args.in * args.outputs < kWorthThreads;
  return is_small ? 1 : std::max<std::int64_t>(args.threads, 1);
}

}  // namespace

RoundedRows ProductScratch::take(const ProductArgs& args) {
  static_assert(sizeof(float) == sizeof(std::int32_t), "");
  const std::int64_t blocks = (args.in + kBlock32 - 1) / kBlock32, stride = blocks * kBlock32 + kRowGap;
  const std::size_t levels = args.rows * stride, numbers = 3 * args.rows * blocks;
  if (levels_.size() < levels) levels_.resize(levels);
  if (numbers_.size() < numbers) numbers_.resize(numbers);
  float* scale = numbers_.data();
  return {levels_.data(), scale, reinterpret_cast<std::int32_t*>(scale + args.rows * blocks),
          scale + 2 * args.rows * blocks, stride, blocks};
}

DenseRows ProductScratch::take_dense(const ProductArgs& args, std::int64_t rows_at_once) {
  const std::int64_t pairs = (args.in + 1) / 2;
  const std::size_t values = args.rows * pairs;
  if (panels_.size() < values) panels_.resize(values);
  return {panels_.data(), pairs, args.rows, (args.rows + rows_at_once - 1) / rows_at_once};
}

ProductWork::ProductWork(const ProductArgs& product, ProductScratch& scratch)
    : args(product), kernels(chosen_products()), rounded(), dense(nullptr), rows() {
  if (args.bits == kDenseBits) {
    dense = chosen_dense();
    rows = scratch.take_dense(args, dense->rows_at_once);
  } else {
    rounded = scratch.take(args);
  }
  tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  grain = std::max<std::int64_t>(1, tiles / (kTurns * std::max<std::int64_t>(args.threads, 1)));
}

void product_in_team(ProductWork& work, Team& team) {
  if (work.dense != nullptr)
    arrange_rows(work, team);
  else
    round_rows(work);
  team.wait();
  if (work.dense != nullptr)
    multiply_dense_tiles(work, team);
  else
    multiply_tiles(work);
}

void product(const ProductArgs& args) {
  thread_local ProductScratch scratch;
  if (args.rows == 0 || args.outputs == 0) return;
  ProductWork work(args, scratch);
  const auto run = [](void* data, Team& team) { product_in_team(*static_cast<ProductWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(std::min(worthwhile_threads(args), work.tiles)));
}

}  // namespace anychip
