// Cuts a step's attention into parts that threads take one after the other. Knows no instruction set.
#include <algorithm>
#include <cstring>

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
    most_mates_ = std::max<std::int64_t>(kReaders / group_, 1);
    work_.scratch.first_parts.resize(args_.rows);
    choose_sizes();
  }

  void run() {
    for (std::int32_t row = args_.rows; row-- > 0;) {
      if (length(row) == 1) cut_decode_row(row), share_spans(row);
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

  // All kv heads of a token lie side by side in memory and are read fastest by one thread, so they are taken apart only
  // where threads would idle for more than a quarter of the time else.
  void choose_sizes() {
    std::int64_t spans = 0, tokens = 0;
    for (std::int32_t row = 0; row < args_.rows; ++row) {
      if (length(row) == 1) spans += spans_of(row);
      if (length(row) > 1) tokens += length(row);
    }
    const std::int64_t threads = std::max(args_.threads, 1), rounds = (spans + threads - 1) / threads;
    const bool is_even = 4 * spans >= 3 * rounds * threads;
    const std::int64_t cuts = is_even ? 1 : std::clamp(args_.threads, 1, args_.kv_heads);
    stream_heads_ = static_cast<std::int32_t>((args_.kv_heads + cuts - 1) / cuts);
    parts_each_span_ = (args_.kv_heads + stream_heads_ - 1) / stream_heads_;
    const std::int64_t rows = std::clamp(tokens * args_.heads / wanted_, kTileRowsMin, kTileRowsMax);
    tile_tokens_ = std::max<std::int64_t>(2, rows / group_);
    if (spans > 0) work_.tile_rows = stream_heads_ * group_;
    if (tokens > 0) work_.tile_rows = std::max(work_.tile_rows, tile_tokens_ * group_);
  }

  void cut_decode_row(std::int32_t row) {
    const std::int64_t context = args_.context_lens[row], low = first_span(context - 1), spans = spans_of(row);
    const std::int64_t head_floats = partial_floats(args_) * group_;
    work_.scratch.first_parts[row] = parts_.size();
    for (std::int64_t span = 0; span < spans; ++span) {
      const std::int64_t begin = low + span * kSpan, end = std::min(begin + kSpan, context);
      for (std::int32_t head = 0; head < args_.kv_heads; head += stream_heads_) {
        const std::int32_t heads = std::min(stream_heads_, args_.kv_heads - head);
        Part part{{&args_, row, head, heads, args_.query_start[row], 1, context - 1, begin, end, nullptr}, spans};
        part.first_result = results_ + head * head_floats;
        part.result = part.first_result + span * args_.kv_heads * head_floats;
        part.counter = counters_ + head;
        add(part);
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
        add({{&args_, row, head, 1, start + token, tokens, position, begin, end, nullptr}, 1});
      work_.pairs += tokens * (end - begin);
    }
  }

  void add(Part part) {
    part.leader = parts_.size();
    parts_.push_back(part);
  }

  // Rows that begin with the same pages see the same keys, span by span, until they part.
  void share_spans(std::int32_t row) {
    for (std::int64_t span = first_span(args_.context_lens[row] - 1); share_span(row, span); span += kSpan) {
    }
  }

  // Looks for a row cut before that sees the same keys.
  bool share_span(std::int32_t row, std::int64_t span) {
    for (std::int32_t other = row + 1; other < args_.rows; ++other) {
      if (length(other) != 1 || !sees_all(row, span) || !sees_all(other, span) || !has_same(row, other, span)) continue;
      const std::int64_t own = first_part(row, span), its = first_part(other, span);
      for (std::int64_t i = 0; i < parts_each_span_; ++i) follow(own + i, parts_[its + i].leader);
      return true;
    }
    return false;
  }

  bool sees_all(std::int32_t row, std::int64_t span) const {
    const std::int64_t context = args_.context_lens[row], first = args_.window > 0 ? context - args_.window : 0;
    return span >= first && span + kSpan <= context;
  }

  bool has_same(std::int32_t row, std::int32_t other, std::int64_t span) const {
    const std::int64_t first = span / args_.page_size, last = (span + kSpan - 1) / args_.page_size;
    const std::int32_t* own = args_.page_table + std::int64_t(row) * args_.pages_max + first;
    const std::int32_t* its = args_.page_table + std::int64_t(other) * args_.pages_max + first;
    return *own == *its && std::memcmp(own, its, (last - first + 1) * sizeof *own) == 0;
  }

  std::int64_t first_part(std::int32_t row, std::int64_t span) const {
    const std::int64_t spans = (span - first_span(args_.context_lens[row] - 1)) / kSpan;
    return work_.scratch.first_parts[row] + spans * parts_each_span_;
  }

  void follow(std::int64_t part, std::int64_t leader) {
    Part& first = parts_[leader];
    if (first.mates == most_mates_) return;
    parts_[part].leader = leader;
    parts_[part].mate = first.mate;
    first.mate = part;
    work_.tile_rows = std::max(work_.tile_rows, ++first.mates * stream_heads_ * group_);
  }

  AttentionWork& work_;
  const AttentionArgs& args_;
  std::vector<Part>& parts_;
  std::int64_t group_, wanted_, most_mates_, tile_tokens_;
  std::int32_t stream_heads_, parts_each_span_;
  std::int64_t results_ = 0, counters_ = 0;  // used
};

// Whoever finishes the last span of a row merges all of them, in their order.
void finish(AttentionWork& work, const Part& part) {
  std::atomic<std::int32_t>& finished = work.scratch.counters[part.counter];
  if (part.spans == 1 || finished.fetch_add(1, std::memory_order_acq_rel) + 1 < part.spans) return;
  const std::int64_t stride = partial_floats(work.args) * work.args.heads;
  work.kernels->merge[work.args.dtype](part.tile, work.partials + part.first_result, part.spans, stride);
}

// A part and those that it leads.
void run_parts(AttentionWork& work, std::int64_t leader, float* scratch) {
  const std::vector<Part>& parts = work.scratch.parts;
  Tile tiles[kReaders];
  std::int64_t count = 0;
  for (std::int64_t i = leader; i != Part::kNone; i = parts[i].mate) {
    Tile& tile = tiles[count++] = parts[i].tile;
    if (parts[i].spans > 1) tile.partial = work.partials + parts[i].result;
  }
  work.kernels->attend[work.args.dtype](tiles, count, scratch);
  for (std::int64_t i = leader; i != Part::kNone; i = parts[i].mate) finish(work, parts[i]);
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
  const std::int64_t parts = work.scratch.parts.size();
  for (std::int64_t i; (i = work.next.fetch_add(1, std::memory_order_relaxed)) < parts;)
    if (work.scratch.parts[i].leader == i) run_parts(work, i, own);
}

void attention(const AttentionArgs& args) {
  thread_local AttentionScratch scratch;
  AttentionWork work(args, scratch);
  if (scratch.parts.empty()) return;
  const auto run = [](void* data, Team& team) { attention_in_team(*static_cast<AttentionWork*>(data), team); };
  run_team(run, &work, static_cast<unsigned>(work.worthwhile_threads()));
}

}  // namespace anychip
