// One of the products of all experts: what an expert's part of it is called with. Knows no thread and no instruction set.
#pragma once

#include <algorithm>

#include "compact.hpp"
#include "dense.hpp"
#include "experts.hpp"

namespace anychip {

inline std::int64_t ceil_div(std::int64_t value, std::int64_t by) { return (value + by - 1) / by; }

inline std::int64_t element_bytes(std::int32_t dtype) { return dtype == kFloat32 ? 4 : 2; }

inline bool is_dense(std::int32_t bits) { return bits == kDenseBits || bits == kCompactBits || bits == kSingleBits; }

inline std::int64_t scale_bytes(std::int32_t bits) { return bits == 8 ? sizeof(float) : sizeof(std::uint16_t); }

inline std::int64_t tile_bytes(std::int32_t bits, std::int64_t in) {
  if (bits == kCompactBits) return compact_tile_bytes(in);
  if (bits == kSingleBits) return in * kTileOutputs * sizeof(float);
  if (bits == kDenseBits) return ceil_div(in, 2) * kTileOutputs * sizeof(std::uint32_t);
  return ceil_div(in, kPart) * kPart * kTileOutputs * bits / 8;
}

inline std::int64_t rows_at_once(const ExpertProduct& product) {
  return product.dense != nullptr ? product.dense->rows_at_once : product.integers->rows_at_once;
}

inline ExpertProduct product_of(const ExpertsArgs& args, bool is_gate_up, std::int64_t rows, ProductScratch& scratch) {
  ExpertProduct made{};
  made.matrices = is_gate_up ? args.gate_up : args.down;
  made.in = is_gate_up ? args.hidden : args.inner;
  made.tiles = is_gate_up ? 2 * ceil_div(args.inner, kTileOutputs) : ceil_div(args.hidden, kTileOutputs);
  made.bits = static_cast<std::int32_t>(made.matrices.slices[0].bits);
  // what is rounded to whole numbers is not rounded before
  made.dtype = is_gate_up || is_dense(made.bits) ? args.dtype : static_cast<std::int32_t>(kFloat32);
  ProductArgs largest{};
  largest.rows = rows;
  largest.in = made.in;
  largest.threads = args.threads;
  largest.bits = made.bits == kDenseBits ? kCompactBits : made.bits;  // some experts may be compact
  if (is_dense(made.bits)) {
    made.dense = made.bits == kSingleBits ? chosen_singles() : chosen_expert_dense(made.in);
    made.rows = scratch.take_dense(largest, made.dense->rows_at_once);
  } else {
    made.integers = chosen_products();
    made.rounded = scratch.take(largest, made.integers->rows_at_once);
  }
  return made;
}

// The product of an expert with so many rows; what is written is float.
inline ProductArgs args_of(const ExpertProduct& product, Segment segment) {
  ProductArgs args{};
  const ExpertMatrices& all = product.matrices;
  const std::int64_t outputs = product.tiles * kTileOutputs, scales = outputs * all.groups * segment.expert;
  args.weight = all.slices[segment.expert].weight;
  args.bits = static_cast<std::int32_t>(all.slices[segment.expert].bits);
  if (all.scale != nullptr) args.scale = static_cast<const char*>(all.scale) + scales * scale_bytes(args.bits);
  if (all.minimum != nullptr) args.minimum = all.minimum + scales;
  if (all.bias != nullptr) args.bias = all.bias + outputs * segment.expert;
  args.groups = all.groups;
  args.rows = segment.rows;
  args.in = product.in;
  args.x_dtype = product.dtype;
  args.out_dtype = kFloat32;
  return args;
}

// The same without the tiles before.
inline ProductArgs from_tile(ProductArgs args, std::int64_t tile) {
  args.weight += tile * tile_bytes(args.bits, args.in);
  const std::int64_t scales = tile * args.groups * kTileOutputs;
  if (args.scale != nullptr) args.scale = static_cast<const char*>(args.scale) + scales * scale_bytes(args.bits);
  if (args.minimum != nullptr) args.minimum += scales;
  if (args.bias != nullptr) args.bias += tile * kTileOutputs;
  return args;
}

inline RowBlocks blocks_of(Segment segment, std::int64_t at_once) { return {segment.rows, ceil_div(segment.rows, at_once)}; }

inline DenseRows dense_rows(const ExpertProduct& product, Segment segment, unsigned rank) {
  DenseRows rows = product.rows;
  static_cast<RowBlocks&>(rows) = blocks_of(segment, product.dense->rows_at_once);
  rows.panels += segment.first * rows.pairs;
  if (rows.unpacked != nullptr) rows.unpacked += rank * rows.pairs;
  return rows;
}

inline RoundedRows rounded_rows(const ExpertProduct& product, Segment segment) {
  RoundedRows rows = product.rounded;
  static_cast<RowBlocks&>(rows) = blocks_of(segment, product.integers->rows_at_once);
  const std::int64_t numbers = segment.first * rows.parts;
  rows.levels += numbers * kPart;
  rows.scale += numbers, rows.less += numbers, rows.sum += numbers;
  return rows;
}

// Inputs `first` to `last`, in parts of 32, of a segment's rows, which lie at args.x.
inline void arrange(const ExpertProduct& product, const ProductArgs& args, Segment segment, std::int64_t first,
             std::int64_t last) {
  if (product.dense == nullptr)
    return product.integers->round[args.x_dtype](args, rounded_rows(product, segment), first,
                                                 std::min(last, product.rounded.parts));
  const std::int64_t units = product.bits == kSingleBits ? kPart : kPart / 2;
  product.dense->arrange(args, dense_rows(product, segment, 0), first * units,
                         std::min(last * units, product.rows.pairs));
}

inline void multiply(const ExpertProduct& product, const ProductArgs& args, Segment segment, std::int64_t tile,
              std::int64_t next_tile, unsigned rank) {
  const std::int64_t blocks = ceil_div(segment.rows, rows_at_once(product));
  if (product.dense != nullptr)
    product.dense->multiply(args, dense_rows(product, segment, rank), 0, blocks, tile, next_tile);
  else
    product.integers->multiply(args, rounded_rows(product, segment), 0, blocks, tile, next_tile);
}

}  // namespace anychip
