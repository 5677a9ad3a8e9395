// Cuts a step's attention into tiles that threads take one after the other. Knows no instruction set.
#include <algorithm>

#include "attention_work.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 18;
// what a thread takes at a time is at most a fourth of its share
constexpr std::int64_t kTurns = 4;

std::int64_t first_seen(const AttentionArgs& args, std::int64_t position) {
  return args.window > 0 ? std::max<std::int64_t>(0, position - args.window + 1) : 0;
}

// Rows become parts.
class Cut {
 public:
  explicit Cut(AttentionWork& work) : work_(work), args_(work.args), parts_(work.scratch.parts) { parts_.clear(); }

  void run() {
    for (std::int32_t row = args_.rows; row-- > 0;) {
      const std::int64_t length = args_.query_start[row + 1] - args_.query_start[row];
      if (length == 1)
        cut_decode_row(row);
      else if (length > 1)
        cut_prefill_row(row);
    }
    work_.partials = work_.scratch.partials.at_least(partials_used_);
    auto& counters = work_.scratch.counters;
    if (std::int64_t(counters.size()) < counter_count_)
      counters = std::vector<std::atomic<std::int32_t>>(2 * counter_count_);
    for (std::int64_t i = 0; i < counter_count_; ++i) counters[i].store(0, std::memory_order_relaxed);
  }

 private:
  void cut_decode_row(std::int32_t row) {
    const std::int64_t context = args_.context_lens[row], position = context - 1;
    const std::int64_t low = first_seen(args_, position) / kSpan * kSpan;
    const std::int64_t spans = (context - low + kSpan - 1) / kSpan;
    const std::int64_t floats = partial_floats(args_) * args_.heads;
    const std::int64_t first = partials_used_;
    for (std::int64_t span = 0; span < spans; ++span) {
      const std::int64_t begin = low + span * kSpan;
      Part part{row, args_.query_start[row], 1, position, begin, std::min(begin + kSpan, context), spans};
      part.first = first;
      part.partials = first + span * floats;
      part.counter = counter_count_;
      parts_.push_back(part);
    }
    work_.pairs += context - low;
    if (spans > 1) {
      partials_used_ += spans * floats;
      counter_count_ += args_.kv_heads;
    }
  }

  void cut_prefill_row(std::int32_t row) {
    const std::int64_t start = args_.query_start[row], length = args_.query_start[row + 1] - start;
    const std::int64_t first = args_.context_lens[row] - length;  // position of the first query
    const std::int64_t most = tile_tokens(args_.heads / args_.kv_heads);
    for (std::int64_t token = (length - 1) / most * most; token >= 0; token -= most) {  // the longest first
      const std::int64_t tokens = std::min(most, length - token), position = first + token;
      const std::int64_t begin = first_seen(args_, position) / kSpan * kSpan;
      parts_.push_back(Part{row, start + token, tokens, position, begin, position + tokens, 1});
      work_.pairs += tokens * (position + tokens - begin);
    }
  }

  AttentionWork& work_;
  const AttentionArgs& args_;
  std::vector<Part>& parts_;
  std::int64_t partials_used_ = 0;  // floats
  std::int64_t counter_count_ = 0;
};

// Some kv heads of a part.
void run_part(AttentionWork& work, const Part& part, std::int32_t kv_head, std::int32_t kv_heads, float* scratch) {
  const AttentionArgs& args = work.args;
  const std::int64_t floats = partial_floats(args), group = args.heads / args.kv_heads;
  Tile tile{&args,       part.row,      kv_head,        kv_heads,     part.token,
            part.tokens, part.position, part.key_begin, part.key_end, nullptr};
  if (part.spans > 1) tile.partial = work.partials + part.partials + kv_head * group * floats;
  work.kernels->attend[args.dtype](tile, scratch);
  if (part.spans == 1) return;
  for (; kv_heads > 0; ++tile.kv_head, --kv_heads) {
    // whoever finishes a head's last span merges all of them, in their order
    std::atomic<std::int32_t>& finished = work.scratch.counters[part.counter + tile.kv_head];
    if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < part.spans) continue;
    float* first = work.partials + part.first + tile.kv_head * group * floats;
    work.kernels->merge[args.dtype](tile, first, part.spans, floats * args.heads);
  }
}

void run_items(AttentionWork& work, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int32_t kv_heads = work.args.kv_heads;
  while (begin < end) {
    const Part& part = work.scratch.parts[begin / kv_heads];
    const std::int32_t kv_head = begin % kv_heads;
    const std::int64_t most = part.tokens == 1 ? kv_heads - kv_head : 1;
    const std::int64_t count = std::min(most, end - begin);
    run_part(work, part, kv_head, static_cast<std::int32_t>(count), scratch);
    begin += count;
  }
}

}  // namespace

AttentionWork::AttentionWork(const AttentionArgs& attention, AttentionScratch& kept)
    : args(attention), kernels(chosen_kernels()), scratch(kept) {
  Cut(*this).run();
  items = std::int64_t(scratch.parts.size()) * args.kv_heads;
  // all kv heads of the same keys lie side by side in memory, so a thread takes them together if there are enough
  grain = std::clamp<std::int64_t>(items / (kTurns * std::max(args.threads, 1)), 1, args.kv_heads);
}

std::int64_t AttentionWork::worthwhile_threads() const {
  const bool is_small = pairs * args.heads * args.head_dim < kWorthThreads;
  return is_small ? 1 : std::min<std::int64_t>(std::max(args.threads, 1), items);
}

void attention_in_team(AttentionWork& work, Team&) {
  thread_local Buffer scratch;
  float* own = scratch.at_least(scratch_floats(work.args));
  for (;;) {
    const std::int64_t begin = work.next.fetch_add(work.grain, std::memory_order_relaxed);
    if (begin >= work.items) return;
    run_items(work, begin, std::min(begin + work.grain, work.items), own);
  }
}

void attention(const AttentionArgs& args) {
  thread_local AttentionScratch scratch;
  AttentionWork work(args, scratch);
  if (work.items == 0) return;
  const auto run = [](void* data, Team& team) { attention_in_team(*static_cast<AttentionWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(work.worthwhile_threads()));
}

}  // namespace anychip
