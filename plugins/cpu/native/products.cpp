// Rounds activations, then shares the tiles of outputs among threads. Knows no instruction set.
#include "products.hpp"

#include <algorithm>
#include <atomic>
#include <vector>

#include "threads.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// rows are rounded by several threads from so many numbers on
constexpr std::int64_t kWorthRounding = 1 << 14;
// keeps rows that are a power of two apart from falling into the same lines of the cache
constexpr std::int64_t kRowGap = 64;

struct Work {
  const ProductArgs* args;
  const ProductKernels* kernels;
  RoundedRows rounded;
  std::int64_t tiles, grain;
  std::atomic<std::int64_t> next_row{0}, next_tile{0};
};

void round_rows(void* data) {
  Work& work = *static_cast<Work*>(data);
  constexpr std::int64_t kGrain = 4;
  for (;;) {
    const std::int64_t begin = work.next_row.fetch_add(kGrain, std::memory_order_relaxed);
    if (begin >= work.args->rows) return;
    for (std::int64_t row = begin; row < std::min(begin + kGrain, work.args->rows); ++row)
      work.kernels->round[work.args->x_dtype](*work.args, work.rounded, row);
  }
}

void multiply_tiles(void* data) {
  Work& work = *static_cast<Work*>(data);
  for (;;) {
    const std::int64_t begin = work.next_tile.fetch_add(work.grain, std::memory_order_relaxed);
    if (begin >= work.tiles) return;
    for (std::int64_t tile = begin; tile < std::min(begin + work.grain, work.tiles); ++tile)
      work.kernels->multiply(*work.args, work.rounded, tile);
  }
}

}  // namespace

void product(const ProductArgs& args) {
  thread_local std::vector<std::int8_t> levels;
  thread_local std::vector<float> numbers;
  Work work;
  work.args = &args;
  work.kernels = chosen_products();
  work.tiles = (args.outputs + kTileOutputs - 1) / kTileOutputs;
  const std::int64_t blocks = (args.in + kBlock32 - 1) / kBlock32, stride = blocks * kBlock32 + kRowGap;
  if (args.rows == 0 || work.tiles == 0) return;
  if (std::int64_t(levels.size()) < args.rows * stride) levels.resize(args.rows * stride);
  if (std::int64_t(numbers.size()) < 3 * args.rows * blocks) numbers.resize(3 * args.rows * blocks);
  float* scale = numbers.data();
  static_assert(sizeof(float) == sizeof(std::int32_t), "");
  work.rounded = {levels.data(), scale, reinterpret_cast<std::int32_t*>(scale + args.rows * blocks),
                  scale + 2 * args.rows * blocks, stride, blocks};
  const bool is_small = args.rows * args.in * args.outputs < kWorthThreads;
  const std::int64_t threads = is_small ? 1 : std::max<std::int64_t>(args.threads, 1);
  const std::int64_t rounding = args.rows * args.in < kWorthRounding ? 1 : std::min(threads, args.rows);
  parallel(round_rows, &work, static_cast<unsigned>(rounding));
  work.grain = std::max<std::int64_t>(1, work.tiles / (8 * threads));
  parallel(multiply_tiles, &work, static_cast<unsigned>(std::min(threads, work.tiles)));
}

}  // namespace anychip
