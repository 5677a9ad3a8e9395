// A model's step as a list of instructions that one team works through. Knows no instruction set.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention_work.hpp"
#include "experts.hpp"
#include "products.hpp"
#include "recurrent.hpp"
#include "routing.hpp"
#include "rows.hpp"

namespace anychip {

// Rows of a table: by token ids, or by the numbers of those that become logits.
struct GatherArgs {
  const std::int64_t* numbers;
  const void* table;  // [limit, ...]
  void* out;          // [rows, row_bytes], contiguous
  std::int64_t limit, table_stride_bytes, row_bytes;
};

enum InstructionKind : std::int32_t {
  kGather, kNorm, kMultiply, kHeads, kAttend, kGate, kRoute, kMix, kConvolve, kDelta, kKinds
};

// All but what a step brings, which is zero here.
struct Instruction {
  std::int32_t kind;
  std::int32_t is_selected;  // works on the rows that become logits, else on all tokens
  std::int32_t group;        // of states: whose slots and pages it reads
  std::int32_t unused;
  union {
    GatherArgs gather;
    NormArgs norm;
    ProductArgs product;  // the one without `out` gives the logits
    HeadsArgs heads;
    AttentionArgs attention;
    GatedArgs gated;
    RouteArgs route;
    ExpertsArgs experts;
    ConvolveArgs convolve;
    DeltaArgs delta;
  };
};

// Where a step's tokens lie in one group of states.
struct GroupArgs {
  const std::int64_t* slots;       // [tokens], or of a group that keeps one state per sequence [rows]
  const std::int32_t* page_table;  // [rows, pages_max]; NULL: the group keeps no pages
  std::int64_t pages_max;
};

struct StepArgs {
  const std::int64_t *token_ids, *positions;  // [tokens]
  const std::int64_t* logit_rows;             // [logits]
  const std::int32_t* query_start;            // [rows + 1]
  const std::int32_t* context_lens;           // [rows]
  const GroupArgs* groups;                    // [group_count]
  void* out;                                  // the logits, [logits or tokens, outputs]
  double* seconds;                            // [kKinds], of each kind of instruction, added; NULL: untimed
  std::int64_t tokens, logits, rows, page_size, threads, group_count;
};

// What becomes of one instruction.
class Stage {
 public:
  virtual ~Stage() = default;
  // by one thread, while others may still be at the stage before
  virtual void begin(const StepArgs& step) = 0;
  // by all members of the team, behind `begin`
  virtual void run(Team& team) = 0;
};

// One step at a time; others wait.
class Program {
 public:
  // tokens: the most of one step. Throws std::bad_alloc
  Program(const Instruction* instructions, std::int64_t count, std::int64_t tokens);

  // Throws std::bad_alloc, and std::out_of_range before anything is written
  void run(const StepArgs& step);

 private:
  void add(const Instruction& instruction, std::int64_t tokens);
  void limit(const HeadsArgs& args, std::int32_t group);
  static void limit_slots(std::vector<std::int64_t>& limits, std::int32_t group, std::int64_t slots);
  static bool fits(const StepArgs& step, const std::vector<std::int64_t>& limits, bool is_paged);
  template <class Args>
  void add_recurrent(const Args& args, std::int32_t group);
  void check(const StepArgs& step) const;

  std::mutex mutex_;
  ProductScratch products_;
  // a stage is begun while the one before still runs: neighbours have one each
  AttentionScratch attention_[2];
  ExpertScratch experts_[2];
  std::size_t attention_turn_ = 0, experts_turn_ = 0;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<std::int32_t> kinds_;  // of the stages
  std::vector<Stage*> attention_stages_;
  std::int64_t vocabulary_, positions_;  // what a step's numbers must be below
  std::vector<std::int64_t> slots_;      // the same of each group's where tokens lie; kUnread: no instruction reads it
  std::vector<std::int64_t> row_slots_;  // the same of each group's that rows have
};

}  // namespace anychip
