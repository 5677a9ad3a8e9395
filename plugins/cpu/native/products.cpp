// Rounds or arranges activations, then shares the tiles of outputs among threads. Knows no instruction set.
#include "products.hpp"

#include <algorithm>

#include "dense.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// so many blocks of arranged rows stay in the last cache while the weights pass
constexpr std::int64_t kBlocksAtOnce = 48;
// and so much of rounded ones in a member's own
constexpr std::int64_t kLevelsAtOnce = 768 << 10;
// of what is left a member takes a half of its share
constexpr std::int64_t kShares = 2;
// so many turns of a member make up for one more than another's; so many blocks are worth reading a tile again
constexpr std::int64_t kTurnsEach = 32, kLeastBlocks = 6;

// A member rounds its share of the parts of all rows.
void round_rows(ProductWork& work, const Team& team) {
  const std::int64_t parts = work.rounded.parts;
  work.kernels->round[work.args.x_dtype](work.args, work.rounded, parts * team.rank / team.size,
                                         parts * (team.rank + 1) / team.size);
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

// How many blocks of rows pass a tile before the next tile: as many as stay in the cache, but few enough that there is
// work for all members to the end.
std::int64_t blocks_at_once(std::int64_t blocks, std::int64_t most, std::int64_t tiles, unsigned members) {
  const std::int64_t wanted = (kTurnsEach * members + tiles - 1) / tiles;
  const std::int64_t groups = std::max((blocks + most - 1) / most, std::min(wanted, blocks / kLeastBlocks));
  return (blocks + groups - 1) / groups;
}

// All tiles for the first blocks of rows, then for the next.
template <class Kernels, class Rows>
void multiply_tiles(ProductWork& work, const Kernels& kernels, const Rows& rows, std::int64_t most, const Team& team) {
  const std::int64_t at_once = blocks_at_once(rows.blocks, most, work.tiles, team.size);
  const std::int64_t all = (rows.blocks + at_once - 1) / at_once * work.tiles;
  Turn turn = take_turn(work, all, team.size);
  while (turn.begin < turn.end) {
    const std::int64_t at = turn.begin++, first = at / work.tiles * at_once;
    if (turn.begin == turn.end) turn = take_turn(work, all, team.size);
    const std::int64_t next = turn.begin < turn.end ? turn.begin : at;
    kernels.multiply(work.args, rows, first, std::min(first + at_once, rows.blocks), at % work.tiles,
                     next % work.tiles);
  }
}

RowBlocks blocks_of(std::int64_t rows, std::int64_t at_once) { return {rows, (rows + at_once - 1) / at_once}; }

std::int64_t worthwhile_threads(const ProductArgs& args) {
  const bool is_small = args.rows * args.in * args.outputs < kWorthThreads;
  return is_small ? 1 : std::max<std::int64_t>(args.threads, 1);
}

}  // namespace

RoundedRows ProductScratch::take(const ProductArgs& args, std::int64_t rows_at_once) {
  static_assert(sizeof(float) == sizeof(std::int32_t), "");
  const std::int64_t parts = (args.in + kPart - 1) / kPart;
  const std::size_t numbers = args.rows * parts;
  if (levels_.size() < numbers * kPart) levels_.resize(numbers * kPart);
  if (numbers_.size() < 3 * numbers) numbers_.resize(3 * numbers);
  float* scale = numbers_.data();
  return {blocks_of(args.rows, rows_at_once),
          levels_.data(),
          scale,
          reinterpret_cast<std::int32_t*>(scale + numbers),
          scale + 2 * numbers,
          parts};
}

DenseRows ProductScratch::take_dense(const ProductArgs& args, std::int64_t rows_at_once) {
  const std::int64_t pairs = args.bits == kSingleBits ? args.in : (args.in + 1) / 2;
  const std::size_t values = args.rows * pairs;
  if (panels_.size() < values) panels_.resize(values);
  const RowBlocks blocks = blocks_of(args.rows, rows_at_once);
  if (args.bits != kCompactBits) return {blocks, panels_.data(), pairs, nullptr};
  unpacked_pairs_ = std::max(unpacked_pairs_, pairs);
  make_room(args.threads);
  return {blocks, panels_.data(), pairs, unpacked_.data()};
}

void ProductScratch::make_room(std::int64_t members) {
  const std::size_t pairs = std::max<std::int64_t>(members, 1) * unpacked_pairs_;
  if (unpacked_.size() < pairs) unpacked_.resize(pairs);
}

ProductWork::ProductWork(const ProductArgs& product, ProductScratch& scratch)
    : args(product), kernels(chosen_products()), rounded(), dense(nullptr), rows() {
  if (args.bits == kDenseBits || args.bits == kCompactBits || args.bits == kSingleBits) {
    dense = args.bits == kSingleBits ? chosen_singles() : chosen_dense();
    rows = scratch.take_dense(args, dense->rows_at_once);
  } else {
    rounded = scratch.take(args, kernels->rows_at_once);
  }
  tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
}

void product_in_team(ProductWork& work, Team& team) {
  if (work.dense != nullptr)
    arrange_rows(work, team);
  else
    round_rows(work, team);
  team.wait();
  if (work.dense != nullptr) {
    DenseRows rows = work.rows;
    if (rows.unpacked != nullptr) rows.unpacked += team.rank * rows.pairs;
    return multiply_tiles(work, *work.dense, rows, kBlocksAtOnce, team);
  }
  const std::int64_t block_bytes = work.kernels->rows_at_once * work.rounded.parts * kPart;
  multiply_tiles(work, *work.kernels, work.rounded, std::max<std::int64_t>(1, kLevelsAtOnce / block_bytes), team);
}

void product(const ProductArgs& args) {
  thread_local ProductScratch scratch;
  if (args.rows == 0 || args.outputs == 0) return;
  ProductWork work(args, scratch);
  const auto run = [](void* data, Team& team) { product_in_team(*static_cast<ProductWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(std::min(worthwhile_threads(args), work.tiles)));
}

}  // namespace anychip
