// The ops that choose tokens: what they are called with. Knows no instruction set.
#pragma once

#include <cstdint>

namespace anychip {

struct SampleArgs {
  const float* logits;         // [rows, vocab]
  const float* temperature;    // [rows], as are all up to the ids; above 0
  const std::int64_t* top_k;   // 0: off
  const float* top_p;          // 1: off
  const float* min_p;          // 0: off
  const double* uniform;       // in [0, 1)
  std::int64_t* ids;           // negative where rounding would decide, or a logit is not a number
  std::int64_t rows, vocab, stride, threads;
};

// The ids of a row are [length], -1 behind their end.
struct PenaltyArgs {
  float* logits;             // [.., vocab]
  const std::int64_t* rows;  // [count], of the logits
  const std::int64_t* prompt_ids;
  const std::int64_t* output_ids;
  const float* repetition;  // [count], as are the others; 1: off
  const float* presence;    // 0: off
  const float* frequency;   // 0: off
  std::int64_t count, vocab, stride, prompt_length, output_length;
};

// so many logits have one maximum
constexpr std::int64_t kStretch = 64;

// How logits become weights, the largest one's being 1.
struct Scale {
  double largest, inverse_temperature;
};

// One instruction set's kernels.
struct SamplingKernels {
  // the largest of each kStretch logits; false: one is not a number
  bool (*maxima)(const float* logits, std::int64_t count, float* out);
  // e^((logit - largest) / temperature), to 12 digits
  void (*weights)(const float* logits, std::int64_t count, const Scale& scale, double* out);
  double (*total_weight)(const float* logits, std::int64_t count, const Scale& scale);
};

void sample(const SampleArgs& args);
// false: an id is not in the vocabulary; nothing was written
bool penalise(const PenaltyArgs& args);

}  // namespace anychip
