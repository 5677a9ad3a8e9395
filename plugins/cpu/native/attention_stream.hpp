// Attention of one token, or of tokens of several rows that see the same keys: these and their values are read once, in
// the order of memory. Knows Simd and an engine.
//
// The lanes of a vector are rows, which are heads of the tokens, so that nothing but the dimensions is summed across
// lanes: a key's products with W rows are summed together. Heads that read the same kv head lie side by side.
#pragma once

#include "attention_rows.hpp"

namespace {

// Which head a lane works for. Heads of one kv head are not cut but if they are more than kGroupMax.
class Lanes {
  static constexpr int W = Simd::kWidth;

 public:
  static constexpr int kGroupMax = W < 8 ? W : 8;

  Lanes(std::int64_t group, std::int64_t kv_heads) : group_(group), kv_heads_(kv_heads) {
    is_cut_ = group > kGroupMax;
    kv_heads_each_ = is_cut_ ? 1 : W / group;
    vectors_each_ = is_cut_ ? static_cast<std::int32_t>((group + W - 1) / W) : 1;
  }

  std::int64_t vectors() const { return (kv_heads_ + kv_heads_each_ - 1) / kv_heads_each_ * vectors_each_; }
  // of a vector's first lane
  std::int64_t kv_head(std::int64_t vector) const {
    return static_cast<std::int32_t>(vector) / vectors_each_ * kv_heads_each_;
  }
  // -1: none
  std::int64_t head(std::int64_t lane) const {
    const std::int64_t vector = lane / W, kv_head = this->kv_head(vector) + (is_cut_ ? 0 : lane % W / group_);
    const std::int64_t member = is_cut_ ? vector % vectors_each_ * W + lane % W : lane % W % group_;
    const bool is_there = member < group_ && kv_head < kv_heads_ && kv_head < this->kv_head(vector) + kv_heads_each_;
    return is_there ? kv_head * group_ + member : -1;
  }

 private:
  std::int64_t group_, kv_heads_, kv_heads_each_;
  std::int32_t vectors_each_;
  bool is_cut_;
};

template <class Engine>
class Stream {
  using T = typename Engine::Element;
  using F = Simd::F;
  static constexpr int W = Simd::kWidth, V = Simd::kVectorTile;
  static constexpr int kPer = Engine::kPerUnit;
  static constexpr std::int64_t kUnits = kBlock / kPer, kLine = 64 / sizeof(T);
  // what is fetched while as much is worked on: enough for the time that memory takes, little of the nearest cache
  static constexpr std::int64_t kBytesAhead = 8192;

 public:
  // several tiles see the same keys, all of them
  Stream(const Tile* tiles, std::int64_t count, float* memory) : Stream(tiles, count, Scratch(memory)) {}

  void run() {
    for (std::int64_t span = tile_.key_begin; span < tile_.key_end; span += kSpan) {
      sums_.begin_span();
      const std::int64_t end = smaller(smaller(span + kSpan, tile_.key_end), seen_.end);
      for (std::int64_t block = larger(span, seen_.begin / kBlock * kBlock); block < end; block += kBlock)
        attend_block(block, larger<std::int64_t>(0, seen_.begin - block), end - block);
      sums_.end_span();
    }
    finish();
  }

 private:
  Stream(const Tile* tiles, std::int64_t count, Scratch scratch)
      : tile_(*tiles),
        args_(*tile_.args),
        heads_each_(args_.heads / args_.kv_heads),
        group_(heads_each_ * count),
        dim_(args_.head_dim),
        units_(dim_ / kPer),
        lanes_(group_, tile_.kv_heads),
        rows_(lanes_.vectors() * W),
        seen_(tile_),
        sums_(rows_, dim_, scratch) {
    scale_ = static_cast<float>(args_.scale) * kLog2E;
    queries_ = scratch.take(rows_ * round_up(units_, W));
    scores_ = scratch.take(kBlock * rows_);
    weights_ = scratch.take(kUnits * rows_);
    factors_ = scratch.take(rows_);
    const std::int64_t shift = tile_.kv_head * args_.head_stride;
    keys_ = static_cast<const T*>(args_.k) + shift;
    values_ = static_cast<const T*>(args_.v) + shift;
    const std::int64_t token_bytes = tile_.kv_heads * dim_ * std::int64_t(sizeof(T));
    ahead_ = smaller(kBlock, larger<std::int64_t>(1, kBytesAhead / token_bytes));
    pack_queries();
  }

  // [vectors of rows, vectors of units, W rows, W units]
  void pack_queries() {
    const std::int64_t stride = round_up(units_, W);
    std::memset(queries_, 0, rows_ * stride * sizeof(float));
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Reader reader = this->reader(row);
      if (reader.tile == nullptr) continue;
      const T* query = static_cast<const T*>(args_.q) + reader.tile->token * args_.q_token_stride;
      query += (tile_.kv_head * heads_each_ + reader.head) * args_.q_head_stride;
      pack_query<Engine>(query, units_, queries_ + row / W * W * stride + row % W * W, W * W);
    }
  }

  // Whom a row works for: a tile, and a head counted from its first one.
  struct Reader {
    const Tile* tile;
    std::int64_t head;
  };

  // no tile: nobody
  Reader reader(std::int64_t row) const {
    const std::int64_t reader = lanes_.head(row);
    if (reader < 0) return {nullptr, 0};
    const std::int64_t member = reader % group_;
    return {&tile_ + member / heads_each_, reader / group_ * heads_each_ + member % heads_each_};
  }

  // Keys are seen from `first` on, `left` of them and of what precedes them are left in the span.
  void attend_block(std::int64_t block, std::int64_t first, std::int64_t left) {
    const std::int64_t last = smaller(kBlock, left);
    locate(tile_, seen_, block, places_);
    expect(block, first, last, left - last);
    hide(0, first);
    for_group([&](auto group) { score<decltype(group)::value>(first, last); });
    hide(last, kBlock);
    for (std::int64_t row = 0; row < rows_; row += W) weigh(row);
    rescale();
    for_group([&](auto group) { mix<decltype(group)::value>(first / kPer, (last + kPer - 1) / kPer); });
  }

  // Tokens in the order in which they will be read.
  void expect(std::int64_t block, std::int64_t first, std::int64_t last, std::int64_t following) {
    const T** end = coming_places_;
    for (std::int64_t key = first; key < last; ++key) *end++ = keys_ + places_[key];
    for (std::int64_t key = first; key < last; ++key) *end++ = values_ + places_[key];
    if (following > 0) {
      std::int64_t next[kBlock];
      locate(tile_, seen_, block + kBlock, next);
      for (std::int64_t key = 0; key < smaller(ahead_, following); ++key) *end++ = keys_ + next[key];
    }
    coming_ = smaller<const T**>(coming_places_ + ahead_, end);
    coming_end_ = end;
  }

  // The token that is fetched, line by line, while another is worked on; at the end one that is there already.
  const T* coming() { return coming_ != coming_end_ ? *coming_++ : coming_places_[0]; }

  template <int Group>
  struct Count {
    static constexpr int value = Group;
  };

  // Calls the function with the number of neighbouring rows that share a kv head.
  template <class Function>
  void for_group(Function function) const {
    if (group_ > Lanes::kGroupMax) return function(Count<W>());
    switch (group_) {
      case 1: return function(Count<1>());
      case 2: return function(Count<2>());
      case 3: return function(Count<3>());
      case 4: return function(Count<4>());
      case 5: return function(Count<smaller(5, W)>());
      case 6: return function(Count<smaller(6, W)>());
      case 7: return function(Count<smaller(7, W)>());
      default: return function(Count<smaller(8, W)>());
    }
  }

  void hide(std::int64_t begin, std::int64_t end) {
    for (float* score = scores_ + begin * rows_; score != scores_ + end * rows_; ++score) *score = -kInfinity;
  }

  template <int Group>
  void score(std::int64_t first, std::int64_t last) {
    for (std::int64_t key = first; key < last; ++key) {
      const T* ahead = coming();
      for (std::int64_t row = 0; row < rows_; row += W)
        score_key<Group>(keys_ + places_[key], ahead, row, scores_ + key * rows_ + row);
    }
  }

  // One token's keys with W rows.
  template <int Group>
  void score_key(const T* keys, const T* ahead, std::int64_t row, float* scores) const {
    constexpr int kKvHeads = W / Group;
    const std::int64_t kv_head = lanes_.kv_head(row / W), last = tile_.kv_heads - 1 - kv_head;
    const T* from[kKvHeads];
#pragma GCC unroll 16
    for (int i = 0; i < kKvHeads; ++i) from[i] = keys + (kv_head + smaller<std::int64_t>(i, last)) * args_.head_stride;
    const float* queries = queries_ + row * round_up(units_, W);
    const std::int64_t shift = ahead - keys;
    F lanes[W];
#pragma GCC unroll 16
    for (int i = 0; i < W; ++i) lanes[i] = Simd::zero();
    std::int64_t unit = 0;
    for (; unit + W <= units_; unit += W, queries += W * W)
      multiply<Group, Engine::load_units>(from, unit, shift, queries, lanes);
    if (unit == units_) return Simd::store(scores, Simd::sum_each(lanes) * Simd::set(scale_));
    multiply<Group, Engine::load_few_units>(from, unit, shift, queries, lanes);
    Simd::store(scores, Simd::sum_each(lanes) * Simd::set(scale_));
  }

  template <int Group, F load(const T*), int KvHeads>
  static void multiply(const T* const (&keys)[KvHeads], std::int64_t unit, std::int64_t shift, const float* queries,
                       F (&lanes)[W]) {
#pragma GCC unroll 16
    for (int i = 0; i < KvHeads; ++i) {
      const F key = load(keys[i] + unit * kPer);
      __builtin_prefetch(keys[i] + unit * kPer + shift, 0, kOnce);
#pragma GCC unroll 16
      for (int row = i * Group; row < (i + 1) * Group; ++row)
        lanes[row] = Engine::dot(lanes[row], key, Simd::load(queries + row * W));
    }
  }

  // Scores of W rows become weights, as units; the rows' earlier sums are to be multiplied by their factors.
  void weigh(std::int64_t row) {
    const F before = Simd::load(&sums_.largest(row));
    F top = before;
    for (std::int64_t key = 0; key < kBlock; ++key) top = Simd::max(top, Simd::load(scores_ + key * rows_ + row));
    const F base = Simd::at_least(-kLargest, top), factor = exp2(before - base);
    F totals[W];
    for (int i = 0; i < W; ++i) totals[i] = Simd::zero();
    for (std::int64_t unit = 0; unit < kUnits; unit += W)
      for (int i = 0; i < W; ++i) {
        const float* scores = scores_ + (unit + i) * kPer * rows_ + row;
        F weights[kPer];
        for (int part = 0; part < kPer; ++part) weights[part] = exp2(Simd::load(scores + part * rows_) - base);
        totals[i] = totals[i] + Engine::join_weights(weights, weights_ + (unit + i) * rows_ + row);
      }
    Simd::store(&sums_.largest(row), top);
    Simd::store(&sums_.weights(row), Simd::load(&sums_.weights(row)) * factor + fold(totals));
    Simd::store(factors_ + row, factor);
  }

  void rescale() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      float* sums = sums_.sums(row);
      const F factor = Simd::set(factors_[row]);
      for (std::int64_t d = 0; d < dim_; d += W) Simd::store(sums + d, Simd::load(sums + d) * factor);
    }
  }

  // Two units' values at a time; hidden ones have no weight.
  template <int Group>
  void mix(std::int64_t first, std::int64_t last) {
    for (std::int64_t unit = first / 2 * 2; unit < last; unit += 2) {
      const T* ahead[2 * kPer];
      for (const T*& one : ahead) one = coming();
      for (std::int64_t row = 0; row < rows_; row += W) mix_rows<Group>(unit, row, ahead);
    }
  }

  template <int Group>
  void mix_rows(std::int64_t unit, std::int64_t row, const T* const* ahead) {
    const std::int64_t* places = places_ + unit * kPer;
    const std::int64_t kv_head = lanes_.kv_head(row / W);
    const std::int64_t last = smaller<std::int64_t>(W / Group, tile_.kv_heads - kv_head);
    for (std::int64_t i = 0; i < last; ++i) {
      const std::int64_t shift = (kv_head + i) * args_.head_stride;
      const T* from[4] = {value(places[0], shift), value(places[kPer - 1], shift), value(places[kPer], shift),
                          value(places[2 * kPer - 1], shift)};
      const float* weights = weights_ + unit * rows_ + row + i * Group;
      for (int token = 0; token < 2 * kPer; ++token)
        for (std::int64_t d = 0; d < dim_; d += kLine) __builtin_prefetch(ahead[token] + shift + d, 0, kOnce);
      std::int64_t d = 0;
      for (; d + V * W <= dim_; d += V * W) mix_part<Group, V>(from, weights, row + i * Group, d);
      for (; d < dim_; d += W) mix_part<Group, 1>(from, weights, row + i * Group, d);
    }
  }

  const T* value(std::int64_t place, std::int64_t shift) const {
    return place < 0 ? reinterpret_cast<const T*>(kNothing) : values_ + place + shift;
  }

  template <int Group, int Vectors>
  void mix_part(const T* const* from, const float* weights, std::int64_t row, std::int64_t d) {
    F values[2][Vectors];
    Engine::template value_units<Vectors>(from[0] + d, from[1] + d, values[0]);
    Engine::template value_units<Vectors>(from[2] + d, from[3] + d, values[1]);
    float* sums = sums_.sums(row) + d;
#pragma GCC unroll 4
    for (int r = 0; r < Group; ++r, sums += dim_) {
      const F one = Simd::set(weights[r]), other = Simd::set(weights[rows_ + r]);
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) {
        const F sum = Engine::dot(Simd::load(sums + j * W), values[0][j], one);
        Simd::store(sums + j * W, Engine::dot(sum, values[1][j], other));
      }
    }
  }

  void finish() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Reader reader = this->reader(row);
      if (reader.tile == nullptr) continue;
      if (reader.tile->partial != nullptr) {
        sums_.keep(row, reader.tile->partial + reader.head * anychip::partial_floats(args_));
      } else {
        const std::int64_t head = reader.tile->token * args_.heads + tile_.kv_head * heads_each_ + reader.head;
        sums_.write(row, static_cast<T*>(args_.out) + head * dim_);
      }
    }
  }

  const Tile& tile_;  // the first
  const AttentionArgs& args_;
  std::int64_t heads_each_, group_;  // query heads that read a kv head: of a token, of all tokens
  std::int64_t dim_, units_;
  Lanes lanes_;
  std::int64_t rows_;  // lanes of all vectors
  Seen seen_;
  RunningSums sums_;
  float scale_;
  float *queries_, *scores_, *weights_, *factors_;  // scores: [keys, rows], weights: [units, rows]
  const T *keys_, *values_;                         // the caches, from the tile's first head on
  std::int64_t places_[kBlock];                     // of the block's keys
  const T* coming_places_[3 * kBlock];  // tokens that were not read yet when the block began
  const T **coming_, **coming_end_;     // those not fetched yet
  std::int64_t ahead_;                  // tokens
};

}  // namespace
