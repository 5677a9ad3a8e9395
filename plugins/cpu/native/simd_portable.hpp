// Vectors of four floats in the compiler's own notation: any processor. Knows no kernel.
#pragma once

#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "numbers.hpp"

namespace {

struct Simd {
  using F = float __attribute__((vector_size(16)));
  using D = double __attribute__((vector_size(16)));  // half as many doubles
  using I = std::int32_t __attribute__((vector_size(16)));
  static constexpr int kWidth = 4;
  static constexpr int kRowTile = 2;  // rows and vectors that a kernel keeps in registers
  static constexpr int kVectorTile = 4;
  static constexpr int kSums = 12;  // that stay in registers beside what is summed

  static F zero() { return F{}; }
  static F set(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof x);
    return x;
  }
  static F load(const bf16* p) {
    F x;
    for (int i = 0; i < kWidth; ++i) x[i] = widen(p[i]);
    return x;
  }
  static F load(const half* p) {
    F x;
    for (int i = 0; i < kWidth; ++i) x[i] = widen(p[i]);
    return x;
  }
  // neighbours for two vectors
  template <class T>
  static void load_two(const T* p, F* out) {
    out[0] = load(p), out[1] = load(p + kWidth);
  }
  template <class T>
  static void put_in_order(float*) {}
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof x); }
  static void store(bf16* p, F x) {
    for (int i = 0; i < kWidth; ++i) p[i] = to_bf16(x[i]);
  }
  static void store(half* p, F x) {
    for (int i = 0; i < kWidth; ++i) p[i] = to_half(x[i]);
  }
  // the lowest byte of each number's bits
  static void store_low_bytes(std::int8_t* p, F x) {
    const I bits = (I)x;
    for (int i = 0; i < kWidth; ++i) p[i] = static_cast<std::int8_t>(bits[i]);
  }
  static F size(F x) { return (F)((I)x & 0x7fffffff); }
  // of two sizes; what is no number is above all
  static F larger_size(F a, F b) { return (I)a > (I)b ? a : b; }
  static float largest_size(F x) {
    const I bits = (I)x;
    return from_bits(larger(larger(bits[0], bits[1]), larger(bits[2], bits[3])));
  }
  static F fma(F a, F b, F c) {
#if defined(__aarch64__)
    return (F)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
  }
  static D fma(D a, D b, D c) { return a * b + c; }
  // a NaN in x stays one
  static F at_least(float low, F x) {
    const F bound = set(low);
    return x < bound ? bound : x;
  }
  static F max(F a, F b) { return a > b ? a : b; }
  static F keep(F x, F index, float first, float last) {
    return (index >= set(first)) & (index <= set(last)) ? x : set(-kInfinity);
  }
  static F round(F x) { return (x + set(12582912.0f)) - set(12582912.0f); }
  static F scale(F x, F power) {  // x * 2^power for a whole power of at least -252, in two normal steps
    const I n = __builtin_convertvector(power, I), first = n >> 1;
    return x * (F)((first + 127) << 23) * (F)((n - first + 127) << 23);
  }
  static F where_negative(F x, F a, F b) { return x < zero() ? a : b; }
  static bool any_nan(F x) {
    const I strange = x != x;
    return (strange[0] | strange[1] | strange[2] | strange[3]) != 0;
  }
  static float sum(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }
  static float max(F x) { return larger(larger(x[0], x[1]), larger(x[2], x[3])); }
  // lane i: sum(r[i])
  static F sum_each(const F* r) {
    alignas(F) float lanes[kWidth];
    for (int i = 0; i < kWidth; ++i) lanes[i] = sum(r[i]);
    return load(lanes);
  }
  static F iota() { return F{0.0f, 1.0f, 2.0f, 3.0f}; }
  static void transpose(F* rows) {
    for (int i = 0; i < kWidth; ++i)
      for (int j = i + 1; j < kWidth; ++j) {
        const float x = rows[i][j];
        rows[i][j] = rows[j][i];
        rows[j][i] = x;
      }
  }

 private:
  static float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }
  static std::uint32_t to_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
  }
  static float widen(bf16 x) { return from_bits(std::uint32_t(x.bits) << 16); }
  static bf16 to_bf16(float x) {
    const std::uint32_t bits = to_bits(x);
    if (x != x) return {std::uint16_t((bits >> 16) | 0x40)};
    return {std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
  }
  static float widen(half x) {
    const std::uint32_t sign = std::uint32_t(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | ((rest & 0x3ff) << 13));
    // a half's exponent shifted into place is 112 too small; the product mends it, for subnormal ones too
    const float value = from_bits(rest << 13) * 0x1p112f;
    return sign ? -value : value;
  }
  static half to_half(float x) {
    const std::uint32_t bits = to_bits(x);
    const std::uint16_t sign = (bits >> 16) & 0x8000;
    const float size = from_bits(bits & 0x7fffffff);
    if (x != x) return {std::uint16_t(sign | 0x7e00)};
    if (size >= 65520.0f) return {std::uint16_t(sign | 0x7c00)};
    if (size < 0x1p-14f) {  // subnormal: adding this power of two rounds to steps of 2^-24
      return {std::uint16_t(sign | (to_bits(size + 0.5f) - to_bits(0.5f)))};
    }
    const std::uint32_t own = to_bits(size);
    return {std::uint16_t(sign | ((own - 0x38000000 + 0xfff + ((own >> 13) & 1)) >> 13))};
  }
};

}  // namespace
