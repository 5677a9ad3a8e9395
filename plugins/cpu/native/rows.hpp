// The ops that work on each row, head or element by itself: what they are called with. Knows no instruction set.
#pragma once

#include <cstdint>

#include "dtype.hpp"

namespace anychip {

// Strides are in elements; the last dimension of every tensor is contiguous.
struct NormArgs {
  const void* x;         // [rows, dim]
  const void* residual;  // [rows, dim]; NULL: nothing is added
  const void* weight;    // [dim]; NULL: the sum is all that is wanted
  void* out;             // [rows, dim], contiguous
  void* total;           // x + residual, rounded: [rows, dim], contiguous
  std::int64_t rows, dim, x_stride, residual_stride;
  std::int64_t threads;
  double eps;
  double offset;  // what the weights are added to
  std::int64_t dtype;
};

// Heads of one kind: where they are, what is done to them, where they go.
struct HeadsPart {
  const void* from;      // [tokens, heads, head_dim]
  void* to;              // the same, or a cache [pages, page_size, heads, head_dim]
  const void* weight;    // of the normalisation, [head_dim]; NULL: none
  std::int64_t heads;    // 0: no such part
  std::int64_t from_token, from_head;
  std::int64_t to_page, to_token, to_head;  // in a cache, a token is a slot
  std::int32_t is_turned, is_cached;
};

constexpr int kParts = 3;
constexpr std::int64_t kHeadDimMax = 1024;

struct HeadsArgs {
  HeadsPart parts[kParts];
  const std::int64_t* positions;  // [tokens]
  const std::int64_t* slots;      // [tokens]
  const float* table;             // [places, rotary_dim]: cosines, then sines
  std::int64_t tokens, places, slot_count, threads;
  double eps;
  std::int32_t dtype, head_dim, rotary_dim, page_size;
};

enum Gate : std::int32_t { kSilu = 0, kGelu = 1, kSigmoid = 2, kGates = 3, kScale = kGates };

struct GatedArgs {
  const void* gate;  // [rows, dim]
  const void* up;    // not read by kScale
  void* out;  // contiguous
  std::int64_t rows, dim, gate_stride, up_stride, threads;
  std::int32_t dtype, kind;
  double factor;  // of kScale
};

// Each head's rows with a matrix of its own, behind which other numbers may follow. Matrices lie one behind the other.
struct HeadProductArgs {
  static constexpr std::int64_t kBlock = 128;  // outputs of a head that a thread takes at a time

  const void* x;       // [tokens, heads, in]
  const void* weight;  // [heads, in, outputs]; transposed: [heads, outputs, in]
  const void* tail;    // [tokens, heads, tail_dim]: is copied behind the outputs
  void* out;           // [tokens, heads, outputs + tail_dim]
  std::int64_t x_token, x_head, tail_token, tail_head, out_token, out_head;
  std::int64_t tokens, heads, in, outputs, tail_dim, threads;
  std::int32_t dtype, is_transposed;

  std::int64_t blocks() const { return (outputs + kBlock - 1) / kBlock; }
};

struct ArgmaxArgs {
  const float* logits;  // [rows, vocab]
  std::int64_t* ids;    // [rows]
  std::int64_t rows, vocab, stride, threads;
};

// One instruction set's kernels, each for some of the rows or tokens.
struct RowKernels {
  void (*norm[kDTypes])(const NormArgs& args, std::int64_t begin, std::int64_t end);
  void (*heads[kDTypes])(const HeadsArgs& args, std::int64_t begin, std::int64_t end);
  void (*gated[kDTypes])(const GatedArgs& args, std::int64_t begin, std::int64_t end);
  void (*argmax)(const ArgmaxArgs& args, std::int64_t begin, std::int64_t end);
  // some of heads * blocks
  void (*head_product[kDTypes])(const HeadProductArgs& args, std::int64_t begin, std::int64_t end);
};

void norm(const NormArgs& args);
// false: a position is not in the table, or a slot not in the cache; nothing was written
bool heads(const HeadsArgs& args);
void gated(const GatedArgs& args);
void argmax(const ArgmaxArgs& args);
void head_product(const HeadProductArgs& args);

}  // namespace anychip
