// Drawing a token from the few that can be drawn, without sorting the vocabulary. Knows no instruction set.
//
// Candidates are all tokens whose logit reaches a threshold, so they are the first of the sorted order. A first
// threshold gives some tens; where the draw or a filter's end lies beyond them, a second one is surely low enough. Only
// the buckets are sorted in which something ends.
#include "sampling.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <vector>

#include "dispatch.hpp"
#include "share.hpp"

namespace anychip {

namespace {

constexpr std::size_t kFewCandidates = 64;
// candidates are put into buckets of about so many, so that only some of them need be sorted
constexpr std::int64_t kInBucket = 16;
constexpr std::int64_t kBuckets = 1024;
// logits so many temperatures below the largest share the last bucket
constexpr double kDeep = 40.0;
// nearer than this to the border between two tokens, as a share of all, the reference decides
constexpr double kMargin = 1e-9;
constexpr std::int64_t kUndecided = -1, kTooFew = -2;
constexpr double kEverything = -std::numeric_limits<double>::infinity();

struct Candidate {
  double weight;
  float logit;
  std::int32_t id;
};

bool precedes(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// Candidates that all precede those of the next bucket.
struct Bucket {
  std::int64_t begin, end;
  double weight;
  bool is_sorted;
};

struct Place {
  std::int64_t index;
  double before;  // the weight of all that precede it
};

// One row's draw, and memory that is used again for the next one.
class Draw {
 public:
  std::int64_t token(const SampleArgs& args, std::int64_t row);

 private:
  void start(const SampleArgs& args, std::int64_t row);
  double first_threshold();
  double sure_threshold() const;
  void collect(double threshold);
  void arrange(std::int64_t count, double depth);
  std::int64_t choose(bool has_min_p);
  std::int64_t at_least_min_p(std::int64_t kept);
  double weight_of(std::int64_t kept);
  Place locate(std::int64_t kept, double target);
  void sort(Bucket& bucket);
  bool is_at_border(const Place& place, double target, double total) const;

  const SamplingKernels* kernels_;
  const float* logits_;
  std::int64_t vocab_, top_k_;
  double temperature_, top_p_, min_p_, uniform_;
  Scale scale_;
  double total_;  // the weight of the vocabulary, where there is no top-k
  std::vector<float> maxima_, ordered_, found_;
  std::vector<std::int32_t> ids_;
  std::vector<double> weights_;
  std::vector<std::uint16_t> numbers_;
  std::vector<Bucket> buckets_;
  std::vector<Candidate> candidates_;  // bucket by bucket, unsorted in each
};

std::int64_t Draw::token(const SampleArgs& args, std::int64_t row) {
  start(args, row);
  if (!kernels_->maxima(logits_, vocab_, maxima_.data())) return kUndecided;
  const double largest = *std::max_element(maxima_.begin(), maxima_.end());
  if (!std::isfinite(largest)) return kUndecided;
  scale_ = {largest, 1.0 / temperature_};
  if (top_k_ == 0) total_ = kernels_->total_weight(logits_, vocab_, scale_);
  collect(first_threshold());
  std::int64_t token = choose(false);
  if (token == kTooFew) {
    collect(sure_threshold());
    token = choose(true);
  }
  return std::max(token, kUndecided);
}

void Draw::start(const SampleArgs& args, std::int64_t row) {
  kernels_ = &chosen_kernels()->sampling;
  logits_ = args.logits + row * args.stride;
  vocab_ = args.vocab;
  temperature_ = args.temperature[row];
  top_k_ = std::min(args.top_k[row], vocab_);
  top_p_ = args.top_p[row];
  min_p_ = args.min_p[row];
  uniform_ = args.uniform[row];
  maxima_.resize((vocab_ + kStretch - 1) / kStretch);
  ids_.resize(vocab_ + 1);  // one more for what isn't kept
  found_.resize(vocab_ + 1);
  weights_.resize(vocab_);
  numbers_.resize(vocab_);
}

// What at least `top_k` logits reach, or else a few: a stretch's maximum is one of them.
double Draw::first_threshold() {
  const std::size_t wanted = top_k_ > 0 ? top_k_ : kFewCandidates;
  if (wanted >= maxima_.size()) return kEverything;
  ordered_ = maxima_;
  std::nth_element(ordered_.begin(), ordered_.begin() + (wanted - 1), ordered_.end(), std::greater<float>());
  return ordered_[wanted - 1];
}

// All tokens below this weight together weigh less than what is certainly not drawn.
double Draw::sure_threshold() const {
  const double rest = top_p_ < 1.0 ? 1.0 - top_p_ : min_p_ > 0.0 ? 0.0 : 1.0 - uniform_;
  const double least = (1.0 - kMargin) * std::max(min_p_, rest * total_ / vocab_);
  return scale_.largest + std::log(least) * temperature_;
}

void Draw::collect(double threshold) {
  std::int64_t count = 0;
  for (std::size_t stretch = 0; stretch < maxima_.size(); ++stretch) {
    if (maxima_[stretch] < threshold) continue;
    const std::int64_t begin = stretch * kStretch, end = std::min(begin + kStretch, vocab_);
    for (std::int64_t id = begin; id < end; ++id) {  // written in any case: no branch to be guessed
      ids_[count] = static_cast<std::int32_t>(id);
      found_[count] = logits_[id];
      count += logits_[id] >= threshold;
    }
  }
  kernels_->weights(found_.data(), count, scale_, weights_.data());
  arrange(count, std::min(scale_.largest - threshold, kDeep * temperature_));
}

// Puts the candidates into buckets by their logits; those `depth` below the largest come into the last one.
void Draw::arrange(std::int64_t count, double depth) {
  const int last = static_cast<int>(std::min(count / kInBucket, kBuckets - 1));
  const float factor = static_cast<float>(last / depth), largest = static_cast<float>(scale_.largest);
  buckets_.assign(last + 1, {0, 0, 0.0, false});
  for (std::int64_t i = 0; i < count; ++i) {
    const float place = (largest - found_[i]) * factor;
    const int number = place < last ? static_cast<int>(place) : last;
    numbers_[i] = static_cast<std::uint16_t>(number);
    buckets_[number].end += 1;
    buckets_[number].weight += weights_[i];
  }
  std::int64_t begin = 0;
  for (Bucket& bucket : buckets_) {  // from a bucket's length to its end so far, which grows as it fills
    const std::int64_t length = bucket.end;
    bucket.begin = bucket.end = begin;
    begin += length;
  }
  candidates_.resize(count);
  for (std::int64_t i = 0; i < count; ++i) candidates_[buckets_[numbers_[i]].end++] = {weights_[i], found_[i], ids_[i]};
}

// `has_min_p`: all tokens that min-p leaves are candidates.
std::int64_t Draw::choose(bool has_min_p) {
  std::int64_t kept = candidates_.size();
  bool is_end_known = kept == vocab_;
  double total = total_;
  if (top_k_ > 0) {
    kept = top_k_;
    is_end_known = true;
    total = weight_of(kept);
  }
  if (top_p_ < 1.0) {
    const Place last = locate(kept, top_p_ * total);
    if (last.index < kept) {
      if (is_at_border(last, top_p_ * total, total)) return kUndecided;
      kept = last.index + 1;
      is_end_known = true;
    }
  }
  if (min_p_ > 0.0) {
    const std::int64_t heavy = at_least_min_p(kept);
    if (heavy == kUndecided) return kUndecided;
    is_end_known |= has_min_p || heavy < kept;
    kept = heavy;
  }
  const bool is_filtered = top_p_ < 1.0 || min_p_ > 0.0;
  if (!is_end_known && is_filtered) return kTooFew;
  const double weight = is_end_known ? weight_of(kept) : total;
  const Place drawn = locate(kept, uniform_ * weight);
  if (drawn.index == kept) return is_end_known ? kUndecided : kTooFew;
  return is_at_border(drawn, uniform_ * weight, weight) ? kUndecided : candidates_[drawn.index].id;
}

// How many of the first `kept` candidates min-p leaves; they come first in their bucket.
std::int64_t Draw::at_least_min_p(std::int64_t kept) {
  const auto begin = candidates_.begin(), end = begin + kept;
  const auto is_largest = [this](const Candidate& one) { return one.logit == scale_.largest; };
  const auto is_at_min_p = [&](const Candidate& one) {
    return !is_largest(one) && std::abs(one.weight - min_p_) < kMargin * min_p_;
  };
  if (std::any_of(begin, end, is_at_min_p)) return kUndecided;
  return std::partition(begin, end, [&](const Candidate& one) { return is_largest(one) || one.weight >= min_p_; }) -
         begin;
}

// Of the first `kept` candidates.
double Draw::weight_of(std::int64_t kept) {
  double total = 0.0;
  for (Bucket& bucket : buckets_) {
    if (bucket.begin >= kept) break;
    if (bucket.end <= kept) {
      total += bucket.weight;
      continue;
    }
    sort(bucket);
    for (std::int64_t i = bucket.begin; i < kept; ++i) total += candidates_[i].weight;
  }
  return total;
}

// The first of `kept` candidates up to which, itself included, the weights exceed the target; `kept` if none does.
Place Draw::locate(std::int64_t kept, double target) {
  double before = 0.0;
  for (Bucket& bucket : buckets_) {
    if (bucket.begin >= kept) break;
    if (bucket.end <= kept && before + bucket.weight <= target) {
      before += bucket.weight;
      continue;
    }
    sort(bucket);
    for (std::int64_t i = bucket.begin; i < std::min(bucket.end, kept); ++i) {
      if (before + candidates_[i].weight > target) return {i, before};
      before += candidates_[i].weight;
    }
  }
  return {kept, before};
}

void Draw::sort(Bucket& bucket) {
  if (bucket.is_sorted) return;
  bucket.is_sorted = true;
  std::sort(candidates_.begin() + bucket.begin, candidates_.begin() + bucket.end, precedes);
}

bool Draw::is_at_border(const Place& place, double target, double total) const {
  const double after = place.before + candidates_[place.index].weight;
  return (place.index > 0 && target - place.before < kMargin * total) || after - target < kMargin * total;
}

void sample_rows(const SampleArgs& args, std::int64_t begin, std::int64_t end) {
  thread_local Draw draw;
  for (std::int64_t row = begin; row < end; ++row) {
    try {
      args.ids[row] = draw.token(args, row);
    } catch (const std::bad_alloc&) {
      args.ids[row] = kUndecided;
    }
  }
}

}  // namespace

void sample(const SampleArgs& args) { share_rows(args, sample_rows, args.rows, args.vocab); }

}  // namespace anychip
