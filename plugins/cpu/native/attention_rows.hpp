// What all ways of attending share: rows' running sums and where keys lie. Knows Simd; knows no tile's shape.
//
// What one query gets depends on its position and the window alone: blocks and spans start at fixed positions, sums go
// over them in one order, and whatever is hidden adds exact zeros.
#pragma once

#include <cstring>

#include "attention.hpp"
#include "exponential.hpp"
#include "fetch.hpp"
#include "numbers.hpp"

namespace {

using anychip::AttentionArgs;
using anychip::kBlock;
using anychip::kSpan;
using anychip::Tile;

constexpr float kLargest = 3.40282347e38f;
alignas(64) const std::uint32_t kNothing[1024] = {};  // stands in for a head's keys or values that no query sees

// Hands out parts of one piece of memory, in whole vectors.
class Scratch {
 public:
  explicit Scratch(float* memory) : memory_(memory) {}

  float* take(std::int64_t floats) {
    float* taken = memory_;
    memory_ += round_up(floats, 16);
    return taken;
  }

 private:
  float* memory_;
};

// Of each row, a query token's head: the sum of weighted values, the largest score, the sum of weights; those of the
// span that is worked on and those of all spans before it.
class RunningSums {
  using F = Simd::F;
  static constexpr int W = Simd::kWidth;

 public:
  RunningSums(std::int64_t rows, std::int64_t dim, Scratch& scratch) : rows_(rows), dim_(dim) {
    const std::int64_t vectors = round_up(rows, W);
    span_ = {scratch.take(rows * dim), scratch.take(vectors), scratch.take(vectors)};
    total_ = {scratch.take(rows * dim), scratch.take(vectors), scratch.take(vectors)};
  }

  float* sums(std::int64_t row) { return span_.sums + row * dim_; }
  float* total(std::int64_t row) { return total_.sums + row * dim_; }
  float& largest(std::int64_t row) { return span_.largest[row]; }
  float& weights(std::int64_t row) { return span_.weights[row]; }

  void begin_span() {
    std::memset(span_.sums, 0, rows_ * dim_ * sizeof(float));
    for (std::int64_t row = 0; row < round_up(rows_, W); ++row) span_.largest[row] = -kInfinity, span_.weights[row] = 0;
  }

  void end_span() {
    if (is_first_) {
      const State other = total_;
      total_ = span_;
      span_ = other;
    } else {
      for (std::int64_t row = 0; row < rows_; ++row)
        merge(total_.sums + row * dim_, total_.largest[row], total_.weights[row], sums(row), largest(row), weights(row),
              dim_);
    }
    is_first_ = false;
  }

  void keep(std::int64_t row, float* to) const {
    std::memcpy(to, total_.sums + row * dim_, dim_ * sizeof(float));
    to[dim_] = total_.largest[row];
    to[dim_ + 1] = total_.weights[row];
  }

  // `head`: of the query, for its sink.
  template <class T>
  void write(std::int64_t row, const AttentionArgs& args, std::int64_t head, T* out) const {
    const float weights = total_.weights[row] + sink_weight(args, head, total_.largest[row]);
    write(out, total_.sums + row * dim_, weights, dim_);
  }

  // Of a head's sink, beside weights whose largest score is `largest`.
  static float sink_weight(const AttentionArgs& args, std::int64_t head, float largest) {
    constexpr float kMost = 126.0f;  // the power of two of a weight beside which nothing else counts
    return args.sinks == nullptr ? 0.0f : exp2(smaller(args.sinks[head] * kLog2E - largest, kMost));
  }

  // Adds a later span's partial result to that of the spans before it.
  static void merge(float* sums, float& largest, float& weights, const float* more, float more_largest,
                    float more_weights, std::int64_t dim) {
    const float top = larger(largest, more_largest), base = top == -kInfinity ? 0.0f : top;
    const float a = exp2(largest - base), b = exp2(more_largest - base);
    for (std::int64_t d = 0; d < dim; d += W)
      Simd::store(sums + d, Simd::fma(Simd::load(more + d), Simd::set(b), Simd::load(sums + d) * Simd::set(a)));
    weights = weights * a + more_weights * b;
    largest = top;
  }

  template <class T>
  static void write(T* out, const float* sums, float weights, std::int64_t dim) {
    const F factor = Simd::set(1.0f / weights);
    for (std::int64_t d = 0; d < dim; d += W) Simd::store(out + d, Simd::load(sums + d) * factor);
  }

 private:
  struct State {
    float *sums, *largest, *weights;  // [rows, dim], [rows], [rows]
  };

  std::int64_t rows_, dim_;
  State span_, total_;
  bool is_first_ = true;
};

// The positions that a tile's queries see, none hidden from all of them.
struct Seen {
  explicit Seen(const Tile& tile)
      : window(tile.args->window), begin(first(tile.position)), end(tile.position + tile.tokens) {}

  std::int64_t first(std::int64_t position) const {
    return window > 0 ? larger<std::int64_t>(0, position - window + 1) : 0;
  }

  std::int64_t window, begin, end;
};

// Where a block's keys and values lie, in elements, for kv head 0; -1 for those that no query of the tile sees.
inline void locate(const Tile& tile, const Seen& seen, std::int64_t block, std::int64_t* places) {
  const AttentionArgs& args = *tile.args;
  const std::int32_t* pages = args.page_table + std::int64_t(tile.row) * args.pages_max;
  std::int64_t page = block / args.page_size, slot = block % args.page_size;
  for (std::int64_t key = 0; key < kBlock; ++key) {
    const std::int64_t at = block + key;
    const bool is_hidden = at < seen.begin || at >= seen.end;
    places[key] = is_hidden ? -1 : pages[page] * args.page_stride + slot * args.slot_stride;
    if (++slot == args.page_size) slot = 0, ++page;
  }
}

// Of one query, zeros behind its end; `stride` floats from one vector to the next.
template <class Engine>
void pack_query(const typename Engine::Element* query, std::int64_t units, float* to, std::int64_t stride) {
  constexpr int W = Simd::kWidth, kPer = Engine::kPerUnit;
  std::int64_t unit = 0;
  for (; unit + W <= units; unit += W, to += stride) Simd::store(to, Engine::load_units(query + unit * kPer));
  if (unit < units) Simd::store(to, Engine::load_few_units(query + unit * kPer));
}

}  // namespace
