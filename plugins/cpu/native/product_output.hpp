// A row of a tile's sums becomes outputs. Knows Simd; knows no weight.
//
// Include after simd_*.hpp.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "products.hpp"

namespace {
namespace products {

template <class T>
void write(void* out, std::int64_t at, const float* sums, std::int64_t count) {
  T padded[anychip::kTileOutputs];
  T* to = static_cast<T*>(out) + at;
  T* first = count == anychip::kTileOutputs ? to : padded;
  for (int i = 0; i < anychip::kTileOutputs; i += Simd::kWidth) Simd::store(first + i, Simd::load(sums + i));
  if (first == padded) std::memcpy(to, padded, count * sizeof(T));
}

// `output` is the tile's first. The bias is added to `sums`.
inline void write_row(const anychip::ProductArgs& args, std::int64_t row, std::int64_t output, float* sums) {
  const std::int64_t count = smaller(anychip::kTileOutputs, args.outputs - output), at = row * args.outputs + output;
  if (args.bias != nullptr)
    for (int i = 0; i < anychip::kTileOutputs; i += Simd::kWidth)
      Simd::store(sums + i, Simd::load(sums + i) + Simd::load(args.bias + output + i));
  if (args.out_dtype == anychip::kFloat32)
    write<float>(args.out, at, sums, count);
  else if (args.out_dtype == anychip::kBFloat16)
    write<bf16>(args.out, at, sums, count);
  else
    write<half>(args.out, at, sums, count);
}

}  // namespace products
}  // namespace
