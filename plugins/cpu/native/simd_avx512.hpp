// Vectors of sixteen floats on AVX-512. Knows no kernel.
#pragma once

#include <immintrin.h>

#include "numbers.hpp"

namespace {

struct Simd {
  using F = __m512;
  using D = __m512d;  // half as many doubles
  static constexpr int kWidth = 16;
  static constexpr int kRowTile = 6;
  static constexpr int kVectorTile = 4;
  static constexpr int kSums = 24;  // that stay in registers beside what is summed

  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const bf16* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
  }
  static F load(const half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
  // neighbours for two vectors
  template <class T>
  static void load_two(const T* p, F* out) {
    out[0] = load(p), out[1] = load(p + kWidth);
  }
  template <class T>
  static void put_in_order(float*) {}
  static void store(float* p, F x) { _mm512_storeu_ps(p, x); }
  static void store(bf16* p, F x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
  }
  static void store(half* p, F x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  // the lowest byte of each number's bits
  static void store_low_bytes(std::int8_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_castps_si512(x)));
  }
  static F size(F x) { return _mm512_abs_ps(x); }
  // of two sizes; what is no number is above all
  static F larger_size(F a, F b) {
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
  }
  static float largest_size(F x) {
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(_mm512_castps_si512(x)))));
  }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static D fma(D a, D b, D c) { return _mm512_fmadd_pd(a, b, c); }
  static F at_least(float low, F x) { return _mm512_max_ps(set(low), x); }  // a NaN in the second operand is returned
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static F keep(F x, F index, float first, float last) {
    const __mmask16 low = _mm512_cmp_ps_mask(index, set(first), _CMP_GE_OQ);
    return _mm512_mask_blend_ps(_mm512_mask_cmp_ps_mask(low, index, set(last), _CMP_LE_OQ), set(-kInfinity), x);
  }
  static F round(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  static F scale(F x, F power) { return _mm512_scalef_ps(x, power); }
  static F where_negative(F x, F a, F b) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), b, a);
  }
  static bool any_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
  static float sum(F x) { return _mm512_reduce_add_ps(x); }
  static float max(F x) { return _mm512_reduce_max_ps(x); }
  // lane i: sum(r[i]), whose lanes are added in the same order
  static F sum_each(const F* r) {
    F quarters[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const F a = join_halves(r[i], r[i + 4]), b = join_halves(r[i + 8], r[i + 12]);
      quarters[i] = _mm512_shuffle_f32x4(a, b, 0x88) + _mm512_shuffle_f32x4(a, b, 0xdd);
    }
    const F a = _mm512_shuffle_ps(quarters[0], quarters[1], 0x44) + _mm512_shuffle_ps(quarters[0], quarters[1], 0xee);
    const F b = _mm512_shuffle_ps(quarters[2], quarters[3], 0x44) + _mm512_shuffle_ps(quarters[2], quarters[3], 0xee);
    return _mm512_shuffle_ps(a, b, 0x88) + _mm512_shuffle_ps(a, b, 0xdd);
  }
  static F iota() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
  static void transpose(F* r) {
    F t[16], u[16];
    for (int i = 0; i < 16; i += 2) {
      t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
      t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
      for (int j = 0; j < 2; ++j) {
        const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
        u[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        u[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
      }
    for (int i = 0; i < 4; ++i) {  // 128-bit lane l of u[4 g + i] holds column 4 l + i of rows 4 g .. 4 g + 3
      const F a = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88), b = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
      const F c = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88), d = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
      r[i] = _mm512_shuffle_f32x4(a, c, 0x88);
      r[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
      r[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
      r[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
  }

 private:
  // the sums of both halves of a, then those of b
  static F join_halves(F a, F b) { return _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee); }
};

}  // namespace
