// Products of each head's rows with a matrix of its own. Knows Simd; knows no threads.
//
// Include after simd_*.hpp. What a row gets is summed in an order that the matrix's size alone decides.
#pragma once

#include <cstring>

#include "numbers.hpp"
#include "rows.hpp"

namespace {

namespace head_product {

using anychip::HeadProductArgs;
using F = Simd::F;
constexpr int W = Simd::kWidth;
constexpr int kRows = W == 16 ? 4 : 2;  // tokens that share what is read of a matrix
constexpr int kOutputs = 4;             // of a token, that share what is read of it

// One head's tokens and some of its outputs.
template <class T>
struct Piece {
  const HeadProductArgs& args;
  const T* x;
  const T* weight;
  T* out;

  const T* row(std::int64_t token) const { return x + token * args.x_token; }

  // Rows of the matrix are added, each as often as the token's number says.
  template <int R, int V>
  void add_rows(const float (&wide)[R][anychip::kHeadDimMax], std::int64_t token, std::int64_t output) const {
    F sums[R][V];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < V; ++j) sums[r][j] = Simd::zero();
    const T* from = weight + output;
    for (std::int64_t k = 0; k < args.in; ++k, from += args.outputs) {
      F parts[V];
#pragma GCC unroll 8
      for (int j = 0; j < V; ++j) parts[j] = Simd::load(from + j * W);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const F one = Simd::set(wide[r][k]);
#pragma GCC unroll 8
        for (int j = 0; j < V; ++j) sums[r][j] = Simd::fma(parts[j], one, sums[r][j]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
      for (int j = 0; j < V; ++j) Simd::store(out + (token + r) * args.out_token + output + j * W, sums[r][j]);
  }

  // A row of the matrix for each output.
  template <int R, int N>
  void dot_rows(std::int64_t token, std::int64_t output) const {
    F sums[N][R];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sums[n][r] = Simd::zero();
    const T* from = weight + output * args.in;
    for (std::int64_t k = 0; k < args.in; k += W) {
      F parts[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) parts[r] = Simd::load(row(token + r) + k);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        const F one = Simd::load(from + n * args.in + k);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) sums[n][r] = Simd::fma(one, parts[r], sums[n][r]);
      }
    }
    for (int n = 0; n < N; ++n)
      for (int r = 0; r < R; ++r) put(out + (token + r) * args.out_token + output + n, Simd::sum(sums[n][r]));
  }

  template <int R>
  void tokens(std::int64_t token, std::int64_t begin, std::int64_t end) const {
    constexpr int V = R == 1 ? 8 : 4;
    std::int64_t at = begin;
    if (!args.is_transposed) {
      alignas(64) float wide[R][anychip::kHeadDimMax];
      for (int r = 0; r < R; ++r) widen(row(token + r), wide[r]);
      for (; at + V * W <= end; at += V * W) add_rows<R, V>(wide, token, at);
      for (; at < end; at += W) add_rows<R, 1>(wide, token, at);
    } else {
      for (; at + kOutputs <= end; at += kOutputs) dot_rows<R, kOutputs>(token, at);
      for (; at < end; ++at) dot_rows<R, 1>(token, at);
    }
  }

 private:
  void widen(const T* from, float* to) const {
    std::int64_t k = 0;
    for (; k + W <= args.in; k += W) Simd::store(to + k, Simd::load(from + k));
    if (k == args.in) return;
    T lanes[W] = {};
    std::memcpy(lanes, from + k, (args.in - k) * sizeof(T));
    Simd::store(to + k, Simd::load(lanes));
  }
  static void put(float* to, float x) { *to = x; }
  template <class Half>
  static void put(Half* to, float x) {
    Half lanes[W];
    Simd::store(lanes, Simd::set(x));
    *to = lanes[0];
  }
};

template <class T>
void run(const HeadProductArgs& args, std::int64_t begin, std::int64_t end) {
  const std::int64_t blocks = args.blocks();
  for (std::int64_t item = begin; item < end; ++item) {
    const std::int64_t head = item / blocks, first = item % blocks * HeadProductArgs::kBlock;
    const std::int64_t last = smaller(first + HeadProductArgs::kBlock, args.outputs);
    const Piece<T> piece{args, static_cast<const T*>(args.x) + head * args.x_head,
                         static_cast<const T*>(args.weight) + head * args.in * args.outputs,
                         static_cast<T*>(args.out) + head * args.out_head};
    std::int64_t token = 0;
    for (; token + kRows <= args.tokens; token += kRows) piece.template tokens<kRows>(token, first, last);
    for (; token < args.tokens; ++token) piece.template tokens<1>(token, first, last);
    if (args.tail_dim == 0 || first > 0) continue;
    const T* tail = static_cast<const T*>(args.tail) + head * args.tail_head;
    for (token = 0; token < args.tokens; ++token)
      std::memcpy(piece.out + token * args.out_token + args.outputs, tail + token * args.tail_token,
                  args.tail_dim * sizeof(T));
  }
}

}  // namespace head_product

}  // namespace
