// Mixtures of experts: what they are called with, and what a step of one needs. Knows no instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dtype.hpp"
#include "products.hpp"
#include "team.hpp"

namespace anychip {

enum Activation : std::int32_t { kGatedSilu = 0, kGatedGelu = 1, kGatedClamped = 2 };

// An expert's weight, packed by itself; `bits` may differ from one to the next where the numbers are of bfloat16.
struct ExpertSlice {
  const std::uint8_t* weight;
  std::int64_t bits;
};

// What all experts multiply with at one place. The rest of it lies expert by expert, padded to whole tiles; those of gate
// and up are padded each.
struct ExpertMatrices {
  const ExpertSlice* slices;     // [experts]
  const void* scale;             // NULL: none
  const std::uint16_t* minimum;  // NULL: none
  const float* bias;             // NULL: none
  std::int64_t groups;
};

struct ExpertsArgs {
  const void* x;            // [tokens, hidden]
  const std::int32_t* ids;  // [tokens, columns]; those below `first` or not below first + experts add nothing
  const float* weights;     // [tokens, columns]
  void* out;                // [tokens, hidden], contiguous
  ExpertMatrices gate_up;   // [2 * inner, hidden]: gate rows, then up rows
  ExpertMatrices down;      // [hidden, inner]
  std::int64_t tokens, columns, hidden, inner, experts, first, x_stride, threads;
  std::int32_t dtype, activation, is_on_input, unused;
};

// One instruction set's kernels for what is beside the products.
struct ExpertKernels {
  // sums [rows, 2 tiles] of gate and up become `count` elements of each row of `out`, whose rows are `stride` apart
  void (*activate[kDTypes])(const float* sums, std::int64_t rows, std::int64_t count, std::int32_t activation,
                            void* out, std::int64_t stride);
  // a row of sums [2 tiles] times its weight, plus the bias of gate and of up
  void (*weigh)(float* sums, float weight, const float* gate_bias, const float* up_bias);
  // elements first .. last of a row: the sum of its columns' `parts` * weights in their order; a part of NULL adds nothing
  void (*combine[kDTypes])(const float* const* parts, const float* weights, std::int64_t columns, std::int64_t first,
                           std::int64_t last, void* out);
};

// Rows of one expert that lie side by side when they are sorted by experts.
struct Segment {
  std::int64_t expert, first, rows;
};

// What one of the two products multiplies, and who does it.
struct ExpertProduct {
  ExpertMatrices matrices;
  const DenseKernels* dense;  // NULL: `integers` multiply
  const ProductKernels* integers;
  DenseRows rows;
  RoundedRows rounded;
  std::int64_t in, tiles;
  std::int32_t bits, dtype;
};

// Where intermediate results lie; kept from one step to the next.
struct ExpertScratch {
  ProductScratch gate_up, down;
  std::vector<std::int64_t> starts;      // [experts + 1]
  std::vector<std::int32_t> order;       // which of [tokens, columns] each sorted row is
  std::vector<const float*> parts;       // [tokens, columns]: where its product lies
  std::vector<Segment> segments, blocks;
  std::vector<std::uint8_t> gathered;    // [members] blocks of rows
  std::vector<float> sums;               // [members, rows of a segment, 2 tiles]
  std::vector<std::uint8_t> inner;       // [sorted rows, inner]
  std::vector<float> outs;               // [sorted rows, hidden]

  // so that so many members can work at once. Throws std::bad_alloc
  void make_room(std::int64_t members);

  std::int64_t member_bytes = 0;  // the most of any mixture
};

// One step's work, which a team shares; some tokens after the others where they are many.
struct ExpertWork {
  // throws std::bad_alloc
  ExpertWork(const ExpertsArgs& args, ExpertScratch& scratch);

  const ExpertsArgs args;
  ExpertScratch& scratch;
  ExpertProduct gate_up, down;
  std::int64_t tokens_at_once, first_token, tokens;  // that are worked on now
  alignas(64) std::atomic<std::int64_t> next{0};
};

// All members call it with the same work. Who reads the result waits for the team first.
void experts_in_team(ExpertWork& work, Team& team);

// throws std::bad_alloc
void experts(const ExpertsArgs& args);

const DenseKernels* portable_singles();
const DenseKernels* avx2_singles();
const DenseKernels* avx512_singles();
const DenseKernels* amx_bf16_dense();
// for so many inputs: by the processor's matrix tiles where it has any
const DenseKernels* chosen_expert_dense(std::int64_t in);
// false: not even then
void use_tiles(bool is_used);

}  // namespace anychip
