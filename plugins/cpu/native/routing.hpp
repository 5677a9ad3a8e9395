// Which experts a token goes to: what choosing them is called with. Knows no instruction set.
#pragma once

#include <cstdint>

namespace anychip {

enum Score : std::int32_t { kSoftmaxScore = 0, kSigmoidScore = 1, kLogitScore = 2 };
enum GroupScore : std::int32_t { kLargest = 0, kTwoLargest = 1 };
enum Renormalise : std::int32_t { kAsScored = 0, kBySum = 1, kByFlooredSum = 2, kBySoftmax = 3 };

constexpr std::int64_t kExpertsMax = 1024;

struct RouteArgs {
  const float* logits;          // [rows, experts]
  const float* selection_bias;  // [experts], added for the choice alone; NULL: none
  const float* shares;          // [rows]: whose sigmoid shared experts weigh; NULL: they weigh 1
  std::int32_t* ids;            // [rows, chosen + shared]
  float* weights;               // [rows, chosen + shared]
  std::int64_t rows, experts, chosen, groups, top_groups, shared, threads;
  double floor, factor;
  std::int32_t score, group_score, renormalise, unused;
};

struct RoutingKernels {
  void (*route)(const RouteArgs& args, std::int64_t begin, std::int64_t end);
};

void route(const RouteArgs& args);

}  // namespace anychip
