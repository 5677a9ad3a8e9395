// Ops on rows, and the table of all ops. Knows shapes; knows no model.
#include "ops.hpp"

#include <cstdint>
#include <vector>

#include "numbers.hpp"

namespace {

// weight * x / sqrt(mean(x^2) + eps), given to `put` element by element.
template <class T, class Put>
void normalise(const T* x, const T* weight, std::int64_t dim, double eps, Put put) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < dim; ++i) squares += static_cast<double>(load(x[i])) * load(x[i]);
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(dim) + eps);
  for (std::int64_t i = 0; i < dim; ++i) put(i, load(x[i]) * scale * load(weight[i]));
}

// Turn the pairs (x[i], x[i + half]); what lies behind passes through. `table` holds cosines, then sines.
template <class T>
void rotate(const double* x, const float* table, std::int64_t half, std::int64_t dim, T* out) {
  for (std::int64_t i = 0; i < half; ++i) {
    const double cosine = table[i], sine = table[half + i];
    store(out[i], x[i] * cosine - x[half + i] * sine);
    store(out[half + i], x[half + i] * cosine + x[i] * sine);
  }
  for (std::int64_t i = 2 * half; i < dim; ++i) store(out[i], x[i]);
}

// Rotate every head of one of q and k, normalised first where `weight` is given.
template <class T>
void rotate_all(const anychip_tensor_t& from, const anychip_tensor_t* weight, double eps,
                const std::int64_t* positions, const View<const float>& table,
                const anychip_tensor_t& to) {
  const View<const T> x(from);
  const View<T> out(to);
  const std::int64_t dim = x.shape(2);
  std::vector<double> wide(dim);
  for (std::int64_t token = 0; token < x.shape(0); ++token)
    for (std::int64_t head = 0; head < x.shape(1); ++head) {
      const T* row = x.at(token, head);
      if (weight)
        normalise(row, View<const T>(*weight).data, dim, eps, [&](std::int64_t i, double value) { wide[i] = value; });
      else
        for (std::int64_t i = 0; i < dim; ++i) wide[i] = load(row[i]);
      rotate(wide.data(), table.row(positions[token]), table.last() / 2, dim, out.at(token, head));
    }
}

int32_t gather(const anychip_tensor_t& rows_of, const std::int64_t* index, const anychip_tensor_t& to) {
  return with_type(rows_of, [&](auto type) {
    using T = decltype(type);
    const View<const T> from(rows_of);
    const View<T> out(to);
    for (std::int64_t row = 0; row < out.shape(0); ++row)
      if (from.last() > 0) std::memcpy(out.row(row), from.row(index[row]), from.last() * sizeof(T));
    return ANYCHIP_OK;
  });
}

}  // namespace

// x, y -> out
int32_t add(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    const View<const T> x(t[0]), y(t[1]);
    const View<T> out(t[2]);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T *one = x.row(row), *other = y.row(row);
      T* sum = out.row(row);
      for (std::int64_t i = 0; i < x.last(); ++i) store(sum[i], load(one[i]) + load(other[i]));
    }
    return ANYCHIP_OK;
  });
}

// x, weight, eps -> out
int32_t rms_norm(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    const View<const T> x(t[0]), weight(t[1]);
    const View<T> out(t[2]);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      T* to = out.row(row);
      normalise(x.row(row), weight.data, x.last(), as_float(args->scalars[0]),
                [&](std::int64_t i, double value) { store(to[i], value); });
    }
    return ANYCHIP_OK;
  });
}

// x, residual, weight, eps -> out, total
int32_t add_rms_norm(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    const View<const T> x(t[0]), residual(t[1]), weight(t[2]);
    const View<T> out(t[3]), total(t[4]);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T *one = x.row(row), *other = residual.row(row);
      T *sum = total.row(row), *to = out.row(row);
      for (std::int64_t i = 0; i < x.last(); ++i) store(sum[i], load(one[i]) + load(other[i]));
      normalise(sum, weight.data, x.last(), as_float(args->scalars[0]),
                [&](std::int64_t i, double value) { store(to[i], value); });
    }
    return ANYCHIP_OK;
  });
}

// gate, up -> out
int32_t silu_mul(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    const View<const T> gate(t[0]), up(t[1]);
    const View<T> out(t[2]);
    for (std::int64_t row = 0; row < gate.rows(); ++row) {
      const T *one = gate.row(row), *other = up.row(row);
      T* to = out.row(row);
      for (std::int64_t i = 0; i < gate.last(); ++i) {
        const double x = load(one[i]);
        store(to[i], x / (1.0 + std::exp(-x)) * load(other[i]));
      }
    }
    return ANYCHIP_OK;
  });
}

// step, weight -> out
int32_t embedding(const anychip_args_t* args) {
  return gather(args->tensors[0], args->step->token_ids, args->tensors[1]);
}

// x, step -> out
int32_t select_rows(const anychip_args_t* args) {
  return gather(args->tensors[0], args->step->logit_rows, args->tensors[1]);
}

// q, k, step, table -> q_out, k_out
int32_t rope(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  const std::int64_t* positions = args->step->positions;
  const View<const float> table(t[2]);
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    rotate_all<T>(t[0], nullptr, 0.0, positions, table, t[3]);
    rotate_all<T>(t[1], nullptr, 0.0, positions, table, t[4]);
    return ANYCHIP_OK;
  });
}

// q, k, q_weight, k_weight, eps, step, table -> q_out, k_out
int32_t qk_norm_rope(const anychip_args_t* args) {
  const anychip_tensor_t* t = args->tensors;
  const double eps = as_float(args->scalars[0]);
  const std::int64_t* positions = args->step->positions;
  const View<const float> table(t[4]);
  return with_type(t[0], [&](auto type) {
    using T = decltype(type);
    rotate_all<T>(t[0], &t[2], eps, positions, table, t[5]);
    rotate_all<T>(t[1], &t[3], eps, positions, table, t[6]);
    return ANYCHIP_OK;
  });
}

// logits -> token_ids; what is not a number is larger than everything
int32_t argmax(const anychip_args_t* args) {
  const View<const float> logits(args->tensors[0]);
  const View<std::int64_t> ids(args->tensors[1]);
  for (std::int64_t row = 0; row < logits.rows(); ++row) {
    const float* values = logits.row(row);
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < logits.last() && !std::isnan(values[best]); ++i)
      if (values[i] > values[best] || std::isnan(values[i])) best = i;
    ids.data[row] = best;
  }
  return ANYCHIP_OK;
}

namespace {

constexpr std::uint32_t kFloats = 1u << ANYCHIP_FLOAT32 | 1u << ANYCHIP_BFLOAT16;
constexpr std::uint32_t kStrided = ANYCHIP_OP_STRIDED_ROWS;
constexpr std::uint32_t kBlocked = ANYCHIP_OP_PREPARES_WEIGHT;

// The caches of this backend hold one of the two types, whatever the model computes in.
const char* const kCacheTypes[] = {"float32", "bfloat16"};
const anychip_need_t kCacheNeeds[] = {{"kv_dtype", ANYCHIP_NEED_ONE_OF, 2, nullptr, kCacheTypes}};

constexpr anychip_op_t op(const char* name, int32_t (*run)(const anychip_args_t*), std::uint32_t flags,
                          const anychip_need_t* needs = nullptr, std::uint32_t need_count = 0) {
  return {sizeof(anychip_op_t), 1, name, name, kFloats, flags, run, needs, need_count, 0};
}

}  // namespace

const anychip_op_t kOps[] = {
    op("add", add, kStrided),
    op("rms_norm", rms_norm, kStrided),
    op("add_rms_norm", add_rms_norm, kStrided),
    op("silu_mul", silu_mul, kStrided),
    op("linear", linear, kBlocked),
    op("lm_head", lm_head, kBlocked),
    op("embedding", embedding, 0),
    op("select_rows", select_rows, 0),
    op("rope", rope, kStrided),
    op("qk_norm_rope", qk_norm_rope, kStrided),
    op("kv_write", kv_write, kStrided, kCacheNeeds, 1),
    op("paged_attention", paged_attention, kStrided, kCacheNeeds, 1),
    op("argmax", argmax, 0),
};
const std::uint32_t kOpCount = sizeof kOps / sizeof kOps[0];
