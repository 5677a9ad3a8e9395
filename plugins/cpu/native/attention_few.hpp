// A few tokens' keys or values with the rows that read one kv head: registers hold as much as they can. Knows Simd and
// an engine; knows no block.
#pragma once

#include "attention_rows.hpp"

namespace {

template <class Engine>
class FewTokens {
  using T = typename Engine::Element;
  using F = Simd::F;
  static constexpr int W = Simd::kWidth, kPer = Engine::kPerUnit;
  static constexpr int kLine = 64 / sizeof(T), kStep = W * kPer;  // elements: of a line of the cache, of a key's vector
  static constexpr int kLineSteps = kLine > kStep ? kLine / kStep : 1;

  // The greatest power of two, at most `most`, of which `each` times as many vectors stay in registers.
  static constexpr int fitting(int each, int most) {
    return most > 1 && each * most > Simd::kSums ? fitting(each, most / 2) : most;
  }

 public:
  static constexpr int kUnits = 4;  // whose values are mixed together
  // whose keys are scored together where there are registers: so that the sums of two rows fill a vector
  static constexpr int kTokens = W < 16 ? 4 : 8;

  static constexpr int tokens(int group) { return fitting(group, kTokens); }

  // [rows, keys]: a key is widened once for all rows, a query loaded once for all keys; the sums stay in registers.
  // What is `ahead` is fetched meanwhile.
  template <int Group>
  [[gnu::always_inline]] static void score(const T* const (&keys)[tokens(Group)],
                                           const T* const (&ahead)[tokens(Group)], std::int64_t shift,
                                           std::int64_t dim, const float* queries, float scale, float* scores) {
    constexpr int kTogether = tokens(Group), kCount = Group * kTogether;
    F sums[kCount];
#pragma GCC unroll 32
    for (int i = 0; i < kCount; ++i) sums[i] = Simd::zero();
    std::int64_t at = shift;
    const std::int64_t end = shift + dim;
    for (std::int64_t lines = dim / (kStep * kLineSteps); lines > 0; --lines, at += kStep * kLineSteps) {
#pragma GCC unroll 8
      for (int step = 0; step < kLineSteps; ++step, queries += Group * W) {
#pragma GCC unroll 8
        for (int t = 0; t < kTogether; ++t)
          if (t % kLineSteps == step) fetch_once(ahead[t] + at);
        multiply<Group, Engine::load_units>(keys, at + step * kStep, queries, sums);
      }
    }
    for (; __builtin_expect(at < end, 0); at += kStep, queries += Group * W) {
      for (const T* one : ahead) fetch_once(one + at);
      if (at + kStep <= end)
        multiply<Group, Engine::load_units>(keys, at, queries, sums);
      else
        multiply<Group, Engine::load_few_units>(keys, at, queries, sums);
    }
    alignas(64) float lanes[(kCount + W - 1) / W * W];
#pragma GCC unroll 4
    for (int i = 0; i < kCount; i += W) {
      F some[W];
#pragma GCC unroll 16
      for (int j = 0; j < W; ++j) some[j] = i + j < kCount ? sums[i + j] : Simd::zero();
      Simd::store(lanes + i, Simd::sum_each(some) * Simd::set(scale));
    }
#pragma GCC unroll 4
    for (int r = 0; r < Group; ++r) std::memcpy(scores + r * kBlock, lanes + r * kTogether, kTogether * sizeof(float));
  }

  // Adds the values, each with its weight, to the rows' sums: values stay in registers, one row's sums after the other
  // pass by. `shift` is only for what is fetched. No group: so many rows as the caller says.
  template <int Group, int Units>
  [[gnu::always_inline]] static void mix(const T* const (&values)[Units * kPer], const T* const (&ahead)[Units * kPer],
                                         std::int64_t shift, std::int64_t dim, const float* weights, std::int64_t rows,
                                         float* sums) {
    constexpr int kMany = fitting(Units, Simd::kVectorTile), kFew = W < 16 ? 2 : 1;
    std::int64_t d = 0;
    for (; d + kMany * W <= dim; d += kMany * W) {
      if (kMany * W >= kLine || d % kLine == 0) fetch<Units, kMany * W>(ahead, shift + d);
      mix_part<Group, Units, kMany>(values, d, weights, sums + d, rows, dim);
    }
    for (; d < dim; d += kFew * W) {
      if (d % kLine == 0) fetch<Units, kFew * W>(ahead, shift + d);
      mix_part<Group, Units, kFew>(values, d, weights, sums + d, rows, dim);
    }
  }

 private:
  template <int Group, F load(const T*)>
  [[gnu::always_inline]] static void multiply(const T* const (&keys)[tokens(Group)], std::int64_t at,
                                              const float* queries, F (&sums)[Group * tokens(Group)]) {
    constexpr int kTogether = tokens(Group);
    F query[Group];
#pragma GCC unroll 4
    for (int r = 0; r < Group; ++r) query[r] = Simd::load(queries + r * W);
#pragma GCC unroll 8
    for (int t = 0; t < kTogether; ++t) {
      const F key = load(keys[t] + at);
#pragma GCC unroll 4
      for (int r = 0; r < Group; ++r) sums[r * kTogether + t] = Engine::dot(sums[r * kTogether + t], key, query[r]);
    }
  }

  template <int Units, int Elements>
  static void fetch(const T* const (&ahead)[Units * kPer], std::int64_t at) {
    for (const T* one : ahead)
      for (int line = 0; line < Elements; line += kLine) fetch_once(one + at + line);
  }

  template <int Group, int Units, int Vectors>
  [[gnu::always_inline]] static void mix_part(const T* const (&from)[Units * kPer], std::int64_t d,
                                              const float* weights, float* to, std::int64_t rows, std::int64_t dim) {
    F values[Units][Vectors];
#pragma GCC unroll 4
    for (int unit = 0; unit < Units; ++unit)
      Engine::template mixed_units<Vectors>(from[unit * kPer] + d, from[unit * kPer + kPer - 1] + d, values[unit]);
#pragma GCC unroll 4
    for (std::int64_t row = 0; row < (Group > 0 ? Group : rows); ++row, weights += kBlock, to += dim) {
      F sums[Vectors];
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) sums[j] = Simd::load(to + j * W);
#pragma GCC unroll 4
      for (int unit = 0; unit < Units; ++unit) {
        const F one = Simd::set(weights[unit]);
#pragma GCC unroll 4
        for (int j = 0; j < Vectors; ++j) sums[j] = Engine::dot(sums[j], values[unit][j], one);
      }
#pragma GCC unroll 4
      for (int j = 0; j < Vectors; ++j) Simd::store(to + j * W, sums[j]);
    }
  }
};

}  // namespace
