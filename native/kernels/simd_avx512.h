// 16-lane operations for AVX-512 with VNNI and BF16. Same names and meaning as simd_generic.h.
// Part of isa.cc: included inside the namespace of this instruction set.
#define SF_INLINE inline __attribute__((always_inline))

// Rows that a product or an attention kernel handles at once: as many sums as fit 32 registers.
#define SF_GEMM_ROWS 8
#define SF_ATTENTION_ROWS 6
// Blocks of keys, and vectors of values, that attention sums at once.
#define SF_SCORE_BLOCKS 4
#define SF_WEIGH_VECTORS 4
// Products of bf16 pairs exist: sums of two blocks become one.
#define SF_BF16_SUMS

typedef __m512 F;            // 16 floats
typedef __m512i I;           // 16 int32, or 64 bytes
typedef __m512i Quads;       // two times four int8, again and again
typedef uint16_t ActNumber;  // a scale or sum of activations: bits of bf16
using ActBlock = ActRows<kRowGroup, ActNumber>;

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
// x * 2^n for whole n.
SF_INLINE F times_power_of_two(F x, F n) { return _mm512_scalef_ps(x, n); }
// 1 / x for x in [1, 2^127] to about an ulp: an estimate of 14 bits and one step of Newton's method.
SF_INLINE F reciprocal(F x) {
  const __m512 y = _mm512_rcp14_ps(x);
  return _mm512_mul_ps(y, _mm512_fnmadd_ps(x, y, _mm512_set1_ps(2.0f)));
}
SF_INLINE I bits(F x) { return _mm512_castps_si512(x); }
SF_INLINE F from_bits(I x) { return _mm512_castsi512_ps(x); }
SF_INLINE I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
SF_INLINE I and_i(I a, I b) { return _mm512_and_si512(a, b); }
SF_INLINE I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
SF_INLINE I low_nibbles(I x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
SF_INLINE I high_nibbles(I x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }
// Each byte of x with bit g of the plane's byte as its bit 4.
SF_INLINE I with_bit(I x, I plane, int g) {
  const __m512i moved = g < 4 ? _mm512_slli_epi16(plane, 4 - g) : _mm512_srli_epi16(plane, g - 4);
  return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(0x10), x, 0xEA);  // (moved & mask) | x
}
// Each byte of x with bits 2g and 2g + 1 of the plane's byte as its bits 4 and 5.
SF_INLINE I with_two_bits(I x, I plane, int g) {
  const __m512i moved = g < 2 ? _mm512_slli_epi16(plane, 4 - 2 * g) : _mm512_srli_epi16(plane, 2 * g - 4);
  return _mm512_ternarylogic_epi32(moved, _mm512_set1_epi8(0x30), x, 0xEA);
}
SF_INLINE I sub_i(I a, I b) { return _mm512_sub_epi32(a, b); }
SF_INLINE I shift_left(I x, int n) { return _mm512_slli_epi32(x, n); }
SF_INLINE F load_u8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
SF_INLINE F load_i8(const void* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
}
SF_INLINE F load_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
// The two numbers at p in even and odd lanes.
SF_INLINE I load_pair(const int32_t* p) {
  int64_t both;
  __builtin_memcpy(&both, p, 8);
  return _mm512_set1_epi64(both);
}
// Lanes 2i and 2i + 1: lane 8 half + i of x.
SF_INLINE F spread(F x, int half) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(_mm512_add_epi32(lanes, _mm512_set1_epi32(8 * half)), x);
}
// Whether dot4 takes codes of 8 bits; 4 to 6 bits it always does. If not, dot4_centred takes them less 128.
constexpr bool kDotTakesBytes = true;
SF_INLINE I dot4_centred(I acc, I, Quads) { return acc; }
// Hides a register's content from the optimizer.
#define SF_OPAQUE(x) __asm__ volatile("" : "+v"(x))
SF_INLINE Quads load_quads(const int8_t (*a)[4]) {
  int64_t both;
  __builtin_memcpy(&both, a, 8);
  return _mm512_set1_epi64(both);
}
// Lane c: acc + the dot product of unsigned bytes w[4c..4c+3] with the first four of a in even lanes, the others in
// odd.
SF_INLINE I dot4(I acc, I w, Quads a) { return _mm512_dpbusd_epi32(acc, w, a); }
// Bf16 of a's lanes, then of b's, ties to even: pairs of neighbours.
SF_INLINE I join_bf16(F a, F b) { return (I)_mm512_cvtne2ps_pbh(b, a); }
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
// Lane 2i from even, lane 2i + 1 of 16-bit halves from odd: 16 pairs of bf16, as V blocks hold them.
SF_INLINE I zip_bf16(F even, F odd) {
  const __m512i low = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(even));
  const __m512i high = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(odd));
  return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
// t holds (cos, sin) for 8 pairs of neighbours in x: each pair rotated by its angle.
SF_INLINE F rotate_pairs(F x, F t) {
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(t), _mm512_mul_ps(swap_pairs(x), _mm512_movehdup_ps(t)));
}

// One block's numbers of 8 rows beside those of the other block.
SF_INLINE void put_bf16(ActNumber (*out)[2], int block, __m128i x) {
  const __m256i lanes = _mm256_cvtepu16_epi32(x);
  _mm256_mask_storeu_epi16(out, (__mmask16)(0x5555 << block), _mm256_or_si256(lanes, _mm256_slli_epi32(lanes, 16)));
}
SF_INLINE void put_negative(int32_t (*out)[2], int block, __m256i x) {
  const __m512i lanes = _mm512_cvtepu32_epi64(_mm256_sub_epi32(_mm256_setzero_si256(), x));
  _mm512_mask_storeu_epi32(out, (__mmask16)(0x5555 << block), _mm512_or_si512(lanes, _mm512_slli_epi64(lanes, 32)));
}
// Quads g and g + 1 of 8 rows.
SF_INLINE void put_quads(ActBlock* out, int g, int block, __m512i x) {
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __mmask16 where = (__mmask16)(0x5555 << block);
  _mm512_mask_storeu_epi32(out->codes[g], where, _mm512_permutexvar_epi32(lanes, x));
  _mm512_mask_storeu_epi32(out->codes[g + 1], where, _mm512_permutexvar_epi32(lanes, _mm512_shuffle_i64x2(x, x, 0xee)));
}

// 32 values of 8 rows to codes, scales and sums. The largest magnitude is found on the bit patterns, where NaN is
// above everything: a NaN makes the scale NaN and so reaches the row's result instead of being quantized away. They
// become block 0 or 1 of the pair.
SF_INLINE void quantize_rows(const F* lo, const F* hi, int block, ActBlock* out) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m512i a[8], b[4], c[2];
  for (int r = 0; r < 8; r++)
    a[r] = _mm512_max_epi32(_mm512_and_si512(bits(lo[r]), magnitude), _mm512_and_si512(bits(hi[r]), magnitude));
  // Transpose while reducing: after each step a 128-bit lane holds twice as many rows.
  for (int i = 0; i < 4; i++)
    b[i] =
        _mm512_max_epi32(_mm512_unpacklo_epi32(a[2 * i], a[2 * i + 1]), _mm512_unpackhi_epi32(a[2 * i], a[2 * i + 1]));
  for (int i = 0; i < 2; i++)
    c[i] =
        _mm512_max_epi32(_mm512_unpacklo_epi64(b[2 * i], b[2 * i + 1]), _mm512_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
  __m512i top = _mm512_max_epi32(_mm512_shuffle_i32x4(c[0], c[1], 0x88), _mm512_shuffle_i32x4(c[0], c[1], 0xdd));
  top = _mm512_max_epi32(top, _mm512_shuffle_i32x4(top, top, 0xb1));  // lanes: rows 0-3 twice, rows 4-7 twice
  const __m256 amax = _mm256_castsi256_ps(_mm512_castsi512_si256(_mm512_shuffle_i32x4(top, top, 0x08)));
  // A bf16 is the upper half of a float. Numbers that are not normal become zero.
  const __m128i rounded = (__m128i)_mm256_cvtneps_pbh(_mm256_div_ps(amax, _mm256_set1_ps(127.0f)));
  const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(rounded), 16));
  const __m512 inverse = _mm512_castps256_ps512(
      _mm256_maskz_div_ps(_mm256_cmp_ps_mask(scale, _mm256_setzero_ps(), _CMP_NEQ_UQ), _mm256_set1_ps(1.0f), scale));
  __m512i words[8], bytes[4];
  for (int r = 0; r < 8; r++) {
    const __m512 by = _mm512_permutexvar_ps(_mm512_set1_epi32(r), inverse);
    words[r] = _mm512_packs_epi32(to_int(_mm512_mul_ps(lo[r], by)), to_int(_mm512_mul_ps(hi[r], by)));
  }
  // 128-bit lane j of bytes[i]: quads j and 4 + j of row 2i, then of row 2i + 1.
  for (int i = 0; i < 4; i++) bytes[i] = _mm512_packs_epi16(words[2 * i], words[2 * i + 1]);
  __m512i sum = _mm512_setzero_si512(), firsts = sum;
  const __m512i ones = _mm512_set1_epi8(1);
  for (int half = 0; half < 2; half++) {  // quads 0-3, then 4-7
    const __m512 x0 = _mm512_castsi512_ps(bytes[0]), x1 = _mm512_castsi512_ps(bytes[1]);
    const __m512 x2 = _mm512_castsi512_ps(bytes[2]), x3 = _mm512_castsi512_ps(bytes[3]);
    const __m512i low = _mm512_castps_si512(half ? _mm512_shuffle_ps(x0, x1, 0xdd) : _mm512_shuffle_ps(x0, x1, 0x88));
    const __m512i high = _mm512_castps_si512(half ? _mm512_shuffle_ps(x2, x3, 0xdd) : _mm512_shuffle_ps(x2, x3, 0x88));
    const __m512i first = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), high);
    const __m512i second = _mm512_permutex2var_epi64(low, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), high);
    put_quads(out, 4 * half, block, first);
    put_quads(out, 4 * half + 2, block, second);
    sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, ones, first), ones, second);
    if (!half) firsts = sum;
  }
  const __m256i first_sums = _mm256_add_epi32(_mm512_castsi512_si256(firsts), _mm512_extracti64x4_epi64(firsts, 1));
  const __m256i sums = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
  put_bf16(out->scale, block, rounded);
  put_bf16(out->scaled_sum, block, (__m128i)_mm256_cvtneps_pbh(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums))));
  put_negative(out->offset, block, _mm256_slli_epi32(sums, 7));
  put_negative(out->small_offset, block, _mm256_slli_epi32(sums, 3));
  put_negative(out->first_offset, block, _mm256_slli_epi32(first_sums, 5));
}
SF_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }
SF_INLINE void prefetch_l2(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T1); }
