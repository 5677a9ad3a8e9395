// Shares rows among threads where that is worth it. Knows no instruction set.
#include "rows.hpp"

#include <algorithm>
#include <atomic>

#include "dispatch.hpp"
#include "threads.hpp"

namespace anychip {

namespace {

// below so many elements a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 16;
// and what a thread takes at a time
constexpr std::int64_t kGrain = 1 << 13;

template <class Args>
struct Share {
  const Args* args;
  void (*kernel)(const Args&, std::int64_t, std::int64_t);
  std::int64_t rows, grain;
  std::atomic<std::int64_t> next{0};
};

template <class Args>
void work(void* data) {
  auto& share = *static_cast<Share<Args>*>(data);
  for (;;) {
    const std::int64_t begin = share.next.fetch_add(share.grain, std::memory_order_relaxed);
    if (begin >= share.rows) return;
    share.kernel(*share.args, begin, std::min(begin + share.grain, share.rows));
  }
}

template <class Args>
void share_rows(const Args& args, void (*kernel)(const Args&, std::int64_t, std::int64_t), std::int64_t rows,
                std::int64_t row_elements) {
  if (args.threads < 2 || rows < 2 || rows * row_elements < kWorthThreads) return kernel(args, 0, rows);
  Share<Args> share{&args, kernel, rows, std::max<std::int64_t>(1, kGrain / row_elements)};
  parallel(work<Args>, &share, static_cast<unsigned>(std::min<std::int64_t>(args.threads, rows)));
}

}  // namespace

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

}  // namespace anychip
