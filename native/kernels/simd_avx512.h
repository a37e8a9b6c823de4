// 16-lane operations for AVX-512 with VNNI and BF16. Same names and meaning as simd_generic.h.
#pragma once

#include <immintrin.h>

#include "layout.h"

#define SF_INLINE inline __attribute__((always_inline))

// Rows that a product or an attention kernel handles at once: as many sums as fit 32 registers.
#define SF_GEMM_ROWS 8
#define SF_ATTENTION_ROWS 6

typedef __m512 F;   // 16 floats
typedef __m512i I;  // 16 int32, or 64 bytes

SF_INLINE F zero_f() { return _mm512_setzero_ps(); }
SF_INLINE I zero_i() { return _mm512_setzero_si512(); }
SF_INLINE F set1(float x) { return _mm512_set1_ps(x); }
SF_INLINE I set1_i(int32_t x) { return _mm512_set1_epi32(x); }
SF_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
SF_INLINE I load_bytes(const void* p) { return _mm512_loadu_si512(p); }
SF_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x); }
SF_INLINE void store_bytes(void* p, I x) { _mm512_storeu_si512(p, x); }
SF_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
SF_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
SF_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
SF_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
// a * b + c, rounded once where the instruction set can.
SF_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
// NaN in b survives.
SF_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
SF_INLINE F min(F a, F b) { return _mm512_min_ps(a, b); }
SF_INLINE F to_float(I x) { return _mm512_cvtepi32_ps(x); }
// To the nearest, ties to even.
SF_INLINE I to_int(F x) { return _mm512_cvtps_epi32(x); }
SF_INLINE F round_even(F x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SF_INLINE I bits(F x) { return _mm512_castps_si512(x); }
SF_INLINE F from_bits(I x) { return _mm512_castsi512_ps(x); }
SF_INLINE I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
SF_INLINE I and_i(I a, I b) { return _mm512_and_si512(a, b); }
SF_INLINE I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
SF_INLINE I shl23(I x) { return _mm512_slli_epi32(x, 23); }
SF_INLINE I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
SF_INLINE I high_nibbles(I x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
SF_INLINE F load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
SF_INLINE I dot4_vectors(I acc, I w, I a) { return _mm512_dpbusd_epi32(acc, w, a); }
// Hides a register's content from the optimizer.
#define SF_OPAQUE(x) __asm__ volatile("" : "+v"(x))
// Lane c: acc + the dot product of unsigned bytes w[4c..4c+3] with the four signed bytes at a.
SF_INLINE I dot4(I acc, I w, const int8_t* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(quad));
}
// Lane c: acc + the dot product of bf16 w[2c], w[2c+1] with the bf16 pair at b.
SF_INLINE F dot2_bf16(F acc, I w, const void* b) {
  int32_t pair;
  __builtin_memcpy(&pair, b, 4);
  return _mm512_dpbf16_ps(acc, (__m512bh)w, (__m512bh)_mm512_set1_epi32(pair));
}
// Lanes below n from x, the others from y.
SF_INLINE F first(int n, F x, F y) {
  const __mmask16 keep = n >= 16 ? (__mmask16)0xffff : n <= 0 ? (__mmask16)0 : (__mmask16)((1u << n) - 1);
  return _mm512_mask_blend_ps(keep, y, x);
}
SF_INLINE F swap_pairs(F x) { return _mm512_permute_ps(x, 0xB1); }
SF_INLINE float sum_lanes(F x) {
  const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
SF_INLINE float max_lanes(F x) { return _mm512_reduce_max_ps(x); }
SF_INLINE int32_t max_lanes_i(I x) { return _mm512_reduce_max_epi32(x); }
SF_INLINE int32_t sum_lanes_i(I x) { return _mm512_reduce_add_epi32(x); }
SF_INLINE int any_nan(F x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) != 0; }
SF_INLINE int any_greater(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
// 16 floats rounded to bf16, ties to even.
SF_INLINE void store_bf16(uint16_t* p, F x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
SF_INLINE F load_bf16(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
// 16 int32 in [-128, 127] to bytes.
SF_INLINE void store_int8(int8_t* p, I x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(x)); }
SF_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
