// Attention of one token, or of tokens of several rows that see the same keys: these and their values are read once, in
// the order of memory. Knows Simd and an engine.
//
// Rows are heads of the tokens. Those that read one kv head lie side by side and are worked on together, with a few
// neighbouring keys or values at a time.
#pragma once

#include "attention_few.hpp"
#include "attention_weights.hpp"

namespace {

// The rows that read one kv head, in parts of as many as are worked on together; the last part may lack some.
struct Parts {
  static constexpr int kGroupMax = 4;

  explicit Parts(std::int64_t readers)
      : count((readers + kGroupMax - 1) / kGroupMax), group((readers + count - 1) / count) {}

  std::int64_t count, group;
};

template <class Engine>
class Stream {
  using T = typename Engine::Element;
  using F = Simd::F;
  using Few = FewTokens<Engine>;
  static constexpr int W = Simd::kWidth;
  static constexpr int kPer = Engine::kPerUnit;
  // what is fetched while as much is worked on, a few tokens at least: enough for the time that memory takes
  static std::int64_t bytes_ahead() { return kPassesBy ? 2048 : 8192; }

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
        readers_(heads_each_ * count),
        dim_(args_.head_dim),
        value_dim_(args_.value_dim),
        units_(dim_ / kPer),
        parts_(readers_),
        rows_(tile_.kv_heads * parts_.count * parts_.group),
        seen_(tile_),
        sums_(rows_, value_dim_, scratch) {
    scale_ = static_cast<float>(args_.scale) * kLog2E;
    queries_ = scratch.take(rows_ * round_up(units_, W));
    scores_ = scratch.take(rows_ * kBlock);
    factors_ = scratch.take(round_up(rows_, W));
    const std::int64_t shift = tile_.kv_head * args_.head_stride;
    keys_ = static_cast<const T*>(args_.k) + shift;
    values_ = static_cast<const T*>(args_.v) + shift;
    const std::int64_t token_bytes = tile_.kv_heads * dim_ * std::int64_t(sizeof(T));
    ahead_ = smaller(kBlock, larger<std::int64_t>(Few::kTokens, bytes_ahead() / token_bytes));
    pack_queries();
  }

  // [parts of rows, vectors of units, rows of a part, W units]
  void pack_queries() {
    const std::int64_t stride = round_up(units_, W), group = parts_.group;
    std::memset(queries_, 0, rows_ * stride * sizeof(float));
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Reader reader = this->reader(row);
      if (reader.tile == nullptr) continue;
      const T* query = static_cast<const T*>(args_.q) + reader.tile->token * args_.q_token_stride;
      query += (tile_.kv_head * heads_each_ + reader.head) * args_.q_head_stride;
      pack_query<Engine>(query, units_, queries_ + row / group * group * stride + row % group * W, group * W);
    }
  }

  // Whom a row works for: a tile, and a head counted from its first one.
  struct Reader {
    const Tile* tile;
    std::int64_t head;
  };

  // no tile: nobody
  Reader reader(std::int64_t row) const {
    const std::int64_t rows_each = parts_.count * parts_.group, member = row % rows_each;
    if (member >= readers_) return {nullptr, 0};
    return {&tile_ + member / heads_each_, row / rows_each * heads_each_ + member % heads_each_};
  }

  // Keys are seen from `first` on, `left` of them and of what precedes them are left in the span.
  void attend_block(std::int64_t block, std::int64_t first, std::int64_t left) {
    const std::int64_t last = smaller(kBlock, left);
    locate(tile_, seen_, block, places_);
    expect(block, first, last, left - last);
    for_group([&](auto group) { score<decltype(group)::value>(first, last); });
    if (args_.soft_cap > 0) soften(scores_, rows_ * kBlock, static_cast<float>(args_.soft_cap));
    hide(0, first);
    hide(last, kBlock);
    weigh<Engine>(sums_, 0, rows_, scores_, factors_);
    rescale();
    const std::int64_t unit = first / kPer, end = (last + kPer - 1) / kPer;
    if (parts_.count > 1) return mix<0>(unit, end);
    for_group([&](auto group) { mix<decltype(group)::value>(unit, end); });
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

  // Calls the function with the number of rows of a part.
  template <class Function>
  void for_group(Function function) const {
    switch (parts_.group) {
      case 1: return function(Count<1>());
      case 2: return function(Count<2>());
      case 3: return function(Count<3>());
      default: return function(Count<4>());
    }
  }

  void hide(std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < rows_; ++row)
      for (std::int64_t key = begin; key < end; ++key) scores_[row * kBlock + key] = -kInfinity;
  }

  // In place of keys that nobody sees, others are scored; the scores are hidden then.
  template <int Group>
  void score(std::int64_t first, std::int64_t last) {
    constexpr int kTokens = Few::tokens(Group);
    const std::int64_t parts = parts_.count, query_floats = Group * round_up(units_, W);
    for (std::int64_t key = first / kTokens * kTokens; key < last; key += kTokens) {
      const T *keys[kTokens], *ahead[kTokens];
#pragma GCC unroll 8
      for (int t = 0; t < kTokens; ++t) {
        keys[t] = keys_ + places_[smaller(larger(key + t, first), last - 1)];
        ahead[t] = coming();
      }
      const float* queries = queries_;
      float* scores = scores_ + key;
      std::int64_t shift = 0;
      for (std::int64_t head = 0; head < tile_.kv_heads; ++head, shift += args_.head_stride)
        for (std::int64_t part = 0; part < parts; ++part, queries += query_floats, scores += Group * kBlock)
          Few::template score<Group>(keys, ahead, shift, dim_, queries, scale_, scores);
    }
  }

  void rescale() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      if (factors_[row] == 1) continue;
      float* sums = sums_.sums(row);
      const F factor = Simd::set(factors_[row]);
      for (std::int64_t d = 0; d < value_dim_; d += W) Simd::store(sums + d, Simd::load(sums + d) * factor);
    }
  }

  // Hidden values have no weight. No group: any number of rows.
  template <int Group>
  void mix(std::int64_t first, std::int64_t last) {
    std::int64_t unit = first;
    for (; unit + Few::kUnits <= last; unit += Few::kUnits) mix_units<Group, Few::kUnits>(unit);
    for (; unit < last; ++unit) mix_units<0, 1>(unit);
  }

  template <int Group, int Units>
  void mix_units(std::int64_t unit) {
    const std::int64_t rows = Group > 0 ? Group : parts_.count * parts_.group;
    const T *values[Units * kPer], *ahead[Units * kPer];
    for (const T*& one : ahead) one = coming();
    const float* weights = scores_ + unit;
    float* sums = sums_.sums(0);
    std::int64_t shift = 0;
    for (std::int64_t head = 0; head < tile_.kv_heads; ++head, weights += rows * kBlock, sums += rows * value_dim_) {
      for (int i = 0; i < Units * kPer; ++i) values[i] = value(places_[unit * kPer + i], shift);
      Few::template mix<Group, Units>(values, ahead, shift, value_dim_, weights, rows, sums);
      shift += args_.head_stride;
    }
  }

  // Hidden are only some that a unit has beside others.
  const T* value(std::int64_t place, std::int64_t shift) const {
    return kPer > 1 && place < 0 ? reinterpret_cast<const T*>(kNothing) : values_ + place + shift;
  }

  void finish() {
    for (std::int64_t row = 0; row < rows_; ++row) {
      const Reader reader = this->reader(row);
      if (reader.tile == nullptr) continue;
      Engine::put_in_order(sums_.total(row), value_dim_);
      if (reader.tile->partial != nullptr) {
        sums_.keep(row, reader.tile->partial + reader.head * anychip::partial_floats(args_));
      } else {
        const std::int64_t head = tile_.kv_head * heads_each_ + reader.head;
        T* out = static_cast<T*>(args_.out) + (reader.tile->token * args_.heads + head) * value_dim_;
        sums_.write(row, args_, head, out);
      }
    }
  }

  const Tile& tile_;  // the first
  const AttentionArgs& args_;
  std::int64_t heads_each_, readers_;  // query heads that read a kv head: of a token, of all tokens
  std::int64_t dim_, value_dim_, units_;  // of keys, of values; of keys, in units
  Parts parts_;
  std::int64_t rows_;  // of all parts
  Seen seen_;
  RunningSums sums_;
  float scale_;
  float *queries_, *scores_, *factors_;  // scores, then weights: [rows, keys]
  const T *keys_, *values_;              // the caches, from the tile's first head on
  std::int64_t places_[kBlock];          // of the block's keys
  const T* coming_places_[3 * kBlock];   // tokens that were not read yet when the block began
  const T **coming_, **coming_end_;      // those not fetched yet
  std::int64_t ahead_;                   // tokens
};

}  // namespace
