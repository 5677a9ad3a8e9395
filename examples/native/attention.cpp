// The paged cache: writing it, and attention over it. Knows pages; knows no model.
#include <algorithm>
#include <limits>
#include <vector>

#include "numbers.hpp"
#include "ops.hpp"

namespace {

constexpr std::int64_t kNoWindow = std::numeric_limits<std::int64_t>::max() / 2;

template <class From, class To>
void copy_row(const From* from, To* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) store(to[i], load(from[i]));
}

// One query head over the positions first .. last of its sequence.
template <class T, class Cache>
struct Head {
  const View<const Cache>& keys;
  const View<const Cache>& values;
  const int32_t* pages;
  std::int64_t page_size, kv_head, dim;
  float scale, soft_cap;  // no cap: 0
  std::vector<float>& scores;
  std::vector<float>& sum;

  // `sink`: a score that weighs no value; minus infinity where there is none
  void attend(const T* query, T* out, std::int64_t first, std::int64_t last, float sink) const {
    float largest = sink;
    for (std::int64_t position = first; position <= last; ++position) {
      const Cache* key = keys.at(pages[position / page_size], position % page_size, kv_head);
      double dot = 0.0;
      for (std::int64_t i = 0; i < dim; ++i) dot += static_cast<double>(load(query[i])) * load(key[i]);
      const float score = static_cast<float>(dot) * scale;
      scores[position - first] = soft_cap > 0 ? soft_cap * std::tanh(score / soft_cap) : score;
      largest = std::max(largest, scores[position - first]);
    }
    double total = std::exp(sink - largest);
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (std::int64_t position = first; position <= last; ++position) {
      const Cache* value = values.at(pages[position / page_size], position % page_size, kv_head);
      const float weight = std::exp(scores[position - first] - largest);
      total += weight;
      for (std::int64_t i = 0; i < dim; ++i) sum[i] += weight * load(value[i]);
    }
    for (std::int64_t i = 0; i < dim; ++i) store(out[i], static_cast<float>(sum[i] / total));
  }
};

template <class T, class Cache>
int32_t attend_all(const anychip_args_t* args) {
  const anychip_step_t& step = *args->step;
  const anychip_step_group_t& group = step.groups[as_int(args->scalars[2], 0)];
  const View<const T> q(args->tensors[0]);
  const View<const Cache> keys(args->tensors[1]), values(args->tensors[2]);
  const anychip_tensor_t& sinks = args->tensors[3];  // without data where there are none
  const View<T> out(args->tensors[4]);
  const std::int64_t heads = q.shape(1), dim = q.shape(2), shared_by = heads / keys.shape(2);
  const float scale = static_cast<float>(as_float(args->scalars[0]));
  const std::int64_t window = as_int(args->scalars[1], kNoWindow);
  const float soft_cap = static_cast<float>(as_float(args->scalars[3]));
  std::vector<float> scores, sum(dim);
  for (std::int64_t row = 0; row < step.rows; ++row) {
    const std::int64_t context = step.context_lens_host[row], length = step.query_lens_host[row];
    scores.resize(std::max<std::size_t>(scores.size(), context));
    const int32_t* pages = group.page_table + row * group.pages_max;
    for (std::int64_t token = 0; token < length; ++token) {
      const std::int64_t last = context - length + token, first = std::max<std::int64_t>(0, last - window + 1);
      const std::int64_t at = step.query_start[row] + token;
      for (std::int64_t head = 0; head < heads; ++head) {
        const float sink = sinks.data == nullptr ? -std::numeric_limits<float>::infinity()
                                                 : load(View<const T>(sinks).data[head]);
        Head<T, Cache>{keys, values, pages, step.page_size, head / shared_by, dim, scale, soft_cap, scores, sum}.attend(
            q.at(at, head), out.at(at, head), first, last, sink);
      }
    }
  }
  return ANYCHIP_OK;
}

}  // namespace

// k, v, k_cache!, v_cache!, step, group
int32_t kv_write(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  const std::int64_t* slots = args->step->groups[as_int(args->scalars[0], 0)].slots;
  return with_type(t[0], [&](auto type) {
    return with_type(t[2], [&](auto cache_type) {
      using T = decltype(type);
      using Cache = decltype(cache_type);
      for (int which = 0; which < 2; ++which) {
        const View<const T> from(t[which]);
        const View<Cache> to(t[2 + which]);
        const std::int64_t page_size = to.shape(1);
        for (std::int64_t token = 0; token < from.shape(0); ++token) {
          const std::int64_t slot = slots[token];
          for (std::int64_t head = 0; head < from.shape(1); ++head)
            copy_row(from.at(token, head), to.at(slot / page_size, slot % page_size, head), from.shape(2));
        }
      }
      return ANYCHIP_OK;
    });
  });
}

// q, k_cache, v_cache, step, scale, window, group, soft_cap, sinks -> out
int32_t paged_attention(const anychip_args_t* args) {
  return with_type(args->tensors[0], [&](auto type) {
    return with_type(args->tensors[1], [&](auto cache_type) {
      return attend_all<decltype(type), decltype(cache_type)>(args);
    });
  });
}
