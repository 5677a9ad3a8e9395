// A step's attention cut into parts for the members of a team. Knows no instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "attention.hpp"
#include "dispatch.hpp"
#include "team.hpp"

namespace anychip {

// Tiles of the same keys for all kv heads; what a thread takes at a time is one of them or several.
struct Part {
  std::int32_t row;
  std::int64_t token, tokens, position, key_begin, key_end;
  std::int64_t spans;         // into how many parts the row's keys are cut
  std::int64_t partials = 0;  // where this part's results lie, in floats
  std::int64_t first = 0;     // where the row's first part's lie
  std::int64_t counter = 0;   // of finished parts
};

// Floats on whole lines of the cache; they are lost when it grows.
class Buffer {
 public:
  float* at_least(std::size_t floats) {
    if (floats > size_) {
      memory_.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64})));
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  struct Delete {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Delete> memory_;
  std::size_t size_ = 0;
};

// Memory that is kept from step to step.
struct AttentionScratch {
  std::vector<Part> parts;
  std::vector<std::atomic<std::int32_t>> counters;
  Buffer partials;
};

// Made by one thread before the others join in; only lengths and pages are read then, queries and keys may still come.
struct AttentionWork {
  AttentionWork(const AttentionArgs& args, AttentionScratch& scratch);

  std::int64_t worthwhile_threads() const;

  const AttentionArgs& args;
  const Kernels* kernels;
  AttentionScratch& scratch;
  float* partials;
  std::int64_t items = 0, grain = 1;  // an item is one kv head of one part
  std::int64_t pairs = 0;             // of keys and tokens
  std::atomic<std::int64_t> next{0};
};

// All members call it with the same work; the result is complete when all have returned.
void attention_in_team(AttentionWork& work, Team& team);

}  // namespace anychip
