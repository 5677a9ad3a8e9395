// Attention of several tokens to one kv head, as products of matrices. Knows Simd and an engine.
//
// A block's keys and values are packed once for all rows, and the next one's fetched meanwhile. The lanes of a vector are
// keys while scores are made and dimensions while values are mixed; scores are summed in the order in which Simd adds the
// lanes of one vector.
#pragma once

#include "attention_weights.hpp"

namespace {

template <class Engine>
class Tiles {
  using T = typename Engine::Element;
  using F = Simd::F;
  static constexpr int W = Simd::kWidth, R = Simd::kRowTile, V = Simd::kVectorTile;
  static constexpr int kPer = Engine::kPerUnit;
  static constexpr int kLevels = W == 16 ? 4 : W == 8 ? 3 : 2;  // of the tree in which W sums are folded
  static constexpr std::int64_t kUnits = kBlock / kPer, kLine = 64 / sizeof(T);
  static_assert(1 << kLevels == W && kBlock % (W * V) == 0, "");

 public:
  Tiles(const Tile& tile, float* memory) : Tiles(tile, Scratch(memory)) {}

  void run() {
    for (std::int64_t span = tile_.key_begin; span < tile_.key_end; span += kSpan) {
      sums_.begin_span();
      const std::int64_t end = smaller(smaller(span + kSpan, tile_.key_end), seen_.end);
      for (std::int64_t block = larger(span, seen_.begin / kBlock * kBlock); block < end; block += kBlock)
        attend_block(block);
      sums_.end_span();
    }
    finish();
  }

 private:
  Tiles(const Tile& tile, Scratch scratch)
      : tile_(tile),
        args_(*tile.args),
        group_(args_.heads / args_.kv_heads),
        dim_(args_.head_dim),
        value_dim_(args_.value_dim),
        units_(dim_ / kPer),
        rows_(tile.tokens * group_),
        seen_(tile),
        sums_(rows_, value_dim_, scratch) {
    scale_ = static_cast<float>(args_.scale) * kLog2E;
    stride_ = round_up(units_, W);
    queries_ = scratch.take(rows_ * stride_);
    packed_keys_ = scratch.take(kBlock * units_);
    packed_values_ = scratch.take(kUnits * value_dim_);
    scores_ = scratch.take(rows_ * kBlock);
    factors_ = scratch.take(round_up(rows_, W));
    const std::int64_t shift = tile.kv_head * args_.head_stride;
    keys_ = static_cast<const T*>(args_.k) + shift;
    values_ = static_cast<const T*>(args_.v) + shift;
    pack_queries();
  }

  void pack_queries() {
    const T* q = static_cast<const T*>(args_.q) + tile_.token * args_.q_token_stride;
    q += tile_.kv_head * group_ * args_.q_head_stride;
    for (std::int64_t row = 0; row < rows_; ++row) {
      const T* query = q + row / group_ * args_.q_token_stride + row % group_ * args_.q_head_stride;
      pack_query<Engine>(query, units_, queries_ + row * stride_, W);
    }
  }

  std::int64_t position(std::int64_t row) const { return tile_.position + row / group_; }

  // Only rows that see a key of the block take part.
  void attend_block(std::int64_t block) {
    locate(tile_, seen_, block, places_);
    pack_keys();
    pack_values();
    const std::int64_t first = larger<std::int64_t>(0, block - tile_.position) * group_;
    std::int64_t last = rows_;
    if (seen_.window > 0) last = smaller(last, (block + kBlock - 1 + seen_.window - tile_.position) * group_);
    locate(tile_, seen_, block + kBlock, coming_places_);
    const auto share = [&](std::int64_t row) { return (row - first) * kBlock / (last - first); };
    each_tile(first, last, [&](auto rows, std::int64_t row) {
      fetch(keys_, share(row), share(row + rows.value));
      score<rows.value>(row);
    });
    if (args_.soft_cap > 0)
      soften(scores_ + first * kBlock, (last - first) * kBlock, static_cast<float>(args_.soft_cap));
    for (std::int64_t row = first; row < last; ++row) hide(block, row, scores_ + row * kBlock);
    weigh<Engine>(sums_, first, last, scores_, factors_);
    each_tile(first, last, [&](auto rows, std::int64_t row) {
      fetch(values_, share(row), share(row + rows.value));
      mix<rows.value>(block, row);
    });
  }

  template <int Rows>
  struct Count {
    static constexpr int value = Rows;
  };

  template <class Function>
  static void each_tile(std::int64_t row, std::int64_t end, Function function) {
    for (; row + R <= end; row += R) function(Count<R>(), row);
    if (R > 2)
      for (; row + 2 <= end; row += 2) function(Count<2>(), row);
    for (; row < end; ++row) function(Count<1>(), row);
  }

  // Some tokens of the next block, while this one is worked on.
  void fetch(const T* cache, std::int64_t first, std::int64_t last) const {
    for (const std::int64_t* place = coming_places_ + first; place != coming_places_ + last; ++place)
      for (std::int64_t d = 0; d < dim_ && *place >= 0; d += kLine) __builtin_prefetch(cache + *place + d, 0, kFar);
  }

  static const T* at(const T* cache, std::int64_t place) {
    return place < 0 ? reinterpret_cast<const T*>(kNothing) : cache + place;
  }

  // [units, keys]: a vector holds one unit of W neighbouring keys
  void pack_keys() {
    for (std::int64_t key = 0; key < kBlock; key += W) {
      const T* from[W];
      for (int i = 0; i < W; ++i) from[i] = at(keys_, places_[key + i]);
      for (std::int64_t unit = 0; unit < units_; unit += W) {
        const bool is_whole = unit + W <= units_;
        F lanes[W];
        for (int i = 0; i < W; ++i)
          lanes[i] = (is_whole ? Engine::load_units : Engine::load_few_units)(from[i] + unit * kPer);
        Simd::transpose(lanes);
        const int count = is_whole ? W : W / 2;
        for (int i = 0; i < count; ++i) Simd::store(packed_keys_ + (unit + i) * kBlock + key, lanes[i]);
      }
    }
  }

  // [units, dim]
  void pack_values() {
    for (std::int64_t unit = 0; unit < kUnits; ++unit) {
      const T *even = at(values_, places_[unit * kPer]), *odd = at(values_, places_[unit * kPer + kPer - 1]);
      std::int64_t d = 0;
      for (; d + V * W <= value_dim_; d += V * W) pack_part<V>(even + d, odd + d, packed_values_ + unit * value_dim_ + d);
      for (; d < value_dim_; d += W) pack_part<1>(even + d, odd + d, packed_values_ + unit * value_dim_ + d);
    }
  }

  template <int Vectors>
  static void pack_part(const T* even, const T* odd, float* to) {
    F values[Vectors];
    Engine::template value_units<Vectors>(even, odd, values);
    for (int j = 0; j < Vectors; ++j) Simd::store(to + j * W, values[j]);
  }

  // Units i, i + W, i + 2 W ... of a query make one sum; the W sums are folded as Simd::sum adds lanes.
  template <int Rows>
  void score(std::int64_t row) {
    const float* queries = queries_ + row * stride_;
    for (std::int64_t key = 0; key < kBlock; key += W * V) {
      F tree[kLevels][Rows][V];
      for (int turn = 0; turn < W; ++turn) {
        F sums[Rows][V];
        products<Rows>(queries, packed_keys_ + key, reversed(turn), sums);
        int level = 0;
        for (; turn >> level & 1; ++level) add<Rows>(sums, tree[level]);
        if (level < kLevels) copy<Rows>(tree[level], sums);
        if (level == kLevels) keep<Rows>(sums, scores_ + row * kBlock + key);
      }
    }
  }

  static int reversed(int turn) {
    int bits = 0;
    for (int level = 0; level < kLevels; ++level) bits |= (turn >> level & 1) << (kLevels - 1 - level);
    return bits;
  }

  template <int Rows>
  void products(const float* queries, const float* keys, std::int64_t unit, F (&sums)[Rows][V]) const {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sums[r][j] = Simd::zero();
    for (; unit < units_; unit += W) {
      F key[V];
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) key[j] = Simd::load(keys + unit * kBlock + j * W);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const F one = Simd::set(queries[r * stride_ + unit]);
#pragma GCC unroll 4
        for (int j = 0; j < V; ++j) sums[r][j] = Engine::dot(sums[r][j], key[j], one);
      }
    }
  }

  template <int Rows>
  static void add(F (&sums)[Rows][V], const F (&more)[Rows][V]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) sums[r][j] = more[r][j] + sums[r][j];
  }

  template <int Rows>
  static void copy(F (&to)[Rows][V], const F (&sums)[Rows][V]) {
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) to[r][j] = sums[r][j];
  }

  template <int Rows>
  void keep(const F (&sums)[Rows][V], float* scores) const {
    const F scale = Simd::set(scale_);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < V; ++j) Simd::store(scores + r * kBlock + j * W, sums[r][j] * scale);
  }

  void hide(std::int64_t block, std::int64_t row, float* scores) const {
    const std::int64_t last = position(row), first = seen_.first(last);
    if (first <= block && last >= block + kBlock - 1) return;
    for (std::int64_t key = 0; key < kBlock; key += W) {
      const F index = Simd::iota() + Simd::set(static_cast<float>(key));
      Simd::store(scores + key, Simd::keep(Simd::load(scores + key), index, static_cast<float>(first - block),
                                           static_cast<float>(last - block)));
    }
  }

  template <int Rows>
  void mix(std::int64_t block, std::int64_t row) {
    const std::int64_t units = smaller(kBlock, position(row + Rows - 1) - block + kPer) / kPer;
    std::int64_t d = 0;
    for (; d + V * W <= value_dim_; d += V * W) mix_part<Rows, V>(row, units, d);
    for (; d < value_dim_; d += W) mix_part<Rows, 1>(row, units, d);
  }

  template <int Rows, int Vectors>
  void mix_part(std::int64_t row, std::int64_t units, std::int64_t d) {
    float* to = sums_.sums(row) + d;
    const float *weights = scores_ + row * kBlock, *values = packed_values_ + d;
    F sums[Rows][Vectors];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sums[r][j] = Simd::load(to + r * value_dim_ + j * W) * Simd::set(factors_[row + r]);
    for (std::int64_t unit = 0; unit < units; ++unit) {
      F value[Vectors];
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) value[j] = Simd::load(values + unit * value_dim_ + j * W);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        const F one = Simd::set(weights[r * kBlock + unit]);
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) sums[r][j] = Engine::dot(sums[r][j], value[j], one);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) Simd::store(to + r * value_dim_ + j * W, sums[r][j]);
  }

  void finish() {
    if (tile_.partial != nullptr) {
      for (std::int64_t row = 0; row < rows_; ++row)
        sums_.keep(row, tile_.partial + row * anychip::partial_floats(args_));
      return;
    }
    T* out = static_cast<T*>(args_.out) + (tile_.token * args_.heads + tile_.kv_head * group_) * value_dim_;
    for (std::int64_t row = 0; row < rows_; ++row)
      sums_.write(row, args_, tile_.kv_head * group_ + row % group_,
                  out + (row / group_ * args_.heads + row % group_) * value_dim_);
  }

  const Tile& tile_;
  const AttentionArgs& args_;
  std::int64_t group_, dim_, value_dim_, units_, rows_;
  Seen seen_;
  RunningSums sums_;
  std::int64_t stride_;  // from a query to the next
  float scale_;
  float *queries_, *packed_keys_, *packed_values_, *scores_, *factors_;
  const T *keys_, *values_;  // the caches, from the kv head on
  std::int64_t places_[kBlock], coming_places_[kBlock];  // of the block's keys, of the next one's; -1: hidden from all
};

}  // namespace
