// Turns instructions into stages and leads a team through them. Knows no kernel's work.
#include "program.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>

#include "dispatch.hpp"
#include "share.hpp"

namespace anychip {

namespace {

// below so many elements the members of a team had better not share a stage
constexpr std::int64_t kWorthMeeting = 1 << 11;
// as the limit of a group's slots
constexpr std::int64_t kUnread = std::numeric_limits<std::int64_t>::max();

void gather(const GatherArgs& args, std::int64_t begin, std::int64_t end) {
  const char* table = static_cast<const char*>(args.table);
  char* out = static_cast<char*>(args.out);
  for (std::int64_t row = begin; row < end; ++row)
    std::memcpy(out + row * args.row_bytes, table + args.numbers[row] * args.table_stride_bytes, args.row_bytes);
}

// What a step brings to each kind of rows, which kernel they get, and how large a row is.

struct Scope {
  bool is_selected;
  std::int32_t group;
};

std::int64_t rows_of(const StepArgs& step, bool is_selected) { return is_selected ? step.logits : step.tokens; }

void bring(NormArgs& args, const StepArgs& step, Scope scope) { args.rows = rows_of(step, scope.is_selected); }
void bring(GatedArgs& args, const StepArgs& step, Scope scope) { args.rows = rows_of(step, scope.is_selected); }
void bring(RouteArgs& args, const StepArgs& step, Scope scope) { args.rows = rows_of(step, scope.is_selected); }
void bring(GatherArgs& args, const StepArgs& step, Scope scope) {
  args.numbers = scope.is_selected ? step.logit_rows : step.token_ids;
}
void bring(HeadsArgs& args, const StepArgs& step, Scope scope) {
  args.tokens = step.tokens;
  args.positions = step.positions;
  args.slots = scope.group < step.group_count ? step.groups[scope.group].slots : nullptr;
}

Share<NormArgs>::Kernel kernel(const NormArgs& args) { return chosen_kernels()->rows.norm[args.dtype]; }
Share<GatedArgs>::Kernel kernel(const GatedArgs& args) { return chosen_kernels()->rows.gated[args.dtype]; }
Share<RouteArgs>::Kernel kernel(const RouteArgs&) { return chosen_kernels()->routing.route; }
Share<HeadsArgs>::Kernel kernel(const HeadsArgs& args) { return chosen_kernels()->rows.heads[args.dtype]; }
Share<GatherArgs>::Kernel kernel(const GatherArgs&) { return gather; }

std::int64_t elements(const NormArgs& args) { return args.dim; }
std::int64_t elements(const GatedArgs& args) { return args.dim; }
std::int64_t elements(const RouteArgs& args) { return args.experts * args.chosen; }
std::int64_t elements(const GatherArgs& args) { return args.row_bytes; }
std::int64_t elements(const HeadsArgs& args) {
  std::int64_t heads = 0;
  for (const HeadsPart& part : args.parts) heads += part.heads;
  return heads * args.head_dim;
}

template <class Args>
class RowStage final : public Stage {
 public:
  RowStage(const Args& args, Scope scope) : args_(args), scope_(scope) {}

  void begin(const StepArgs& step) override {
    bring(args_, step, scope_);
    const std::int64_t rows = rows_of(step, scope_.is_selected);
    const bool is_small = rows * elements(args_) < kWorthMeeting;
    share_.emplace(args_, kernel(args_), rows, std::max<std::int64_t>(1, is_small ? rows : rows / (2 * step.threads)));
  }

  void run(Team&) override { share_->work(); }

 private:
  Args args_;
  Scope scope_;
  std::optional<Share<Args>> share_;
};

class ProductStage final : public Stage {
 public:
  ProductStage(const ProductArgs& args, bool is_selected, ProductScratch& scratch)
      : args_(args), is_selected_(is_selected), scratch_(scratch) {}

  void begin(const StepArgs& step) override {
    ProductArgs args = args_;
    args.rows = rows_of(step, is_selected_);
    args.threads = step.threads;
    if (args.out == nullptr) args.out = step.out;
    work_.emplace(args, scratch_);
  }

  void run(Team& team) override {
    if (work_->args.rows > 0) product_in_team(*work_, team);
  }

 private:
  ProductArgs args_;
  bool is_selected_;
  ProductScratch& scratch_;
  std::optional<ProductWork> work_;
};

class ExpertStage final : public Stage {
 public:
  ExpertStage(const ExpertsArgs& args, bool is_selected, ExpertScratch& scratch)
      : args_(args), is_selected_(is_selected), scratch_(scratch) {}

  void begin(const StepArgs& step) override {
    args_.tokens = rows_of(step, is_selected_);
    args_.threads = step.threads;
    work_.emplace(args_, scratch_);
  }

  void run(Team& team) override { experts_in_team(*work_, team); }

 private:
  ExpertsArgs args_;
  bool is_selected_;
  ExpertScratch& scratch_;
  std::optional<ExpertWork> work_;
};

class AttentionStage final : public Stage {
 public:
  AttentionStage(const AttentionArgs& args, std::int32_t group, AttentionScratch& scratch)
      : args_(args), group_(group), scratch_(scratch) {}

  void begin(const StepArgs& step) override {
    const GroupArgs& group = step.groups[group_];
    args_.rows = static_cast<std::int32_t>(step.rows);
    args_.page_size = static_cast<std::int32_t>(step.page_size);
    args_.pages_max = static_cast<std::int32_t>(group.pages_max);
    args_.threads = static_cast<std::int32_t>(step.threads);
    args_.query_start = step.query_start;
    args_.context_lens = step.context_lens;
    args_.page_table = group.page_table;
    work_.emplace(args_, scratch_);
  }

  void run(Team& team) override { attention_in_team(*work_, team); }

 private:
  AttentionArgs args_;
  std::int32_t group_;
  AttentionScratch& scratch_;
  std::optional<AttentionWork> work_;
};

Share<ConvolveArgs>::Kernel kernel(const ConvolveArgs& args) {
  return chosen_kernels()->recurrent.convolve[args.dtype];
}
Share<DeltaArgs>::Kernel kernel(const DeltaArgs& args) { return chosen_kernels()->recurrent.delta[args.dtype]; }

// An op on states in slots.
template <class Args>
class RecurrentStage final : public Stage {
 public:
  RecurrentStage(const Args& args, std::int32_t group) : args_(args), group_(group) {}

  void begin(const StepArgs& step) override {
    args_.rows.query_start = step.query_start;
    args_.rows.slots = step.groups[group_].slots;
    args_.rows.rows = step.rows;
    const std::int64_t parts = parts_of(args_);
    const bool is_small = parts * elements_of(args_) < kWorthMeeting;
    share_.emplace(args_, kernel(args_), parts, std::max<std::int64_t>(1, is_small ? parts : 1));
  }

  void run(Team&) override { share_->work(); }

 private:
  Args args_;
  std::int32_t group_;
  std::optional<Share<Args>> share_;
};

bool are_below(const std::int64_t* numbers, std::int64_t count, std::int64_t limit) {
  return std::all_of(numbers, numbers + count, [limit](std::int64_t one) { return one >= 0 && one < limit; });
}

// Adds what passes between one tick and the next to a kind of instruction.
class Clock {
 public:
  explicit Clock(double* seconds) : seconds_(seconds) {
    if (seconds_ != nullptr) last_ = std::chrono::steady_clock::now();
  }

  void tick(std::int32_t kind) {
    if (seconds_ == nullptr) return;
    const auto now = std::chrono::steady_clock::now();
    seconds_[kind] += std::chrono::duration<double>(now - last_).count();
    last_ = now;
  }

 private:
  double* seconds_;
  std::chrono::steady_clock::time_point last_;
};

struct Walk {
  const std::vector<std::unique_ptr<Stage>>& stages;
  const std::vector<std::int32_t>& kinds;
  const StepArgs& step;
};

void walk(void* data, Team& team) {
  const Walk& all = *static_cast<const Walk*>(data);
  Clock clock(team.rank == 0 ? all.step.seconds : nullptr);
  for (std::size_t i = 0; i < all.stages.size(); ++i) {
    if (team.rank == 0 && i + 1 < all.stages.size()) all.stages[i + 1]->begin(all.step);
    all.stages[i]->run(team);
    team.wait();
    clock.tick(all.kinds[i]);
  }
}

}  // namespace

Program::Program(const Instruction* instructions, std::int64_t count, std::int64_t tokens)
    : vocabulary_(std::numeric_limits<std::int64_t>::max()), positions_(vocabulary_) {
  for (std::int64_t i = 0; i < count; ++i) add(instructions[i], tokens);
}

void Program::add(const Instruction& one, std::int64_t tokens) {
  const bool is_selected = one.is_selected != 0;
  const Scope scope{is_selected, one.group};
  attention_turn_ = one.kind == kAttend && !kinds_.empty() && kinds_.back() == kAttend ? 1 - attention_turn_ : 0;
  experts_turn_ = one.kind == kMix && !kinds_.empty() && kinds_.back() == kMix ? 1 - experts_turn_ : 0;
  kinds_.push_back(one.kind);
  switch (one.kind) {
    case kGather:
      if (!is_selected) vocabulary_ = std::min(vocabulary_, one.gather.limit);
      stages_.push_back(std::make_unique<RowStage<GatherArgs>>(one.gather, scope));
      return;
    case kNorm:
      stages_.push_back(std::make_unique<RowStage<NormArgs>>(one.norm, scope));
      return;
    case kGate:
      stages_.push_back(std::make_unique<RowStage<GatedArgs>>(one.gated, scope));
      return;
    case kRoute:
      stages_.push_back(std::make_unique<RowStage<RouteArgs>>(one.route, scope));
      return;
    case kMix: {
      ExpertsArgs largest = one.experts;
      largest.tokens = tokens;
      ExpertWork(largest, experts_[experts_turn_]);
      stages_.push_back(std::make_unique<ExpertStage>(one.experts, is_selected, experts_[experts_turn_]));
      return;
    }
    case kConvolve:
      return add_recurrent(one.convolve, one.group);
    case kDelta:
      return add_recurrent(one.delta, one.group);
    case kHeads:
      limit(one.heads, one.group);
      stages_.push_back(std::make_unique<RowStage<HeadsArgs>>(one.heads, scope));
      return;
    case kMultiply: {
      ProductArgs largest = one.product;
      largest.rows = tokens;
      ProductWork(largest, products_);  // takes memory, so that no step needs more
      stages_.push_back(std::make_unique<ProductStage>(one.product, is_selected, products_));
      return;
    }
    case kAttend:
      limit_slots(slots_, one.group, kUnread - 1);
      stages_.push_back(std::make_unique<AttentionStage>(one.attention, one.group, attention_[attention_turn_]));
      attention_stages_.push_back(stages_.back().get());
      return;
  }
}

template <class Args>
void Program::add_recurrent(const Args& args, std::int32_t group) {
  limit_slots(row_slots_, group, args.rows.slot_count);
  stages_.push_back(std::make_unique<RecurrentStage<Args>>(args, group));
}

void Program::limit(const HeadsArgs& args, std::int32_t group) {
  for (const HeadsPart& part : args.parts) {
    if (part.heads > 0 && part.is_turned) positions_ = std::min(positions_, args.places);
    if (part.heads > 0 && part.is_cached) limit_slots(slots_, group, args.slot_count);
  }
}

void Program::limit_slots(std::vector<std::int64_t>& limits, std::int32_t group, std::int64_t slots) {
  const std::size_t index = static_cast<std::size_t>(group);
  if (limits.size() <= index) limits.resize(index + 1, kUnread);
  limits[index] = std::min(limits[index], slots);
}

bool Program::fits(const StepArgs& step, const std::vector<std::int64_t>& limits, bool is_paged) {
  if (limits.size() > static_cast<std::size_t>(step.group_count)) return false;
  const std::int64_t count = is_paged ? step.tokens : step.rows;
  for (std::size_t group = 0; group < limits.size(); ++group) {
    if (limits[group] == kUnread) continue;
    const GroupArgs& args = step.groups[group];
    if (count == 0) continue;
    if (is_paged != (args.page_table != nullptr) || args.slots == nullptr) return false;
    if (!are_below(args.slots, count, limits[group])) return false;
  }
  return true;
}

void Program::check(const StepArgs& step) const {
  const bool is_sound = are_below(step.token_ids, step.tokens, vocabulary_) &&
                        are_below(step.positions, step.tokens, positions_) &&
                        are_below(step.logit_rows, step.logits, step.tokens) && fits(step, slots_, true) &&
                        fits(step, row_slots_, false);
  if (!is_sound) throw std::out_of_range("a step's numbers");
}

void Program::run(const StepArgs& step) {
  const std::lock_guard<std::mutex> lock(mutex_);
  check(step);
  products_.make_room(step.threads);
  for (ExpertScratch& scratch : experts_) scratch.make_room(step.threads);
  for (Stage* stage : attention_stages_) stage->begin(step);  // takes the memory, which nobody may lack further on
  stages_.front()->begin(step);
  Walk all{stages_, kinds_, step};
  run_team(walk, &all, static_cast<unsigned>(step.threads));
}

}  // namespace anychip
