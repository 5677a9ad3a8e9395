// A causal convolution and the gated delta rule over states in slots. Knows Simd; knows no threads.
//
// Include after simd_*.hpp. A token is computed from its row's state and itself in an order that only sizes decide,
// so its bits are the same in every chunk, in any company and however many columns are worked on at once.
#pragma once

#include "recurrent.hpp"
#include "rows_kernel.hpp"

namespace {

namespace recurrent {

using anychip::ConvolveArgs;
using anychip::DeltaArgs;
using anychip::SlotRows;
using rows::at;
using rows::load_few;
using rows::store_few;
using F = Simd::F;
constexpr int W = Simd::kWidth;

// The last rows are the longest, so the parts are numbered from behind.
struct Place {
  std::int64_t slot, start, stop, part;
};

inline Place place_of(const SlotRows& rows, std::int64_t index, std::int64_t parts) {
  const std::int64_t row = rows.rows - 1 - index / parts;
  return {rows.slots[row], rows.query_start[row], rows.query_start[row + 1], index % parts};
}

template <class T>
inline F load_some(const T* p, std::int64_t n) {
  return n >= W ? Simd::load(p) : load_few(p, n);
}

template <class T>
inline void store_some(T* p, F x, std::int64_t n) {
  if (n >= W)
    Simd::store(p, x);
  else
    store_few(p, x, n);
}

template <class T>
inline float number(const T* p) {
  alignas(64) float lanes[W];
  Simd::store(lanes, load_few(p, 1));
  return lanes[0];
}

// Some channels of one row. `weight` holds [taps + 1, kConvolvedChannels].
template <class T>
void convolve_row(const ConvolveArgs& args, const Place& row, std::int64_t first, std::int64_t count,
                  const float* weight) {
  float* history = args.history + row.slot * args.slot_stride + first;
  const T* x = at<T>(args.x, row.start * args.x_stride + first);
  T* out = at<T>(args.out, row.start * args.channels + first);
  const std::int64_t tokens = row.stop - row.start, taps = args.taps;
  for (std::int64_t t = 0; t < tokens; ++t)
    for (std::int64_t c = 0; c < count; c += W) {
      const std::int64_t n = count - c;
      F total = Simd::zero();
      for (std::int64_t j = 0; j <= taps; ++j) {
        const std::int64_t from = t + j - taps;  // before the row: what the slot holds
        const F seen = from < 0 ? load_some(history + (from + taps) * args.channels + c, n)
                                : load_some(x + from * args.x_stride + c, n);
        total = Simd::fma(seen, Simd::load(weight + j * anychip::kConvolvedChannels + c), total);
      }
      if (args.bias != nullptr) total = total + load_some(at<T>(args.bias, first + c), n);
      store_some(out + t * args.channels + c, rows::silu(total), n);
    }
  for (std::int64_t j = 0; j < taps; ++j) {
    const std::int64_t from = tokens + j - taps;
    for (std::int64_t c = 0; c < count; c += W) {
      const std::int64_t n = count - c;
      const F kept = from < 0 ? load_some(history + (from + taps) * args.channels + c, n)
                              : load_some(x + from * args.x_stride + c, n);
      store_some(history + j * args.channels + c, kept, n);
    }
  }
}

template <class T>
void convolve(const ConvolveArgs& args, std::int64_t begin, std::int64_t end) {
  alignas(64) float weight[anychip::kKernelMax * anychip::kConvolvedChannels];
  alignas(64) float wide[anychip::kKernelMax * anychip::kConvolvedChannels];
  const std::int64_t parts = (args.channels + anychip::kConvolvedChannels - 1) / anychip::kConvolvedChannels;
  const std::int64_t kernel = args.taps + 1;
  for (std::int64_t index = begin; index < end; ++index) {
    const Place row = place_of(args.rows, index, parts);
    const std::int64_t first = row.part * anychip::kConvolvedChannels;
    const std::int64_t count = smaller(anychip::kConvolvedChannels, args.channels - first);
    const T* from = at<T>(args.weight, first * kernel);
    for (std::int64_t i = 0; i < count * kernel; i += W) store_some(wide + i, load_some(from + i, count * kernel - i), W);
    for (std::int64_t c = 0; c < round_up(count, W); ++c)
      for (std::int64_t j = 0; j < kernel; ++j)
        weight[j * anychip::kConvolvedChannels + c] = c < count ? wide[c * kernel + j] : 0.0f;
    convolve_row<T>(args, row, first, count, weight);
  }
}

// What a token brings to one head.
struct Token {
  alignas(64) float k[anychip::kKeyDimMax];
  alignas(64) float q[anychip::kKeyDimMax];
  float k_times_q, decay, share;
};

// x brought to the length `size`
template <class T>
inline void unit(const T* x, float* out, std::int64_t dim, float eps, float size) {
  F sum = Simd::zero();
  for (std::int64_t i = 0; i < dim; i += W) {
    const F v = load_some(x + i, dim - i);
    sum = Simd::fma(v, v, sum);
  }
  const F factor = Simd::set(size / __builtin_sqrtf(Simd::sum(sum) + eps));
  for (std::int64_t i = 0; i < dim; i += W) store_some(out + i, load_some(x + i, dim - i) * factor, dim - i);
}

// log(1 + e^x)
inline float softplus(float x) {
  return (x > 0.0f ? x : x != x ? x : 0.0f) + __builtin_log1pf(__builtin_expf(-__builtin_fabsf(x)));
}

template <class T>
void prepare(const DeltaArgs& args, std::int64_t token, std::int64_t head, Token& out) {
  const std::int64_t dim = args.key_dim, from = head / (args.value_heads / args.key_heads) * dim;
  const float eps = static_cast<float>(args.eps);
  unit(at<T>(args.k, token * args.k_stride + from), out.k, dim, eps, 1.0f);
  unit(at<T>(args.q, token * args.q_stride + from), out.q, dim, eps, 1.0f / __builtin_sqrtf(static_cast<float>(dim)));
  F sum = Simd::zero();
  for (std::int64_t i = 0; i < dim; i += W)
    sum = Simd::fma(load_some(out.k + i, dim - i), load_some(out.q + i, dim - i), sum);
  out.k_times_q = Simd::sum(sum);
  const float time = softplus(number(at<T>(args.a, token * args.a_stride + head)) + args.dt_bias[head]);
  out.decay = __builtin_expf(-__builtin_expf(args.a_log[head]) * time);
  out.share = 1.0f / (1.0f + __builtin_expf(-number(at<T>(args.b, token * args.b_stride + head))));
}

// N vectors of columns moved by one token; n < W: of the only one, so many. The output reads the state before it moves:
// S' q is decay times what it was, and (k q) times what is written.
template <class T, int N, bool kWhole>
inline void move(const DeltaArgs& args, const Token& token, float* sums, const T* v, T* out, std::int64_t n) {
  const auto load = [n](const auto* p) { return kWhole ? Simd::load(p) : load_few(p, n); };
  const auto store = [n](auto* p, F x) { kWhole ? Simd::store(p, x) : store_few(p, x, n); };
  F by_key[N], by_query[N], change[N];
  for (int c = 0; c < N; ++c) by_key[c] = by_query[c] = Simd::zero();
  float* row = sums;
  for (std::int64_t i = 0; i < args.key_dim; ++i, row += args.value_dim) {
    const F k = Simd::set(token.k[i]), q = Simd::set(token.q[i]);
    for (int c = 0; c < N; ++c) {
      const F old = load(row + c * W);
      by_key[c] = Simd::fma(old, k, by_key[c]);
      by_query[c] = Simd::fma(old, q, by_query[c]);
    }
  }
  const F decay = Simd::set(token.decay), share = Simd::set(token.share), k_times_q = Simd::set(token.k_times_q);
  for (int c = 0; c < N; ++c) {
    change[c] = share * (load(v + c * W) - decay * by_key[c]);
    store(out + c * W, Simd::fma(k_times_q, change[c], decay * by_query[c]));
  }
  row = sums;
  for (std::int64_t i = 0; i < args.key_dim; ++i, row += args.value_dim) {
    const F k = Simd::set(token.k[i]);
    for (int c = 0; c < N; ++c) store(row + c * W, Simd::fma(k, change[c], decay * load(row + c * W)));
  }
}

// Columns from `first` on for all tokens of a block.
template <class T, int N, bool kWhole = true>
inline void move_block(const DeltaArgs& args, const Place& row, const Token* tokens, std::int64_t start,
                       std::int64_t count, std::int64_t first, std::int64_t n = W) {
  const std::int64_t head = row.part;
  float* sums = args.sums + row.slot * args.slot_stride + head * args.key_dim * args.value_dim + first;
  for (std::int64_t t = 0; t < count; ++t)
    move<T, N, kWhole>(args, tokens[t], sums, at<T>(args.v, (start + t) * args.v_stride + head * args.value_dim + first),
               at<T>(args.out, ((start + t) * args.value_heads + head) * args.value_dim + first), n);
}

// vectors whose two sums stay in registers: of one token, whose columns are read in the order of memory, and of several,
// whose columns had better stay in the nearest cache
constexpr int kWide = Simd::kSums / 3, kNarrow = 4;
constexpr std::int64_t kBlock = 8;  // tokens that are prepared at once

template <class T>
void delta(const DeltaArgs& args, std::int64_t begin, std::int64_t end) {
  Token tokens[kBlock];
  for (std::int64_t index = begin; index < end; ++index) {
    const Place row = place_of(args.rows, index, args.value_heads);
    for (std::int64_t start = row.start; start < row.stop; start += kBlock) {
      const std::int64_t count = smaller(kBlock, row.stop - start);
      for (std::int64_t t = 0; t < count; ++t) prepare<T>(args, start + t, row.part, tokens[t]);
      std::int64_t first = 0;
      if (count == 1)
        for (; first + kWide * W <= args.value_dim; first += kWide * W)
          move_block<T, kWide>(args, row, tokens, start, count, first);
      for (; first + kNarrow * W <= args.value_dim; first += kNarrow * W)
        move_block<T, kNarrow>(args, row, tokens, start, count, first);
      for (; first + W <= args.value_dim; first += W) move_block<T, 1>(args, row, tokens, start, count, first);
      if (first < args.value_dim)
        move_block<T, 1, false>(args, row, tokens, start, count, first, args.value_dim - first);
    }
  }
}

constexpr anychip::RecurrentKernels kKernels = {
    {convolve<float>, convolve<bf16>, convolve<half>},
    {delta<float>, delta<bf16>, delta<half>},
};

}  // namespace recurrent

}  // namespace
