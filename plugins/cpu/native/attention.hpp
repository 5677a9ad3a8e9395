// What the attention kernels are called with. Knows no instruction set.
#pragma once

#include <cstdint>

#include "dtype.hpp"

namespace anychip {

// One step's attention. Strides are in elements; the last dimension of every tensor is contiguous.
struct AttentionArgs {
  const void* q;  // [tokens, heads, head_dim]
  const void* k;  // [pages, page_size, kv_heads, head_dim]
  const void* v;  // of each head, its first value_dim elements
  void* out;      // [tokens, heads, value_dim], contiguous
  std::int64_t q_token_stride, q_head_stride;
  std::int64_t page_stride, slot_stride, head_stride;  // of both caches
  std::int64_t window;                                 // a query sees so many positions; 0: all
  double scale;
  double soft_cap;     // scores become soft_cap * tanh(score / soft_cap); 0: they stay
  std::int32_t dtype;  // DType
  std::int32_t heads, kv_heads, head_dim;
  // the step
  std::int32_t rows, page_size, pages_max, threads;
  const std::int32_t* query_start;   // [rows + 1]
  const std::int32_t* context_lens;  // [rows]
  const std::int32_t* page_table;    // [rows, pages_max]
  const float* sinks;  // [heads]: scores that weigh no value; NULL: there are none
  std::int64_t value_dim;
};

// Keys that are scored at a time, and keys whose softmax is computed from scratch before it is merged. Both start at
// multiples of themselves, whatever the row, the batch or the chunk: so a query's result depends on its position only.
constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kSpan = 256;
// Query heads that read one kv head together, of tokens of several rows where these see the same pages: as many as the
// widest vector has lanes.
constexpr std::int64_t kReaders = 16;
// Some query tokens of one row against some keys, for neighbouring kv heads and all query heads that read them. Several
// tokens have one kv head.
struct Tile {
  const AttentionArgs* args;
  std::int32_t row, kv_head, kv_heads;  // the first kv head, and how many
  std::int64_t token, tokens;  // the first query token in q, and how many
  std::int64_t position;       // of the first query token in its sequence
  std::int64_t key_begin, key_end;
  float* partial;  // NULL: the keys are all that the queries see, and `out` is written; else [kv_heads, group] of them
};

// A partial result: the sum of weighted values, then the largest score, then the sum of weights.
inline std::int64_t partial_floats(const AttentionArgs& args) { return args.value_dim + 2; }

// What tiles of `rows` (token, query head) pairs take.
inline std::int64_t scratch_floats(const AttentionArgs& args, std::int64_t rows) {
  constexpr std::int64_t kVector = 16;  // of the widest instruction set, in floats
  const std::int64_t padded = 2 * rows + kVector;  // a vector's lanes are not all used
  const std::int64_t each = args.head_dim + 2 * args.value_dim + 3 * kVector + 2 * kBlock;
  return padded * each + kBlock * (args.head_dim + args.value_dim) + 16 * kVector;
}

void attention(const AttentionArgs& args);

}  // namespace anychip
