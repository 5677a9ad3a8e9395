// Matrix products with packed weights: what they are called with, and how weights and activations lie. Knows no
// instruction set.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "dtype.hpp"
#include "team.hpp"

namespace anychip {

// Activations that are rounded together: a part of a row; and outputs that lie side by side in a packed weight.
constexpr std::int64_t kPart = 32;
constexpr std::int64_t kTileOutputs = 32;
// `bits` of weights that are no integers: as they are, and packed without loss
constexpr std::int32_t kDenseBits = 16, kCompactBits = 12;
// of those that are floats
constexpr std::int32_t kSingleBits = 32;

// Weights are unsigned, so that one instruction multiplies them with signed activations: what is 128 or 8 too much is
// taken off again with the sum of a part's activations.
//
// 8 bits: [tile][part][8][32 outputs][4 values]; 4 bits: [tile][part][4][32 outputs][4 bytes], in whose lower halves
// are values 0 .. 15 of the part and in whose upper ones 16 .. 31. Scales: [tile][groups][32 outputs], 8 bits float,
// 4 bits half. What is padded is zero times a scale of zero.
//
// 16 bits: bfloat16 without a scale, as pairs of neighbours: [tile][pairs][32 outputs][2 values]. 12 bits: the same, as
// compact.hpp says. 32 bits: floats without a scale: [tile][in][32 outputs].
struct ProductArgs {
  const void* x;  // [rows, in]
  const std::uint8_t* weight;
  const void* scale;
  const std::uint16_t* minimum;  // NULL: level 8 is zero
  const float* bias;             // [tiles * 32]; NULL: none
  void* out;                     // [rows, outputs], contiguous
  std::int64_t rows, in, outputs, x_stride, groups, threads;
  std::int32_t x_dtype, out_dtype, bits;
};

// Rows are cut into blocks of nearly the same size; of a block's rows what is multiplied with the same weights lies
// together.
struct RowBlocks {
  std::int64_t rows, blocks;

  std::int64_t first_row(std::int64_t block) const {
    const std::int64_t least = rows / blocks, more = rows % blocks;
    return block * least + (block < more ? block : more);
  }
  std::int64_t size(std::int64_t block) const { return first_row(block + 1) - first_row(block); }
};

// Activations rounded in parts of 32. A block is [parts][its rows][32 levels], and [parts][its rows] of the others.
struct RoundedRows : RowBlocks {
  std::int8_t* levels;
  float* scale;        // not a number where the part holds one that is none, or infinite
  std::int32_t* less;  // what each sum of levels * weights begins with
  float* sum;          // of levels * scale: what a minimum is multiplied with
  std::int64_t parts;
};

// A pair of weights of each of a tile's outputs.
struct alignas(64) UnpackedPair {
  std::uint32_t outputs[kTileOutputs];
};

// Activations for weights of bfloat16, not rounded. A block is [pairs][its rows]. A pair is 32 bits, the earlier value
// in the lower half; an odd value is paired with zero. For weights that are floats a single one takes a pair's place.
struct DenseRows : RowBlocks {
  std::uint32_t* panels;
  std::int64_t pairs;
  UnpackedPair* unpacked;  // room for a tile, for each member; NULL: nothing is to be unpacked

  std::uint32_t* panel(std::int64_t block) const { return panels + first_row(block) * pairs; }
};

struct DenseKernels;

struct ProductKernels {
  const char* name;
  std::int64_t rows_at_once;  // of a block, at most
  // these parts of all rows
  void (*round[kDTypes])(const ProductArgs& args, const RoundedRows& rounded, std::int64_t first_part,
                         std::int64_t last_part);
  // these blocks for one tile of outputs; `next`: the tile that follows on this thread
  void (*multiply)(const ProductArgs& args, const RoundedRows& rounded, std::int64_t first_block,
                   std::int64_t last_block, std::int64_t tile, std::int64_t next);
};

const ProductKernels* portable_products();
const ProductKernels* avx2_products();
const ProductKernels* avx512_vnni_products();
// those that fit the chosen kernels
const ProductKernels* chosen_products();
const DenseKernels* chosen_dense();
const DenseKernels* chosen_singles();

// Where rounded or arranged activations lie; kept from one product to the next.
class ProductScratch {
 public:
  // throws std::bad_alloc
  RoundedRows take(const ProductArgs& args, std::int64_t rows_at_once);
  DenseRows take_dense(const ProductArgs& args, std::int64_t rows_at_once);
  // so that so many members can unpack any weight that was met before, and nothing moves while they do
  void make_room(std::int64_t members);

 private:
  std::vector<std::int8_t> levels_;
  std::vector<float> numbers_;
  std::vector<std::uint32_t> panels_;
  std::vector<UnpackedPair> unpacked_;
  std::int64_t unpacked_pairs_ = 0;  // the most of any weight
};

// One product that a team shares.
struct ProductWork {
  // throws std::bad_alloc
  ProductWork(const ProductArgs& args, ProductScratch& scratch);

  const ProductArgs args;
  const ProductKernels* kernels;
  RoundedRows rounded;
  const DenseKernels* dense;  // with weights that are no integers, else NULL
  DenseRows rows;
  std::int64_t tiles;
  std::atomic<std::int64_t> next_tile{0};
};

// All members call it with the same work. Who reads the result waits for the team first.
void product_in_team(ProductWork& work, Team& team);

// throws std::bad_alloc
void product(const ProductArgs& args);

}  // namespace anychip
