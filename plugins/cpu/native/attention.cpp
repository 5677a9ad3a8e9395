// Cuts a step's attention into parts that threads take one after the other. Knows no instruction set.
#include <algorithm>

#include "attention_work.hpp"

namespace anychip {

namespace {

// below so many products a second thread costs more than it saves
constexpr std::int64_t kWorthThreads = 1 << 18;
// parts of a step for each thread, so that none waits long for another
constexpr std::int64_t kTurns = 4;
// (token, query head) pairs of a tile: the more, the less often keys are packed, but fewer fit into a processor's cache
constexpr std::int64_t kTileRowsMin = 48, kTileRowsMax = 256;

// Rows become parts.
class Cut {
 public:
  explicit Cut(AttentionWork& work) : work_(work), args_(work.args), parts_(work.scratch.parts) {
    parts_.clear();
    group_ = args_.heads / args_.kv_heads;
    wanted_ = kTurns * std::max(args_.threads, 1);
    choose_sizes();
  }

  void run() {
    for (std::int32_t row = args_.rows; row-- > 0;) {
      if (length(row) == 1) cut_decode_row(row);
      if (length(row) > 1) cut_prefill_row(row);
    }
    work_.partials = work_.scratch.partials.at_least(results_);
    auto& counters = work_.scratch.counters;
    if (std::int64_t(counters.size()) < counters_) counters = std::vector<std::atomic<std::int32_t>>(2 * counters_);
    for (std::int64_t i = 0; i < counters_; ++i) counters[i].store(0, std::memory_order_relaxed);
  }

 private:
  std::int64_t length(std::int32_t row) const { return args_.query_start[row + 1] - args_.query_start[row]; }

  // The span in which the keys begin that a query sees.
  std::int64_t first_span(std::int64_t position) const {
    const std::int64_t first = args_.window > 0 ? std::max<std::int64_t>(0, position - args_.window + 1) : 0;
    return first / kSpan * kSpan;
  }

  std::int64_t spans_of(std::int32_t row) const {
    const std::int64_t context = args_.context_lens[row];
    return (context - first_span(context - 1) + kSpan - 1) / kSpan;
  }

  // All kv heads of a token lie side by side in memory, so a thread takes them together where there are enough spans.
  void choose_sizes() {
    std::int64_t spans = 0, tokens = 0;
    for (std::int32_t row = 0; row < args_.rows; ++row) {
      if (length(row) == 1) spans += spans_of(row);
      if (length(row) > 1) tokens += length(row);
    }
    const std::int64_t cuts = spans < wanted_ ? std::clamp(args_.threads, 1, args_.kv_heads) : 1;
    stream_heads_ = static_cast<std::int32_t>((args_.kv_heads + cuts - 1) / cuts);
    const std::int64_t rows = std::clamp(tokens * args_.heads / wanted_, kTileRowsMin, kTileRowsMax);
    tile_tokens_ = std::max<std::int64_t>(2, rows / group_);
    if (spans > 0) work_.tile_rows = stream_heads_ * group_;
    if (tokens > 0) work_.tile_rows = std::max(work_.tile_rows, tile_tokens_ * group_);
  }

  void cut_decode_row(std::int32_t row) {
    const std::int64_t context = args_.context_lens[row], low = first_span(context - 1), spans = spans_of(row);
    const std::int64_t head_floats = partial_floats(args_) * group_;
    for (std::int64_t span = 0; span < spans; ++span) {
      const std::int64_t begin = low + span * kSpan, end = std::min(begin + kSpan, context);
      for (std::int32_t head = 0; head < args_.kv_heads; head += stream_heads_) {
        const std::int32_t heads = std::min(stream_heads_, args_.kv_heads - head);
        Part part{{&args_, row, head, heads, args_.query_start[row], 1, context - 1, begin, end, nullptr}, spans};
        part.first_result = results_ + head * head_floats;
        part.result = part.first_result + span * args_.kv_heads * head_floats;
        part.counter = counters_ + head;
        parts_.push_back(part);
      }
    }
    work_.pairs += context - low;
    if (spans == 1) return;
    results_ += spans * args_.kv_heads * head_floats;
    counters_ += args_.kv_heads;
  }

  void cut_prefill_row(std::int32_t row) {
    const std::int64_t start = args_.query_start[row], first = args_.context_lens[row] - length(row);
    for (std::int64_t token = (length(row) - 1) / tile_tokens_ * tile_tokens_; token >= 0; token -= tile_tokens_) {
      const std::int64_t tokens = std::min(tile_tokens_, length(row) - token), position = first + token;
      const std::int64_t begin = first_span(position), end = position + tokens;
      for (std::int32_t head = 0; head < args_.kv_heads; ++head)  // the longest first
        parts_.push_back({{&args_, row, head, 1, start + token, tokens, position, begin, end, nullptr}, 1});
      work_.pairs += tokens * (end - begin);
    }
  }

  AttentionWork& work_;
  const AttentionArgs& args_;
  std::vector<Part>& parts_;
  std::int64_t group_, wanted_, tile_tokens_;
  std::int32_t stream_heads_;
  std::int64_t results_ = 0, counters_ = 0;  // used
};

void run_part(AttentionWork& work, const Part& part, float* scratch) {
  const AttentionArgs& args = work.args;
  Tile tile = part.tile;
  if (part.spans > 1) tile.partial = work.partials + part.result;
  work.kernels->attend[args.dtype](tile, scratch);
  if (part.spans == 1) return;
  // whoever finishes the last span merges all of them, in their order
  std::atomic<std::int32_t>& finished = work.scratch.counters[part.counter];
  if (finished.fetch_add(1, std::memory_order_acq_rel) + 1 < part.spans) return;
  const std::int64_t floats = partial_floats(args);
  work.kernels->merge[args.dtype](tile, work.partials + part.first_result, part.spans, floats * args.heads);
}

}  // namespace

AttentionWork::AttentionWork(const AttentionArgs& attention, AttentionScratch& kept)
    : args(attention), kernels(chosen_kernels()), scratch(kept) {
  Cut(*this).run();
}

std::int64_t AttentionWork::worthwhile_threads() const {
  const bool is_small = pairs * args.heads * args.head_dim < kWorthThreads;
  return is_small ? 1 : std::min<std::int64_t>(std::max(args.threads, 1), scratch.parts.size());
}

void attention_in_team(AttentionWork& work, Team&) {
  thread_local Buffer scratch;
  float* own = scratch.at_least(scratch_floats(work.args, work.tile_rows));
  const std::vector<Part>& parts = work.scratch.parts;
  for (std::size_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < parts.size();)
    run_part(work, parts[i], own);
}

void attention(const AttentionArgs& args) {
  thread_local AttentionScratch scratch;
  AttentionWork work(args, scratch);
  if (scratch.parts.empty()) return;
  const auto run = [](void* data, Team& team) { attention_in_team(*static_cast<AttentionWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(work.worthwhile_threads()));
}

}  // namespace anychip
