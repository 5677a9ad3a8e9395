// Softmax attention of one tile, its keys read in place from their pages. Knows Simd and an engine; knows no threads.
//
// Include after simd_*.hpp and an engine. What one query gets depends on its position and the window alone: blocks and
// spans start at fixed positions, sums go over them in order, and whatever is hidden adds exact zeros.
#pragma once

#include <cstring>

#include "attention.hpp"
#include "exponential.hpp"
#include "numbers.hpp"

namespace {

using anychip::AttentionArgs;
using anychip::kBlock;
using anychip::kSpan;
using anychip::Tile;

alignas(64) const std::uint32_t kNothing[1024] = {};  // stands in for keys and values that no query sees

template <class Engine>
class Attention {
  using T = typename Engine::Element;
  using F = Simd::F;
  static constexpr int W = Simd::kWidth, RT = Simd::kRowTile, VT = Simd::kVectorTile;
  static constexpr int kPer = Engine::kPerUnit;
  static constexpr std::int64_t kUnits = kBlock / kPer;  // of one dimension's values in a block

 public:
  Attention(const Tile& tile, float* scratch) : tile_(tile), args_(*tile.args) {
    group_ = args_.heads / args_.kv_heads;
    rows_ = tile.tokens * group_;
    all_rows_ = tile.kv_heads * rows_;
    dim_ = args_.head_dim;
    units_ = dim_ / kPer;
    scale_ = static_cast<float>(args_.scale) * kLog2E;
    const auto take = [&](std::int64_t floats) {
      float* taken = scratch;
      scratch += round_up(floats, 16);
      return taken;
    };
    keys_ = take(kBlock * dim_);
    values_ = take(kBlock * dim_);
    queries_ = take(all_rows_ * units_);
    scores_ = take(rows_ * kBlock);
    state_ = {take(all_rows_ * dim_), take(all_rows_), take(all_rows_)};
    total_ = {take(all_rows_ * dim_), take(all_rows_), take(all_rows_)};
    factors_ = take(rows_);
  }

  void run() {
    pack_queries();
    bool is_first = true;
    for (std::int64_t begin = tile_.key_begin; begin < tile_.key_end; begin += kSpan) {
      attend_span(begin, smaller(begin + kSpan, tile_.key_end));
      if (is_first) {
        const State other = total_;
        total_ = state_;
        state_ = other;
      } else {
        for (std::int64_t row = 0; row < all_rows_; ++row)
          merge(total_.sums + row * dim_, total_.largest[row], total_.weights[row], state_.sums + row * dim_,
                state_.largest[row], state_.weights[row], dim_);
      }
      is_first = false;
    }
    for (std::int64_t row = 0; row < all_rows_; ++row) finish(row);
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

  static void write(T* out, const float* sums, float weights, std::int64_t dim) {
    const F factor = Simd::set(1.0f / weights);
    for (std::int64_t d = 0; d < dim; d += W) Engine::store(out + d, Simd::load(sums + d) * factor);
  }

 private:
  struct State {
    float *sums, *largest, *weights;  // [all rows, dim], [all rows], [all rows]

    State from(std::int64_t row, std::int64_t dim) const { return {sums + row * dim, largest + row, weights + row}; }
  };

  // What belongs to the kv head that is worked on.
  struct Head {
    const T *k, *v;  // the caches, from this head on
    const float* queries;
    State state;
  };

  // of all rows: heads of the first kv head come first, for each token
  std::int64_t token(std::int64_t row) const { return tile_.token + row % rows_ / group_; }
  std::int64_t head(std::int64_t row) const { return (tile_.kv_head + row / rows_) * group_ + row % group_; }
  // of a row of one kv head
  std::int64_t position(std::int64_t row) const { return tile_.position + row / group_; }
  std::int64_t first_seen(std::int64_t position) const {
    return args_.window > 0 ? larger<std::int64_t>(0, position - args_.window + 1) : 0;
  }

  void pack_queries() {
    const T* q = static_cast<const T*>(args_.q);
    for (std::int64_t row = 0; row < all_rows_; ++row) {
      const T* from = q + token(row) * args_.q_token_stride + head(row) * args_.q_head_stride;
      if (kPer == 2)
        std::memcpy(queries_ + row * units_, from, dim_ * sizeof(T));
      else
        for (std::int64_t d = 0; d < dim_; d += W) Simd::store(queries_ + row * units_ + d, Simd::load(from + d));
    }
  }

  // Where the block's keys (or values, by the same offsets) lie for kv head 0; -1 for those that no query of the tile
  // sees.
  void locate(std::int64_t block, std::int64_t* offsets) const {
    const std::int64_t low = first_seen(tile_.position), high = tile_.position + tile_.tokens - 1;
    const std::int32_t* pages = args_.page_table + std::int64_t(tile_.row) * args_.pages_max;
    std::int64_t page = block / args_.page_size, slot = block % args_.page_size;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      const std::int64_t at = block + i;
      offsets[i] = at < low || at > high ? -1
                                         : pages[page] * args_.page_stride + slot * args_.slot_stride;
      if (++slot == args_.page_size) slot = 0, ++page;
    }
  }

  // The next block's keys and values are fetched a head's at a time between the products, in the order of memory: more
  // at once than the processor can have under way would only make it wait.
  void fetch(int count) {
    constexpr std::int64_t kLine = 64;
    for (; count > 0 && coming_ != coming_end_; --count) {
      const char* from = reinterpret_cast<const char*>(*coming_ + coming_head_);
      for (std::int64_t byte = 0; byte < dim_ * std::int64_t(sizeof(T)); byte += kLine)
        __builtin_prefetch(from + byte, 0, 3);
      coming_head_ += args_.head_stride;
      if (coming_head_ == tile_.kv_heads * args_.head_stride) coming_head_ = 0, ++coming_;
    }
  }

  void expect(const std::int64_t* offsets) {
    const std::int64_t shift = tile_.kv_head * args_.head_stride;
    const T** end = coming_places_;
    for (std::int64_t i = 0; i < kBlock; ++i) {
      if (offsets[i] < 0) continue;
      *end++ = static_cast<const T*>(args_.k) + offsets[i] + shift;
      *end++ = static_cast<const T*>(args_.v) + offsets[i] + shift;
    }
    coming_ = coming_places_;
    coming_end_ = end;
    coming_head_ = 0;
  }

  static const T* at(const T* cache, std::int64_t offset) {
    return offset < 0 ? reinterpret_cast<const T*>(kNothing) : cache + offset;
  }

  void turn_to(std::int64_t kv_head) {
    const std::int64_t shift = (tile_.kv_head + kv_head) * args_.head_stride, row = kv_head * rows_;
    head_ = {static_cast<const T*>(args_.k) + shift, static_cast<const T*>(args_.v) + shift, queries_ + row * units_,
             state_.from(row, dim_)};
  }

  void attend_span(std::int64_t begin, std::int64_t end) {
    std::memset(state_.sums, 0, all_rows_ * dim_ * sizeof(float));
    for (std::int64_t row = 0; row < all_rows_; ++row) state_.largest[row] = -kInfinity, state_.weights[row] = 0.0f;
    const std::int64_t low = first_seen(tile_.position), high = tile_.position + tile_.tokens - 1;
    begin = larger(begin, low / kBlock * kBlock);
    end = smaller(end, high + 1);
    std::int64_t places[2][kBlock];
    if (begin < end) locate(begin, places[0]);
    for (std::int64_t block = begin, turn = 0; block < end; block += kBlock, turn ^= 1) {
      const std::int64_t* offsets = places[turn];
      coming_ = coming_end_;
      if (block + kBlock < end) {
        locate(block + kBlock, places[turn ^ 1]);
        expect(places[turn ^ 1]);
      }
      for (std::int64_t kv_head = 0; kv_head < tile_.kv_heads; ++kv_head) {
        turn_to(kv_head);
        attend_block(block, offsets, (smaller(kBlock, end - block) + kPer - 1) / kPer);
      }
    }
  }

  void attend_block(std::int64_t block, const std::int64_t* offsets, std::int64_t units) {
    pack_keys(offsets);
    score();
    weigh(block);
    if (rows_ > RT) pack_values(offsets, units);
    mix(offsets, units);
  }

  // [units, keys]: a vector holds one unit of W neighbouring keys
  void pack_keys(const std::int64_t* offsets) {
    for (std::int64_t key = 0; key < kBlock; key += W) {
      const T* from[W];
      for (int i = 0; i < W; ++i) from[i] = at(head_.k, offsets[key + i]);
      std::int64_t unit = 0;
      for (; unit + W <= units_; unit += W) {
        F lanes[W];
        for (int i = 0; i < W; ++i) lanes[i] = Engine::load_units(from[i] + unit * kPer);
        Simd::transpose(lanes);
        fetch(W / 4);
        for (int i = 0; i < W; ++i) Simd::store(keys_ + (unit + i) * kBlock + key, lanes[i]);
      }
      if (unit < units_) {
        F lanes[W];
        for (int i = 0; i < W; ++i) lanes[i] = Engine::load_few_units(from[i] + unit * kPer);
        Simd::transpose(lanes);
        for (int i = 0; i < W / 2; ++i) Simd::store(keys_ + (unit + i) * kBlock + key, lanes[i]);
      }
    }
  }

  // Of V vectors of dimensions from d.
  template <int V>
  void load_values(const std::int64_t* offsets, std::int64_t unit, std::int64_t d, F* values) const {
    const T* even = at(head_.v, offsets[unit * kPer]) + d;
    const T* odd = at(head_.v, offsets[unit * kPer + kPer - 1]) + d;
    if (V == 1) values[0] = Engine::value_units(even, odd);
    for (int j = 0; j + 1 < V; j += 2) Engine::value_units(even + j * W, odd + j * W, values + j);
  }

  // [keys / kPer, dim]
  void pack_values(const std::int64_t* offsets, std::int64_t units) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      fetch(1);
      std::int64_t d = 0;
      for (; d + VT * W <= dim_; d += VT * W) pack_part<VT>(offsets, unit, d);
      for (; d < dim_; d += W) pack_part<1>(offsets, unit, d);
    }
  }

  template <int V>
  void pack_part(const std::int64_t* offsets, std::int64_t unit, std::int64_t d) {
    F values[V];
    load_values<V>(offsets, unit, d, values);
    for (int j = 0; j < V; ++j) Simd::store(values_ + unit * dim_ + d + j * W, values[j]);
  }

  void score() {
    std::int64_t row = 0;
    for (; row + RT <= rows_; row += RT) score_rows<RT>(row);
    if (RT > 2 && rows_ - row == 3) return score_rows<3>(row);
    if (RT > 2 && rows_ - row == 2) return score_rows<2>(row);
    if (row < rows_) score_rows<1>(row);
  }

  template <int R>
  void score_rows(std::int64_t row) {
    const float* q = head_.queries + row * units_;
    for (std::int64_t key = 0; key < kBlock; key += W * VT) {
      F sums[R][VT];
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < VT; ++j) sums[r][j] = Simd::zero();
      for (std::int64_t unit = 0; unit < units_; ++unit) {
        F keys[VT];
        for (int j = 0; j < VT; ++j) keys[j] = Simd::load(keys_ + unit * kBlock + key + j * W);
        for (int r = 0; r < R; ++r) {
          const F one = Simd::set(q[r * units_ + unit]);
          for (int j = 0; j < VT; ++j) sums[r][j] = Engine::dot(sums[r][j], keys[j], one);
        }
      }
      for (int r = 0; r < R; ++r)
        for (int j = 0; j < VT; ++j) Simd::store(scores_ + (row + r) * kBlock + key + j * W, sums[r][j]);
    }
  }

  // Scores become weights, as units; the row's earlier sums are to be multiplied by its factor.
  void weigh(std::int64_t block) {
    constexpr int kVectors = kBlock / W;
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* scores = scores_ + row * kBlock;
      const std::int64_t last = position(row) - block, first = first_seen(position(row)) - block;
      F x[kVectors];
      for (int j = 0; j < kVectors; ++j) x[j] = Simd::load(scores + j * W) * Simd::set(scale_);
      if (first > 0 || last < kBlock - 1) {
        const float low = static_cast<float>(smaller(first, kBlock)), high = static_cast<float>(larger(last, std::int64_t(-1)));
        for (int j = 0; j < kVectors; ++j)
          x[j] = Simd::keep(x[j], Simd::iota() + Simd::set(static_cast<float>(j * W)), low, high);
      }
      F most = x[0];
      for (int j = 1; j < kVectors; ++j) most = Simd::max(most, x[j]);
      const float before = head_.state.largest[row], top = larger(before, Simd::max(most));
      const float base = top == -kInfinity ? 0.0f : top;
      for (int j = 0; j < kVectors; ++j) x[j] = exp2(x[j] - Simd::set(base));
      factors_[row] = before == top ? 1.0f : exp2(before - base);
      head_.state.largest[row] = top;
      head_.state.weights[row] = head_.state.weights[row] * factors_[row] + Simd::sum(Engine::pack_weights(x, kVectors, scores));
    }
  }

  // Values that one tile of rows reads are taken from their pages, those that several read from `values_`.
  void mix(const std::int64_t* offsets, std::int64_t units) {
    std::int64_t row = 0;
    if (rows_ <= RT) {
      if (rows_ == RT) return mix_rows<RT, true>(row, offsets, units);
      if (RT > 2 && rows_ == 3) return mix_rows<3, true>(row, offsets, units);
      if (RT > 2 && rows_ == 2) return mix_rows<2, true>(row, offsets, units);
      return mix_rows<1, true>(row, offsets, units);
    }
    for (; row + RT <= rows_; row += RT) mix_rows<RT, false>(row, offsets, units);
    if (RT > 2 && rows_ - row == 3) return mix_rows<3, false>(row, offsets, units);
    if (RT > 2 && rows_ - row == 2) return mix_rows<2, false>(row, offsets, units);
    if (row < rows_) mix_rows<1, false>(row, offsets, units);
  }

  template <int R, bool kInPlace>
  void mix_rows(std::int64_t row, const std::int64_t* offsets, std::int64_t units) {
    std::int64_t d = 0;
    for (; d + VT * W <= dim_; d += VT * W) mix_part<R, VT, kInPlace>(row, offsets, units, d);
    for (; d < dim_; d += W) mix_part<R, 1, kInPlace>(row, offsets, units, d);
  }

  template <int R, int V, bool kInPlace>
  void mix_part(std::int64_t row, const std::int64_t* offsets, std::int64_t units, std::int64_t d) {
    float* to = head_.state.sums + row * dim_ + d;
    const float* weights = scores_ + row * kBlock;
    F sums[R][V];
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < V; ++j) sums[r][j] = Simd::load(to + r * dim_ + j * W) * Simd::set(factors_[row + r]);
    for (std::int64_t unit = 0; unit < units; ++unit) {
      if (kInPlace) fetch(1);
      F values[V];
      if (kInPlace)
        load_values<V>(offsets, unit, d, values);
      else
        for (int j = 0; j < V; ++j) values[j] = Simd::load(values_ + unit * dim_ + d + j * W);
      for (int r = 0; r < R; ++r) {
        const F one = Simd::set(weights[r * kBlock + unit]);
        for (int j = 0; j < V; ++j) sums[r][j] = Engine::dot(sums[r][j], values[j], one);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int j = 0; j < V; ++j) Simd::store(to + r * dim_ + j * W, sums[r][j]);
  }

  void finish(std::int64_t row) {
    const float* sums = total_.sums + row * dim_;
    if (tile_.partial != nullptr) {
      float* to = tile_.partial + row * anychip::partial_floats(args_);
      std::memcpy(to, sums, dim_ * sizeof(float));
      to[dim_] = total_.largest[row];
      to[dim_ + 1] = total_.weights[row];
      return;
    }
    write(static_cast<T*>(args_.out) + (token(row) * args_.heads + head(row)) * dim_, sums, total_.weights[row], dim_);
  }

  const Tile& tile_;
  const AttentionArgs& args_;
  std::int64_t group_, rows_, all_rows_, dim_, units_;  // rows: (token, query head) pairs of one kv head; of all
  float scale_;
  float *keys_, *values_, *queries_, *scores_, *factors_;
  State state_, total_;
  Head head_;
  // what was not fetched yet: where tokens' keys and values begin, and the offset of the head
  const T* coming_places_[2 * kBlock];
  const T **coming_ = coming_places_, **coming_end_ = coming_places_;
  std::int64_t coming_head_ = 0;
};

template <class Engine>
void attend(const Tile& tile, float* scratch) {
  Attention<Engine>(tile, scratch).run();
}

// partials: [spans][group], `stride` floats from one span to the next; the first span's are overwritten
template <class Engine>
void merge_partials(const Tile& tile, float* partials, std::int64_t count, std::int64_t stride) {
  using T = typename Engine::Element;
  const AttentionArgs& args = *tile.args;
  const std::int64_t group = args.heads / args.kv_heads, dim = args.head_dim;
  for (std::int64_t head = 0; head < group; ++head) {
    float* all = partials + head * (dim + 2);
    for (std::int64_t span = 1; span < count; ++span) {
      const float* more = all + span * stride;
      Attention<Engine>::merge(all, all[dim], all[dim + 1], more, more[dim], more[dim + 1], dim);
    }
    T* out = static_cast<T*>(args.out) + (tile.token * args.heads + tile.kv_head * group + head) * dim;
    Attention<Engine>::write(out, all, all[dim + 1], dim);
  }
}

}  // namespace
