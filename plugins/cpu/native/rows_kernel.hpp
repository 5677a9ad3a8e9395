// Norms, rotations, gates and the largest logit, row by row. Knows Simd; knows no threads.
//
// Include after simd_*.hpp. A row's sums go over it in an order that its length alone decides.
#pragma once

#include "exponential.hpp"
#include "head_product_kernel.hpp"
#include "numbers.hpp"
#include "rows.hpp"

namespace {

namespace rows {

using anychip::ArgmaxArgs;
using anychip::GatedArgs;
using anychip::HeadsArgs;
using anychip::HeadsPart;
using anychip::NormArgs;
using F = Simd::F;
constexpr int W = Simd::kWidth;

// The first n < W elements, zeros behind them.
template <class T>
inline F load_few(const T* p, std::int64_t n) {
  T lanes[W] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
  return Simd::load(lanes);
}

template <class T>
inline void store_few(T* p, F x, std::int64_t n) {
  T lanes[W];
  Simd::store(lanes, x);
  for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
}

template <class T>
inline T* at(void* base, std::int64_t index) {
  return static_cast<T*>(base) + index;
}

template <class T>
inline const T* at(const void* base, std::int64_t index) {
  return static_cast<const T*>(base) + index;
}

// 1 / sqrt(mean(x^2) + eps), x(i) being the vector from element i on and few(i, n) the last n elements.
template <class Load, class LoadFew>
inline float inverse_norm(std::int64_t dim, float eps, Load x, LoadFew few) {
  constexpr int kSums = 4;
  F sums[kSums] = {Simd::zero(), Simd::zero(), Simd::zero(), Simd::zero()};
  std::int64_t i = 0;
  for (; i + kSums * W <= dim; i += kSums * W)
    for (int j = 0; j < kSums; ++j) {
      const F v = x(i + j * W);
      sums[j] = Simd::fma(v, v, sums[j]);
    }
  for (; i + W <= dim; i += W) {
    const F v = x(i);
    sums[0] = Simd::fma(v, v, sums[0]);
  }
  if (i < dim) {
    const F v = few(i, dim - i);
    sums[0] = Simd::fma(v, v, sums[0]);
  }
  const float total = Simd::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
  return 1.0f / __builtin_sqrtf(total / static_cast<float>(dim) + eps);
}

template <class T>
void norm_row(const T* x, const T* weight, T* out, std::int64_t dim, float eps, float offset) {
  const auto load = [&](std::int64_t i) { return Simd::load(x + i); };
  const auto few = [&](std::int64_t i, std::int64_t n) { return load_few(x + i, n); };
  const F factor = Simd::set(inverse_norm(dim, eps, load, few)), first = Simd::set(offset);
  std::int64_t i = 0;
  for (; i + W <= dim; i += W) Simd::store(out + i, Simd::load(x + i) * factor * (first + Simd::load(weight + i)));
  if (i < dim) store_few(out + i, load_few(x + i, dim - i) * factor * (first + load_few(weight + i, dim - i)), dim - i);
}

template <class T>
void add_row(const T* x, const T* y, T* out, std::int64_t dim) {
  std::int64_t i = 0;
  for (; i + W <= dim; i += W) Simd::store(out + i, Simd::load(x + i) + Simd::load(y + i));
  if (i < dim) store_few(out + i, load_few(x + i, dim - i) + load_few(y + i, dim - i), dim - i);
}

template <class T>
void norm(const NormArgs& args, std::int64_t begin, std::int64_t end) {
  const float eps = static_cast<float>(args.eps), offset = static_cast<float>(args.offset);
  for (std::int64_t row = begin; row < end; ++row) {
    const T* x = at<T>(args.x, row * args.x_stride);
    if (args.residual != nullptr) {
      T* total = at<T>(args.total, row * args.dim);
      add_row(x, at<T>(args.residual, row * args.residual_stride), total, args.dim);
      x = total;
    }
    if (args.weight != nullptr)
      norm_row(x, at<T>(args.weight, 0), at<T>(args.out, row * args.dim), args.dim, eps, offset);
  }
}

// The pairs (x[i], x[i + half]) of a head turned by angles whose cosines and sines lie in a row of the table.
template <class T>
void turn(const float* x, const float* cosines, const float* sines, std::int64_t half, T* out) {
  std::int64_t i = 0;
  for (; i + W <= half; i += W) {
    const F a = Simd::load(x + i), b = Simd::load(x + half + i);
    const F c = Simd::load(cosines + i), s = Simd::load(sines + i);
    Simd::store(out + i, a * c - b * s);
    Simd::store(out + half + i, b * c + a * s);
  }
  if (i == half) return;
  const std::int64_t n = half - i;
  const F a = load_few(x + i, n), b = load_few(x + half + i, n), c = load_few(cosines + i, n), s = load_few(sines + i, n);
  store_few(out + i, a * c - b * s, n);
  store_few(out + half + i, b * c + a * s, n);
}

// `wide` holds one head.
template <class T>
void head(const HeadsArgs& args, const HeadsPart& part, const float* angles, const T* from, T* to, float* wide) {
  const std::int64_t dim = args.head_dim;
  const auto each = [&](auto change) {
    std::int64_t i = 0;
    for (; i + W <= dim; i += W) Simd::store(wide + i, change(Simd::load(from + i), i, W));
    if (i < dim) store_few(wide + i, change(load_few(from + i, dim - i), i, dim - i), dim - i);
  };
  if (part.weight == nullptr) {
    each([](F x, std::int64_t, std::int64_t) { return x; });
  } else {
    const T* weight = at<T>(part.weight, 0);
    const auto load = [&](std::int64_t i) { return Simd::load(from + i); };
    const auto few = [&](std::int64_t i, std::int64_t n) { return load_few(from + i, n); };
    const F factor = Simd::set(inverse_norm(dim, static_cast<float>(args.eps), load, few));
    each([&](F x, std::int64_t i, std::int64_t n) {
      return x * factor * (n == W ? Simd::load(weight + i) : load_few(weight + i, n));
    });
  }
  std::int64_t done = 0;
  if (part.is_turned) {
    done = args.rotary_dim;
    turn(wide, angles, angles + done / 2, done / 2, to);
  }
  for (; done + W <= dim; done += W) Simd::store(to + done, Simd::load(wide + done));
  if (done < dim) store_few(to + done, load_few(wide + done, dim - done), dim - done);
}

template <class T>
void heads(const HeadsArgs& args, std::int64_t begin, std::int64_t end) {
  alignas(64) float wide[anychip::kHeadDimMax];
  for (std::int64_t token = begin; token < end; ++token)
    for (const HeadsPart& part : args.parts) {
      if (part.heads == 0) continue;
      const std::int64_t page = part.is_cached ? args.slots[token] / args.page_size : 0;
      const std::int64_t place = part.is_cached ? args.slots[token] % args.page_size : token;
      const T* from = at<T>(part.from, token * part.from_token);
      T* to = at<T>(part.to, page * part.to_page + place * part.to_token);
      const float* angles = part.is_turned ? args.table + args.positions[token] * args.rotary_dim : nullptr;
      const bool is_copied = !part.is_turned && part.weight == nullptr;
      for (std::int64_t i = 0; i < part.heads; ++i, from += part.from_head, to += part.to_head) {
        if (is_copied)
          __builtin_memcpy(to, from, args.head_dim * sizeof(T));
        else
          head(args, part, angles, from, to, wide);
      }
    }
}

// 1 / (1 + e^-x), without a power that overflows
inline F sigmoid(F x) {
  const F small = exp_negative(Simd::zero() - Simd::max(x, Simd::zero() - x));
  return Simd::where_negative(x, small, Simd::set(1.0f)) / (Simd::set(1.0f) + small);
}

inline F silu(F x) { return x * sigmoid(x); }

// the approximation by a hyperbolic tangent: 1 + tanh(y) is 2 sigmoid(2 y)
inline F gelu(F x) {
  const F inner = x * Simd::fma(x * x, Simd::set(0.044715f), Simd::set(1.0f));
  return x * sigmoid(inner * Simd::set(1.5957691216057308f));
}

template <class T, F (*gate)(F)>
void gated_row(const T* x, const T* up, T* out, std::int64_t dim) {
  std::int64_t i = 0;
  for (; i + W <= dim; i += W) Simd::store(out + i, gate(Simd::load(x + i)) * Simd::load(up + i));
  if (i < dim) store_few(out + i, gate(load_few(x + i, dim - i)) * load_few(up + i, dim - i), dim - i);
}

template <class T>
void scale_row(const T* x, T* out, std::int64_t dim, F factor) {
  std::int64_t i = 0;
  for (; i + W <= dim; i += W) Simd::store(out + i, Simd::load(x + i) * factor);
  if (i < dim) store_few(out + i, load_few(x + i, dim - i) * factor, dim - i);
}

template <class T>
void gated(const GatedArgs& args, std::int64_t begin, std::int64_t end) {
  if (args.kind == anychip::kScale) {
    const F factor = Simd::set(static_cast<float>(args.factor));
    for (std::int64_t row = begin; row < end; ++row)
      scale_row(at<T>(args.gate, row * args.gate_stride), at<T>(args.out, row * args.dim), args.dim, factor);
    return;
  }
  constexpr decltype(&gated_row<T, silu>) kRows[anychip::kGates] = {gated_row<T, silu>, gated_row<T, gelu>,
                                                                    gated_row<T, sigmoid>};
  const auto one = kRows[args.kind];
  for (std::int64_t row = begin; row < end; ++row)
    one(at<T>(args.gate, row * args.gate_stride), at<T>(args.up, row * args.up_stride), at<T>(args.out, row * args.dim),
        args.dim);
}

struct Most {
  float value;
  bool is_strange;  // not a number is among them
};

inline Most most_of(const float* x, std::int64_t begin, std::int64_t end) {
  F most = Simd::set(-kInfinity);
  bool is_strange = false;
  std::int64_t i = begin;
  for (; i + W <= end; i += W) {
    const F v = Simd::load(x + i);
    most = Simd::max(v, most);
    is_strange |= Simd::any_nan(v);
  }
  float top = Simd::max(most);
  for (; i < end; ++i) {
    top = larger(top, x[i]);
    is_strange |= x[i] != x[i];
  }
  return {top, is_strange};
}

// The first of the largest; the first that is not a number, if one is.
inline std::int64_t largest(const float* x, std::int64_t count) {
  constexpr std::int64_t kStretch = 64 * W;
  float best = -kInfinity;
  std::int64_t found = 0;  // where the stretch begins that holds it
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const std::int64_t end = smaller(begin + kStretch, count);
    const Most most = most_of(x, begin, end);
    if (most.is_strange)
      for (std::int64_t i = begin; i < end; ++i)
        if (x[i] != x[i]) return i;
    if (most.value > best) best = most.value, found = begin;
  }
  while (x[found] != best) ++found;
  return found;
}

inline void argmax(const ArgmaxArgs& args, std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) args.ids[row] = largest(args.logits + row * args.stride, args.vocab);
}

constexpr anychip::RowKernels kKernels = {
    {norm<float>, norm<bf16>, norm<half>},
    {heads<float>, heads<bf16>, heads<half>},
    {gated<float>, gated<bf16>, gated<half>},
    argmax,
    {head_product::run<float>, head_product::run<bf16>, head_product::run<half>},
};

}  // namespace rows

}  // namespace
