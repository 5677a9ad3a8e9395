// Vectors of eight floats on AVX2 with FMA and F16C. Knows no kernel.
#pragma once

#include <immintrin.h>

#include <type_traits>

#include "numbers.hpp"

namespace {

struct Simd {
  using F = __m256;
  using D = __m256d;  // half as many doubles
  static constexpr int kWidth = 8;
  static constexpr int kRowTile = 2;
  static constexpr int kVectorTile = 4;
  static constexpr int kSums = 12;  // that stay in registers beside what is summed

  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const bf16* p) {
    const __m256i both = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i upper = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                           -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(both, upper));
  }
  static F load(const half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  // neighbours for two vectors; bfloat16 at even places for one, at odd ones for the other
  template <class T>
  static void load_two(const T* p, F* out) {
    out[0] = load(p), out[1] = load(p + kWidth);
  }
  static void load_two(const bf16* p, F* out) {
    __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    asm("" : "+x"(pairs));  // else it is loaded for each of them
    out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  // floats that lie as load_two has T's come to lie as in memory
  template <class T>
  static void put_in_order(float* p) {
    if (!std::is_same<T, bf16>::value) return;
    const F even = load(p), odd = load(p + kWidth);
    const F low = _mm256_unpacklo_ps(even, odd), high = _mm256_unpackhi_ps(even, odd);
    store(p, _mm256_permute2f128_ps(low, high, 0x20));
    store(p + kWidth, _mm256_permute2f128_ps(low, high, 0x31));
  }
  static void store(float* p, F x) { _mm256_storeu_ps(p, x); }
  static void store(bf16* p, F x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
  }
  static void store(half* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
  }
  // the lowest byte of each number's bits
  static void store_low_bytes(std::int8_t* p, F x) {
    const __m256i lowest = _mm256_set1_epi32(0x0c080400);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_castps_si256(x), lowest);
    const __m128i both = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), both);
  }
  static F size(F x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff))); }
  // of two sizes; what is no number is above all
  static F larger_size(F a, F b) {
    return _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
  }
  static float largest_size(F x) {
    const F halves = larger_size(x, _mm256_permute2f128_ps(x, x, 1));
    const F pairs = larger_size(halves, _mm256_shuffle_ps(halves, halves, 0x4e));
    return _mm256_cvtss_f32(larger_size(pairs, _mm256_shuffle_ps(pairs, pairs, 0xb1)));
  }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static D fma(D a, D b, D c) { return _mm256_fmadd_pd(a, b, c); }
  static F at_least(float low, F x) { return _mm256_max_ps(set(low), x); }  // a NaN in the second operand is returned
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F keep(F x, F index, float first, float last) {
    const F inside =
        _mm256_and_ps(_mm256_cmp_ps(index, set(first), _CMP_GE_OQ), _mm256_cmp_ps(index, set(last), _CMP_LE_OQ));
    return _mm256_blendv_ps(set(-kInfinity), x, inside);
  }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale(F x, F power) {  // x * 2^power for a whole power of at least -252, in two normal steps
    const __m256i n = _mm256_cvtps_epi32(power), first = _mm256_srai_epi32(n, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const auto factor = [&](__m256i part) {
      return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(part, bias), 23));
    };
    return _mm256_mul_ps(_mm256_mul_ps(x, factor(first)), factor(_mm256_sub_epi32(n, first)));
  }
  static F where_negative(F x, F a, F b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, zero(), _CMP_LT_OQ)); }
  static bool any_nan(F x) { return _mm256_movemask_ps(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)) != 0; }
  static float sum(F x) {
    __m128 half_sum = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half_sum = _mm_add_ps(half_sum, _mm_movehl_ps(half_sum, half_sum));
    return _mm_cvtss_f32(_mm_add_ss(half_sum, _mm_shuffle_ps(half_sum, half_sum, 1)));
  }
  static float max(F x) {
    __m128 most = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    most = _mm_max_ps(most, _mm_movehl_ps(most, most));
    return _mm_cvtss_f32(_mm_max_ss(most, _mm_shuffle_ps(most, most, 1)));
  }
  // lane i: sum(r[i]), whose lanes are added in the same order
  static F sum_each(const F* r) {
    F pairs[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F a = r[i], b = r[i + 4];
      pairs[i] = _mm256_blend_ps(a, b, 0xf0) + _mm256_permute2f128_ps(a, b, 0x21);
    }
    const F a = _mm256_blend_ps(pairs[0], pairs[1], 0xcc) + _mm256_shuffle_ps(pairs[0], pairs[1], 0x4e);
    const F b = _mm256_blend_ps(pairs[2], pairs[3], 0xcc) + _mm256_shuffle_ps(pairs[2], pairs[3], 0x4e);
    return _mm256_shuffle_ps(a, b, 0x88) + _mm256_shuffle_ps(a, b, 0xdd);
  }
  static F iota() { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
  static void transpose(F* r) {
    F t[8], u[8];
    for (int i = 0; i < 8; i += 2) {
      t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
      for (int j = 0; j < 2; ++j) {
        u[i + 2 * j] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0x44);
        u[i + 2 * j + 1] = _mm256_shuffle_ps(t[i + j], t[i + j + 2], 0xee);
      }
    for (int i = 0; i < 4; ++i) {
      r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
      r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
  }
};

}  // namespace
