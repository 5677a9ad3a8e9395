// Shares rows among threads where that is worth it. Knows no instruction set.
#include "rows.hpp"

#include "dispatch.hpp"
#include "share.hpp"

namespace anychip {

void norm(const NormArgs& args) { share_rows(args, chosen_kernels()->rows.norm[args.dtype], args.rows, args.dim); }

bool heads(const HeadsArgs& args) {
  std::int64_t heads = 0;
  bool is_turned = false, is_cached = false;
  for (const HeadsPart& part : args.parts) {
    heads += part.heads;
    is_turned |= part.heads > 0 && part.is_turned;
    is_cached |= part.heads > 0 && part.is_cached;
  }
  for (std::int64_t token = 0; token < args.tokens; ++token) {
    if (is_turned && (args.positions[token] < 0 || args.positions[token] >= args.places)) return false;
    if (is_cached && (args.slots[token] < 0 || args.slots[token] >= args.slot_count)) return false;
  }
  share_rows(args, chosen_kernels()->rows.heads[args.dtype], args.tokens, heads * args.head_dim);
  return true;
}

void gated(const GatedArgs& args) { share_rows(args, chosen_kernels()->rows.gated[args.dtype], args.rows, args.dim); }

void argmax(const ArgmaxArgs& args) { share_rows(args, chosen_kernels()->rows.argmax, args.rows, args.vocab); }

void head_product(const HeadProductArgs& args) {
  const std::int64_t elements = (args.tokens + 1) / 2 * args.in * HeadProductArgs::kBlock;
  share_rows(args, chosen_kernels()->rows.head_product[args.dtype], args.heads * args.blocks(), elements);
}

}  // namespace anychip
