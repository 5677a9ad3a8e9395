// The ops on one state per sequence, in slots: what they are called with. Knows no instruction set.
#pragma once

#include <cstdint>

#include "dtype.hpp"

namespace anychip {

// Which tokens and which slot each row has.
struct SlotRows {
  const std::int32_t* query_start;  // [rows + 1]
  const std::int64_t* slots;        // [rows], all different
  std::int64_t rows, slot_count;
};

constexpr std::int64_t kKernelMax = 16;
constexpr std::int64_t kConvolvedChannels = 256;  // that one thread works on at a time

// Strides are in elements; the last dimension of every tensor is contiguous.
struct ConvolveArgs {
  const void* x;       // [tokens, channels]
  const void* weight;  // [channels, taps + 1], contiguous
  const void* bias;    // [channels]; NULL: none
  void* out;           // [tokens, channels], contiguous
  float* history;      // [slots, taps, channels], contiguous but for the slots
  std::int64_t channels, taps, x_stride, slot_stride;
  SlotRows rows;
  std::int64_t threads, dtype;
};

constexpr std::int64_t kKeyDimMax = 256;

// Of q, k and v a token's heads lie side by side.
struct DeltaArgs {
  const void *q, *k;             // [tokens, key_heads, key_dim]
  const void* v;                 // [tokens, value_heads, value_dim]
  const void *a, *b;             // [tokens, value_heads]
  const float *a_log, *dt_bias;  // [value_heads]
  void* out;                     // [tokens, value_heads, value_dim], contiguous
  float* sums;                   // [slots, value_heads, key_dim, value_dim], contiguous but for the slots
  std::int64_t key_heads, value_heads, key_dim, value_dim;
  std::int64_t q_stride, k_stride, v_stride, a_stride, b_stride, slot_stride;
  SlotRows rows;
  double eps;
  std::int64_t threads, dtype;
};

// Parts of all rows that threads may work on at the same time, and how many elements each is about.
std::int64_t parts_of(const ConvolveArgs& args);
std::int64_t parts_of(const DeltaArgs& args);
std::int64_t elements_of(const ConvolveArgs& args);
std::int64_t elements_of(const DeltaArgs& args);

// One instruction set's kernels, each for some of the parts.
struct RecurrentKernels {
  void (*convolve[kDTypes])(const ConvolveArgs& args, std::int64_t begin, std::int64_t end);
  void (*delta[kDTypes])(const DeltaArgs& args, std::int64_t begin, std::int64_t end);
};

// false: a slot is out of range; nothing was written
bool convolve(const ConvolveArgs& args);
bool delta(const DeltaArgs& args);

}  // namespace anychip
