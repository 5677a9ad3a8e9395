// The tables of kernels, one for each instruction set, and which of them runs here. Knows no kernel's work.
#pragma once

#include "attention.hpp"
#include "experts.hpp"
#include "recurrent.hpp"
#include "routing.hpp"
#include "rows.hpp"
#include "sampling.hpp"

namespace anychip {

struct Kernels {
  const char* name;
  // one tile, or up to kReaders of one token each that see the same keys, all of them
  void (*attend[kDTypes])(const Tile* tiles, std::int64_t count, float* scratch);
  // `count` partial results of each query head, those of one span beside each other, into `out`
  void (*merge[kDTypes])(const Tile& tile, float* partials, std::int64_t count, std::int64_t stride);
  RowKernels rows;
  SamplingKernels sampling;
  RecurrentKernels recurrent;
  ExpertKernels experts;
  RoutingKernels routing;
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();
const Kernels* avx512_bf16_kernels();

const Kernels* chosen_kernels();
// by name; false: not built in, or this processor lacks it
bool choose_kernels(const char* name);

}  // namespace anychip
