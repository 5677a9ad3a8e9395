// Scores of experts, and the best of them. Knows Simd; knows no threads.
//
// Include after simd_*.hpp.
#pragma once

#include "exponential.hpp"
#include "numbers.hpp"
#include "routing.hpp"
#include "rows_kernel.hpp"

namespace {
namespace routing {

using anychip::RouteArgs;
using rows::F;
using rows::W;

// Room for whole vectors; what is behind the experts is never read.
struct alignas(64) Scores {
  float of[anychip::kExpertsMax + W];
};

template <class Change>
inline void each(const float* from, float* to, std::int64_t count, Change change) {
  std::int64_t i = 0;
  for (; i + W <= count; i += W) Simd::store(to + i, change(Simd::load(from + i)));
  if (i < count) rows::store_few(to + i, change(rows::load_few(from + i, count - i)), count - i);
}

inline float largest_of(const float* x, std::int64_t count) {
  float most = -kInfinity;
  for (std::int64_t i = 0; i < count; ++i) most = larger(most, x[i]);
  return most;
}

// e^(x - the largest) / their sum
inline void softmax(const float* x, float* out, std::int64_t count) {
  const F most = Simd::set(largest_of(x, count));
  each(x, out, count, [most](F v) { return exp_negative(v - most); });
  float sum = 0.0f;
  for (std::int64_t i = 0; i < count; ++i) sum += out[i];
  for (std::int64_t i = 0; i < count; ++i) out[i] /= sum;
}

// The best of what is not taken yet, the first of equal ones; -1: all are taken.
inline std::int64_t best_of(const float* scores, const bool* is_taken, std::int64_t begin, std::int64_t end) {
  std::int64_t best = -1;
  for (std::int64_t i = begin; i < end; ++i)
    if (!is_taken[i] && (best < 0 || scores[i] > scores[best])) best = i;
  return best;
}

// All experts outside the best groups count as taken.
inline void take_other_groups(const RouteArgs& args, const float* selection, bool* is_taken) {
  const std::int64_t size = args.experts / args.groups;
  float scores[anychip::kExpertsMax];
  bool is_best[anychip::kExpertsMax] = {};
  for (std::int64_t group = 0; group < args.groups; ++group) {
    const std::int64_t begin = group * size, end = begin + size;
    const std::int64_t first = best_of(selection, is_taken, begin, end);
    scores[group] = selection[first];
    if (args.group_score != anychip::kTwoLargest || size < 2) continue;
    is_taken[first] = true;
    scores[group] += selection[best_of(selection, is_taken, begin, end)];
    is_taken[first] = false;
  }
  for (std::int64_t i = 0; i < args.top_groups; ++i) is_best[best_of(scores, is_best, 0, args.groups)] = true;
  for (std::int64_t expert = 0; expert < args.experts; ++expert) is_taken[expert] = !is_best[expert / size];
}

inline void renormalise(const RouteArgs& args, float* weights) {
  const float floor = static_cast<float>(args.floor), factor = static_cast<float>(args.factor);
  float sum = 0.0f;
  for (std::int64_t i = 0; i < args.chosen; ++i) sum += weights[i];
  if (args.renormalise == anychip::kBySoftmax) {
    Scores shares;
    softmax(weights, shares.of, args.chosen);
    for (std::int64_t i = 0; i < args.chosen; ++i) weights[i] = shares.of[i];
  }
  float by = 1.0f;
  if (args.renormalise == anychip::kBySum) by = sum + floor;
  if (args.renormalise == anychip::kByFlooredSum) by = larger(sum, floor);
  for (std::int64_t i = 0; i < args.chosen; ++i) weights[i] = weights[i] / by * factor;
}

inline void route_row(const RouteArgs& args, const float* logits, std::int32_t* ids, float* weights) {
  Scores scores, selection;
  const std::int64_t count = args.experts;
  if (args.score == anychip::kSoftmaxScore)
    softmax(logits, scores.of, count);
  else
    each(logits, scores.of, count, [&](F v) { return args.score == anychip::kSigmoidScore ? rows::sigmoid(v) : v; });
  bool is_taken[anychip::kExpertsMax] = {}, is_strange = false;
  for (std::int64_t i = 0; i < count; ++i) {
    selection.of[i] = scores.of[i] + (args.selection_bias == nullptr ? 0.0f : args.selection_bias[i]);
    is_strange |= !(logits[i] - logits[i] == 0.0f);
  }
  if (is_strange) {  // so that what follows of the row is no number either
    for (std::int64_t i = 0; i < args.chosen; ++i) ids[i] = static_cast<std::int32_t>(i), weights[i] = __builtin_nanf("");
    return;
  }
  if (args.groups > 1) take_other_groups(args, selection.of, is_taken);
  for (std::int64_t i = 0; i < args.chosen; ++i) {
    const std::int64_t best = larger<std::int64_t>(0, best_of(selection.of, is_taken, 0, count));
    is_taken[best] = true;
    ids[i] = static_cast<std::int32_t>(best);
    weights[i] = scores.of[best];
  }
  renormalise(args, weights);
}

inline void route(const RouteArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t columns = args.chosen + args.shared;
  for (std::int64_t row = begin; row < end; ++row) {
    std::int32_t* ids = args.ids + row * columns;
    float* weights = args.weights + row * columns;
    route_row(args, args.logits + row * args.experts, ids, weights);
    float lanes[W] = {1.0f};
    if (args.shares != nullptr) Simd::store(lanes, rows::sigmoid(Simd::set(args.shares[row])));
    for (std::int64_t i = 0; i < args.shared; ++i) {
      ids[args.chosen + i] = static_cast<std::int32_t>(args.experts + i);
      weights[args.chosen + i] = lanes[0];
    }
  }
}

constexpr anychip::RoutingKernels kKernels = {route};

}  // namespace routing
}  // namespace
