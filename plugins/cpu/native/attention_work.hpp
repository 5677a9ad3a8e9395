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

// What a thread takes at a time: a tile, and where its results go if its row's keys are cut into several spans.
struct Part {
  static constexpr std::int64_t kNone = -1;
  Tile tile;
  std::int64_t spans;             // into how many parts the row's keys are cut
  std::int64_t first_result = 0;  // of the row's first span: where its results lie, in floats
  std::int64_t result = 0;        // the same of this one's
  std::int64_t counter = 0;       // of the row's finished spans, one for each kv head
  // parts that see the same keys are worked on together: which one leads, the next one, and how many they are
  std::int64_t leader = 0, mate = kNone, mates = 1;
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
  std::vector<std::int64_t> first_parts;  // of each row with one token
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
  std::int64_t tile_rows = 0;  // the most that any tile has
  std::int64_t pairs = 0;      // of keys and tokens
  std::atomic<std::int64_t> next{0};
};

// All members call it with the same work; the result is complete when all have returned.
void attention_in_team(AttentionWork& work, Team& team);

}  // namespace anychip
