// Rounds activations, then shares the tiles of outputs among threads. Knows no instruction set.
#include "products.hpp"

#include <algorithm>

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

ProductWork::ProductWork(const ProductArgs& product, ProductScratch& scratch)
    : args(product), kernels(chosen_products()), rounded(scratch.take(product)) {
  tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  grain = std::max<std::int64_t>(1, tiles / (kTurns * std::max<std::int64_t>(args.threads, 1)));
}

void product_in_team(ProductWork& work, Team& team) {
  round_rows(work);
  team.wait();
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
