// 16-lane operations for AVX2 with FMA and F16C, and with AVX-VNNI where SF_AVXVNNI is defined: two registers each.
// Same names and meaning as simd_avx512.h.
// Part of isa.cc: included inside the namespace of this instruction set.
#define SF_INLINE inline __attribute__((always_inline))

#define SF_GEMM_ROWS 4
#define SF_ATTENTION_ROWS 2
#define SF_SCORE_BLOCKS 2
#define SF_WEIGH_VECTORS 2

struct F {
  __m256 lo, hi;
};
struct I {
  __m256i lo, hi;
};
typedef __m256i Quads;
typedef float ActNumber;  // a scale or sum of activations
using ActBlock = ActRows<kRowGroup, ActNumber>;

SF_INLINE F zero_f() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
SF_INLINE I zero_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SF_INLINE F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SF_INLINE I set1_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SF_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SF_INLINE I load_bytes(const void* p) {
  const __m256i* q = (const __m256i*)p;
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
SF_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x.lo), _mm256_storeu_ps(p + 8, x.hi); }
SF_INLINE void store_bytes(void* p, I x) {
  _mm256_storeu_si256((__m256i*)p, x.lo), _mm256_storeu_si256((__m256i*)p + 1, x.hi);
}
SF_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
SF_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
SF_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
SF_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
SF_INLINE F fma(F a, F b, F c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
SF_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
SF_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
SF_INLINE F to_float(I x) { return {_mm256_cvtepi32_ps(x.lo), _mm256_cvtepi32_ps(x.hi)}; }
SF_INLINE I to_int(F x) { return {_mm256_cvtps_epi32(x.lo), _mm256_cvtps_epi32(x.hi)}; }
SF_INLINE F round_even(F x) {
  constexpr int kHow = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kHow), _mm256_round_ps(x.hi, kHow)};
}
SF_INLINE I bits(F x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
SF_INLINE F from_bits(I x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
SF_INLINE I add_i(I a, I b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
SF_INLINE I sub_i(I a, I b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
SF_INLINE I and_i(I a, I b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
SF_INLINE I or_i(I a, I b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
SF_INLINE I max_i(I a, I b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
SF_INLINE I shift_left(I x, int n) { return {_mm256_slli_epi32(x.lo, n), _mm256_slli_epi32(x.hi, n)}; }
// x + (n << 23) in the bits: n is a whole number that leaves the exponent in range.
SF_INLINE F times_power_of_two(F x, F n) { return from_bits(add_i(bits(x), shift_left(to_int(n), 23))); }
// As in simd_avx512.h, from an estimate of 12 bits, so two steps of Newton's method.
SF_INLINE F reciprocal(F x) {
  const F two = set1(2.0f);
  F y = {_mm256_rcp_ps(x.lo), _mm256_rcp_ps(x.hi)};
  y = mul(y, F{_mm256_fnmadd_ps(x.lo, y.lo, two.lo), _mm256_fnmadd_ps(x.hi, y.hi, two.hi)});
  return mul(y, F{_mm256_fnmadd_ps(x.lo, y.lo, two.lo), _mm256_fnmadd_ps(x.hi, y.hi, two.hi)});
}
SF_INLINE I low_nibbles(I x) { return and_i(x, set1_i(0x0f0f0f0f)); }
SF_INLINE I high_nibbles(I x) {
  return and_i(I{_mm256_srli_epi16(x.lo, 4), _mm256_srli_epi16(x.hi, 4)}, set1_i(0x0f0f0f0f));
}
SF_INLINE I moved(I x, int left) {
  return left >= 0 ? I{_mm256_slli_epi16(x.lo, left), _mm256_slli_epi16(x.hi, left)}
                   : I{_mm256_srli_epi16(x.lo, -left), _mm256_srli_epi16(x.hi, -left)};
}
SF_INLINE I with_bit(I x, I plane, int g) { return or_i(x, and_i(moved(plane, 4 - g), set1_i(0x10101010))); }
SF_INLINE I with_two_bits(I x, I plane, int g) { return or_i(x, and_i(moved(plane, 4 - 2 * g), set1_i(0x30303030))); }
SF_INLINE F load_u8(const void* p) {
  const __m128i x = _mm_loadu_si128((const __m128i*)p);
  return to_float(I{_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))});
}
SF_INLINE F load_i8(const void* p) {
  const __m128i x = _mm_loadu_si128((const __m128i*)p);
  return to_float(I{_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))});
}
SF_INLINE F load_f16(const void* p) {
  const __m128i* q = (const __m128i*)p;
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
SF_INLINE __m256i load_twice(const void* p) {
  int64_t both;
  __builtin_memcpy(&both, p, 8);
  return _mm256_set1_epi64x(both);
}
SF_INLINE I load_pair(const int32_t* p) { return {load_twice(p), load_twice(p)}; }
SF_INLINE Quads load_quads(const int8_t (*a)[4]) { return load_twice(a); }
SF_INLINE F spread(F x, int half) {
  const __m256 y = half ? x.hi : x.lo;
  return {_mm256_permutevar8x32_ps(y, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
          _mm256_permutevar8x32_ps(y, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))};
}
SF_INLINE __m256 neighbours_added(F x) {
  // Quarters of hi and lo alternate.
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_hadd_ps(x.lo, x.hi)), 0xd8));
}
// Lanes 2i and 2i + 1 of a, then of b, added.
SF_INLINE F add_neighbours(F a, F b) { return {neighbours_added(a), neighbours_added(b)}; }
#define SF_OPAQUE(x) __asm__ volatile("" : "+x"((x).lo), "+x"((x).hi))

#if defined(SF_AVXVNNI)
constexpr bool kDotTakesBytes = true;
SF_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i a) { return _mm256_dpbusd_avx_epi32(acc, w, a); }
SF_INLINE I dot4_centred(I acc, I, Quads) { return acc; }
#else
// Neighbouring products are added in 16 bits, which holds for codes of 7 bits; whole bytes go through dot4_centred.
constexpr bool kDotTakesBytes = false;
SF_INLINE __m256i dot4_half(__m256i acc, __m256i w, __m256i a) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, a), _mm256_set1_epi16(1)));
}
SF_INLINE __m256i dot4_centred_half(__m256i acc, __m256i w, __m256i a) {
  const __m256i q = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
  return dot4_half(acc, _mm256_abs_epi8(q), _mm256_sign_epi8(a, q));
}
#define SF_PAIR_SUMS
// Lanes of 16 bits: products of unsigned bytes w with the signed bytes of a, neighbours added.
SF_INLINE I products_of_pairs(I w, Quads a) { return {_mm256_maddubs_epi16(w.lo, a), _mm256_maddubs_epi16(w.hi, a)}; }
SF_INLINE I add_pairs(I a, I b) { return {_mm256_add_epi16(a.lo, b.lo), _mm256_add_epi16(a.hi, b.hi)}; }
SF_INLINE I sums_of_pairs(I x) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(x.lo, ones), _mm256_madd_epi16(x.hi, ones)};
}
// As dot4, with w - 128 for w.
SF_INLINE I dot4_centred(I acc, I w, Quads a) {
  return {dot4_centred_half(acc.lo, w.lo, a), dot4_centred_half(acc.hi, w.hi, a)};
}
#endif
SF_INLINE I dot4(I acc, I w, Quads a) { return {dot4_half(acc.lo, w.lo, a), dot4_half(acc.hi, w.hi, a)}; }
SF_INLINE F first(int n, F x, F y) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256 lo = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane));
  const __m256 hi = _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane));
  return {_mm256_blendv_ps(y.lo, x.lo, lo), _mm256_blendv_ps(y.hi, x.hi, hi)};
}
SF_INLINE F swap_pairs(F x) { return {_mm256_permute_ps(x.lo, 0xB1), _mm256_permute_ps(x.hi, 0xB1)}; }
SF_INLINE float sum_lanes(F x) {
  const __m256 a = _mm256_add_ps(x.lo, x.hi);
  const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
SF_INLINE float max_lanes(F x) {
  const __m256 a = _mm256_max_ps(x.lo, x.hi);
  const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}
SF_INLINE int32_t max_lanes_i(I x) {
  const __m256i a = _mm256_max_epi32(x.lo, x.hi);
  const __m128i b = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i c = _mm_max_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
SF_INLINE int32_t sum_lanes_i(I x) {
  const __m256i a = _mm256_add_epi32(x.lo, x.hi);
  const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  const __m128i c = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
SF_INLINE int any_nan(F x) {
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(x.lo, x.lo, _CMP_UNORD_Q), _mm256_cmp_ps(x.hi, x.hi, _CMP_UNORD_Q))) != 0;
}
SF_INLINE int any_greater(F a, F b) {
  return _mm256_movemask_ps(
             _mm256_or_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) != 0;
}
// Eight floats as bf16 in the low halves of eight lanes; ties to even, NaN stays NaN.
SF_INLINE __m256i to_bf16(__m256 x) {
  const __m256i b = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(b, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(b, _mm256_set1_epi32(0x00400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}
SF_INLINE void store_bf16(uint16_t* p, F x) {
  // packus works on 128-bit lanes: lo[0-3], hi[0-3], lo[4-7], hi[4-7].
  const __m256i packed = _mm256_packus_epi32(to_bf16(x.lo), to_bf16(x.hi));
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(packed, 0xd8));
}
SF_INLINE F load_bf16(const uint16_t* p) {
  const __m128i* q = (const __m128i*)p;
  return from_bits(
      shift_left(I{_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), _mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1))}, 16));
}
SF_INLINE I zip_bf16(F even, F odd) {
  return or_i(I{to_bf16(even.lo), to_bf16(even.hi)}, shift_left(I{to_bf16(odd.lo), to_bf16(odd.hi)}, 16));
}
SF_INLINE __m256 rotate_half(__m256 x, __m256 t) {
  return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(t), _mm256_mul_ps(_mm256_permute_ps(x, 0xB1), _mm256_movehdup_ps(t)));
}
SF_INLINE F rotate_pairs(F x, F t) { return {rotate_half(x.lo, t.lo), rotate_half(x.hi, t.hi)}; }
SF_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
SF_INLINE void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }

// As in simd_avx512.h, row by row.
SF_INLINE void quantize_rows(const F* lo, const F* hi, int block, ActBlock* out) {
  const I magnitude = set1_i(0x7fffffff);
  const __m256i ones = _mm256_set1_epi8(1);
  for (int r = 0; r < kRowGroup; r++) {
    const int32_t top = max_lanes_i(max_i(and_i(bits(lo[r]), magnitude), and_i(bits(hi[r]), magnitude)));
    float amax;
    __builtin_memcpy(&amax, &top, 4);
    const float scale = act_scale(amax);
    const F inverse = set1(act_inverse(scale));
    const I a = to_int(mul(lo[r], inverse)), b = to_int(mul(hi[r], inverse));
    // Packing interleaves 128-bit lanes: quads 0, 2, 4, 6 and then 1, 3, 5, 7.
    const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(a.lo, a.hi), _mm256_packs_epi32(b.lo, b.hi));
    const __m256i codes = _mm256_permutevar8x32_epi32(words, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    int32_t quads[8];
    _mm256_storeu_si256((__m256i*)quads, codes);
    for (int quad = 0; quad < 8; quad++) __builtin_memcpy(out->codes[quad][r][block], quads + quad, 4);
    const __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, codes), _mm256_set1_epi16(1));
    const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    const __m128i both = _mm_hadd_epi32(_mm_hadd_epi32(first, second), _mm_setzero_si128());
    const int32_t first_sum = _mm_cvtsi128_si32(both);
    put_numbers(out, r, block, scale, first_sum, first_sum + _mm_extract_epi32(both, 1));
  }
}
