// Making seen tokens less likely, where they were seen. Knows no vocabulary's size but one mark for each token.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "sampling.hpp"

namespace anychip {

namespace {

bool are_ids(const std::int64_t* ids, std::int64_t count, std::int64_t vocab) {
  return std::all_of(ids, ids + count, [vocab](std::int64_t id) { return id < vocab; });
}

template <class Function>
void each_id(const std::int64_t* ids, std::int64_t length, Function function) {
  for (std::int64_t i = 0; i < length; ++i)
    if (ids[i] >= 0) function(ids[i]);
}

// `marks` are 0 for each token, before and after.
void penalise_row(const PenaltyArgs& args, std::int64_t index, std::int32_t* marks) {
  constexpr std::int32_t kDone = -1;
  float* logits = args.logits + args.rows[index] * args.stride;
  const std::int64_t* prompt = args.prompt_ids + index * args.prompt_length;
  const std::int64_t* output = args.output_ids + index * args.output_length;
  const float repetition = args.repetition[index], presence = args.presence[index], frequency = args.frequency[index];
  const auto repeated = [repetition](float x) { return x > 0.0f ? x / repetition : x * repetition; };
  each_id(output, args.output_length, [&](std::int64_t id) { ++marks[id]; });
  if (repetition != 1.0f)
    each_id(prompt, args.prompt_length, [&](std::int64_t id) {
      if (marks[id] == 0) {
        logits[id] = repeated(logits[id]);
        marks[id] = kDone;
      }
    });
  each_id(output, args.output_length, [&](std::int64_t id) {
    if (marks[id] > 0) {
      logits[id] = repeated(logits[id]) - frequency * static_cast<float>(marks[id]) - presence;
      marks[id] = kDone;
    }
  });
  each_id(output, args.output_length, [&](std::int64_t id) { marks[id] = 0; });
  if (repetition != 1.0f) each_id(prompt, args.prompt_length, [&](std::int64_t id) { marks[id] = 0; });
}

}  // namespace

bool penalise(const PenaltyArgs& args) {
  if (!are_ids(args.prompt_ids, args.count * args.prompt_length, args.vocab)) return false;
  if (!are_ids(args.output_ids, args.count * args.output_length, args.vocab)) return false;
  thread_local std::vector<std::int32_t> marks;
  if (static_cast<std::int64_t>(marks.size()) < args.vocab) marks.resize(args.vocab);
  for (std::int64_t index = 0; index < args.count; ++index) penalise_row(args, index, marks.data());
  return true;
}

}  // namespace anychip
