// Shares rows, heads and channels among threads. Knows no instruction set.
#include "recurrent.hpp"

#include "dispatch.hpp"
#include "share.hpp"

namespace anychip {

namespace {

bool are_slots(const SlotRows& rows) {
  for (std::int64_t row = 0; row < rows.rows; ++row)
    if (rows.slots[row] < 0 || rows.slots[row] >= rows.slot_count) return false;
  return true;
}

std::int64_t tokens_per_row(const SlotRows& rows) {
  return rows.rows ? std::max<std::int64_t>(1, rows.query_start[rows.rows] / rows.rows) : 1;
}

}  // namespace

std::int64_t parts_of(const ConvolveArgs& args) {
  return args.rows.rows * ((args.channels + kConvolvedChannels - 1) / kConvolvedChannels);
}
std::int64_t parts_of(const DeltaArgs& args) { return args.rows.rows * args.value_heads; }

std::int64_t elements_of(const ConvolveArgs& args) {
  return std::min(args.channels, kConvolvedChannels) * (args.taps + 1) * tokens_per_row(args.rows);
}
std::int64_t elements_of(const DeltaArgs& args) { return args.key_dim * args.value_dim * tokens_per_row(args.rows); }

bool convolve(const ConvolveArgs& args) {
  if (!are_slots(args.rows)) return false;
  share_rows(args, chosen_kernels()->recurrent.convolve[args.dtype], parts_of(args), elements_of(args));
  return true;
}

bool delta(const DeltaArgs& args) {
  if (!are_slots(args.rows)) return false;
  share_rows(args, chosen_kernels()->recurrent.delta[args.dtype], parts_of(args), elements_of(args));
  return true;
}

}  // namespace anychip
