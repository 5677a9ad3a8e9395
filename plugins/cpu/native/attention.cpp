// Cuts a step's attention into tiles that threads take one after the other. Knows no instruction set.
#include "attention.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "dispatch.hpp"
#include "threads.hpp"

namespace anychip {

namespace {

// Tiles of the same keys for all kv heads; what a thread takes at a time is one of them or several.
struct Part {
  std::int32_t row;
  std::int64_t token, tokens, position, key_begin, key_end;
  std::int64_t spans;         // into how many parts the row's keys are cut
  std::int64_t partials = 0;  // where this part's results lie, in floats
  std::int64_t first = 0;     // where the row's first part's lie
  std::int64_t counter = 0;   // of finished parts
};

class Buffer {
 public:
  float* at_least(std::size_t floats) {
    if (floats > size_) {
      memory_.reset(static_cast<float*>(::operator new[](floats * sizeof(float), std::align_val_t{64})));
      size_ = floats;
    }
    return memory_.get();
  }

 private:
  struct Delete {
    void operator()(float* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<float, Delete> memory_;
  std::size_t size_ = 0;
};

struct Step {
  const AttentionArgs* args;
  const Kernels* kernels;
  std::vector<Part> parts;
  std::vector<std::atomic<std::int32_t>> counters;
  Buffer partials;
  std::int64_t partials_used = 0;  // floats
  std::int64_t counter_count = 0;
  std::int64_t work = 0;  // (key, token) pairs
  std::atomic<std::int64_t> next{0};
  std::int64_t items = 0, grain = 1;
};

std::int64_t first_seen(const AttentionArgs& args, std::int64_t position) {
  return args.window > 0 ? std::max<std::int64_t>(0, position - args.window + 1) : 0;
}

void cut_decode_row(Step& step, std::int32_t row) {
  const AttentionArgs& args = *step.args;
  const std::int64_t context = args.context_lens[row], position = context - 1;
  const std::int64_t low = first_seen(args, position) / kSpan * kSpan;
  const std::int64_t spans = (context - low + kSpan - 1) / kSpan;
  const std::int64_t floats = partial_floats(args) * args.heads;
  const std::int64_t first = step.partials_used;
  for (std::int64_t span = 0; span < spans; ++span) {
    const std::int64_t begin = low + span * kSpan;
    Part part{row, args.query_start[row], 1, position, begin, std::min(begin + kSpan, context), spans};
    part.first = first;
    part.partials = first + span * floats;
    part.counter = step.counter_count;
    step.parts.push_back(part);
  }
  step.work += context - low;
  if (spans > 1) {
    step.partials_used += spans * floats;
    step.counter_count += args.kv_heads;
  }
}

void cut_prefill_row(Step& step, std::int32_t row) {
  const AttentionArgs& args = *step.args;
  const std::int64_t start = args.query_start[row], length = args.query_start[row + 1] - start;
  const std::int64_t first = args.context_lens[row] - length;  // position of the first query
  const std::int64_t most = tile_tokens(args.heads / args.kv_heads);
  for (std::int64_t token = (length - 1) / most * most; token >= 0; token -= most) {  // the longest first
    const std::int64_t tokens = std::min(most, length - token), position = first + token;
    const std::int64_t begin = first_seen(args, position) / kSpan * kSpan;
    step.parts.push_back(Part{row, start + token, tokens, position, begin, position + tokens, 1});
    step.work += tokens * (position + tokens - begin);
  }
}

void cut(Step& step) {
  const AttentionArgs& args = *step.args;
  step.parts.clear();
  step.partials_used = step.counter_count = step.work = 0;
  for (std::int32_t row = args.rows; row-- > 0;) {
    const std::int64_t length = args.query_start[row + 1] - args.query_start[row];
    if (length == 1)
      cut_decode_row(step, row);
    else if (length > 1)
      cut_prefill_row(step, row);
  }
  step.partials.at_least(step.partials_used);
  if (std::int64_t(step.counters.size()) < step.counter_count)
    step.counters = std::vector<std::atomic<std::int32_t>>(2 * step.counter_count);
  for (std::int64_t i = 0; i < step.counter_count; ++i) step.counters[i].store(0, std::memory_order_relaxed);
}

// Some kv heads of a part.
void run_part(Step& step, const Part& part, std::int32_t kv_head, std::int32_t kv_heads, float* scratch) {
  const AttentionArgs& args = *step.args;
  const std::int64_t floats = partial_floats(args), group = args.heads / args.kv_heads;
  float* partials = step.partials.at_least(0);
  Tile tile{&args,       part.row,      kv_head,        kv_heads,     part.token,
            part.tokens, part.position, part.key_begin, part.key_end, nullptr};
  if (part.spans > 1) tile.partial = partials + part.partials + kv_head * group * floats;
  step.kernels->attend[args.dtype](tile, scratch);
  if (part.spans == 1) return;
  for (; kv_heads > 0; ++tile.kv_head, --kv_heads) {
    // whoever finishes a head's last span merges all of them, in their order
    if (step.counters[part.counter + tile.kv_head].fetch_add(1, std::memory_order_acq_rel) + 1 < part.spans) continue;
    float* first = partials + part.first + tile.kv_head * group * floats;
    step.kernels->merge[args.dtype](tile, first, part.spans, floats * args.heads);
  }
}

// An item is one kv head of one part.
void run_items(Step& step, std::int64_t begin, std::int64_t end, float* scratch) {
  const std::int32_t kv_heads = step.args->kv_heads;
  while (begin < end) {
    const Part& part = step.parts[begin / kv_heads];
    const std::int32_t kv_head = begin % kv_heads;
    const std::int64_t most = part.tokens == 1 ? kv_heads - kv_head : 1;
    const std::int64_t count = std::min(most, end - begin);
    run_part(step, part, kv_head, static_cast<std::int32_t>(count), scratch);
    begin += count;
  }
}

void work(void* data) {
  Step& step = *static_cast<Step*>(data);
  thread_local Buffer scratch;
  float* own = nullptr;
  for (;;) {
    const std::int64_t begin = step.next.fetch_add(step.grain, std::memory_order_relaxed);
    if (begin >= step.items) return;
    if (own == nullptr) own = scratch.at_least(scratch_floats(*step.args));
    run_items(step, begin, std::min(begin + step.grain, step.items), own);
  }
}

}  // namespace

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 18;

void attention(const AttentionArgs& args) {
  thread_local Step step;
  step.args = &args;
  step.kernels = chosen_kernels();
  cut(step);
  step.items = std::int64_t(step.parts.size()) * args.kv_heads;
  if (step.items == 0) return;
  const bool is_small = step.work * args.heads * args.head_dim < kWorthThreads;
  const std::int64_t threads = is_small ? 1 : std::min<std::int64_t>(std::max(args.threads, 1), step.items);
  // all kv heads of the same keys lie side by side in memory, so a thread takes them together if there are enough
  step.grain = std::clamp<std::int64_t>(step.items / (4 * threads), 1, args.kv_heads);
  step.next.store(0, std::memory_order_relaxed);
  parallel(work, &step, static_cast<unsigned>(threads));
}

}  // namespace anychip
