// 16-lane operations in compiler vectors: any CPU, no intrinsics. Same names and meaning as simd_avx512.h.
// Part of isa.cc: included inside the namespace of this instruction set.
#define SF_INLINE inline __attribute__((always_inline))

// Few: a 64-byte vector is several registers on a CPU without wide ones.
#define SF_GEMM_ROWS 2
#define SF_ATTENTION_ROWS 2
#define SF_SCORE_BLOCKS 4
#define SF_WEIGH_VECTORS 4

typedef float F __attribute__((vector_size(64)));
typedef int32_t I __attribute__((vector_size(64)));
typedef uint32_t U __attribute__((vector_size(64)));
typedef int16_t S __attribute__((vector_size(64)));
// Bytes 0 and 2, and 1 and 3, of the first four, widened to int16; of the others.
struct Quads {
#if defined(__SSE2__)
  __m128i even, odd;
#else
  int32_t even[2], odd[2];
#endif
};
typedef float ActNumber;  // a scale or sum of activations
using ActBlock = ActRows<kRowGroup, ActNumber>;

SF_INLINE F zero_f() { return F{}; }
SF_INLINE I zero_i() { return I{}; }
SF_INLINE F set1(float x) { return x - F{}; }
SF_INLINE I set1_i(int32_t x) { return x - I{}; }
SF_INLINE F load(const float* p) {
  F x;
  __builtin_memcpy(&x, p, 64);
  return x;
}
SF_INLINE I load_bytes(const void* p) {
  I x;
  __builtin_memcpy(&x, p, 64);
  return x;
}
SF_INLINE void store(float* p, F x) { __builtin_memcpy(p, &x, 64); }
SF_INLINE void store_bytes(void* p, I x) { __builtin_memcpy(p, &x, 64); }
SF_INLINE F add(F a, F b) { return a + b; }
SF_INLINE F sub(F a, F b) { return a - b; }
SF_INLINE F mul(F a, F b) { return a * b; }
SF_INLINE F div(F a, F b) { return a / b; }
SF_INLINE F fma(F a, F b, F c) { return a * b + c; }
SF_INLINE F max(F a, F b) { return a > b ? a : b; }
SF_INLINE F min(F a, F b) { return a < b ? a : b; }
SF_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
SF_INLINE I bits(F x) { return (I)x; }
SF_INLINE F from_bits(I x) { return (F)x; }
// Adding 1.5 * 2^23 leaves no fraction bits: the sum is rounded to an integer, ties to even. |x| <= 2^22.
SF_INLINE F round_even(F x) { return (x + 12582912.0f) - 12582912.0f; }
// Converting what does not fit would be undefined. NaN becomes -2^22, all of which times_power_of_two shifts out: so it
// leaves NaN as it is.
SF_INLINE I to_int(F x) {
  x = x >= -4194304.0f ? x : set1(-4194304.0f);
  x = x < 4194304.0f ? x : set1(4194303.0f);
  return __builtin_convertvector(round_even(x), I);
}
SF_INLINE F times_power_of_two(F x, F n) { return (F)((I)x + (to_int(n) << 23)); }
SF_INLINE F reciprocal(F x) { return 1.0f / x; }
// Integers wrap, as those of the other builds do: of rows that hold NaN the codes are any numbers.
SF_INLINE I add_i(I a, I b) { return (I)((U)a + (U)b); }
SF_INLINE I and_i(I a, I b) { return a & b; }
SF_INLINE I max_i(I a, I b) { return a > b ? a : b; }
SF_INLINE I low_nibbles(I x) { return x & 0x0f0f0f0f; }
SF_INLINE I high_nibbles(I x) { return (x >> 4) & 0x0f0f0f0f; }
SF_INLINE I with_bit(I x, I plane, int g) { return x | ((g < 4 ? plane << (4 - g) : plane >> (g - 4)) & 0x10101010); }
SF_INLINE I with_two_bits(I x, I plane, int g) {
  return x | ((g < 2 ? plane << (4 - 2 * g) : plane >> (2 * g - 4)) & 0x30303030);
}
SF_INLINE I sub_i(I a, I b) { return (I)((U)a - (U)b); }
SF_INLINE I shift_left(I x, int n) { return x << n; }
SF_INLINE F load_u8(const void* p) {
  uint8_t b[16];
  __builtin_memcpy(b, p, 16);
  I x;
  for (int i = 0; i < 16; i++) x[i] = b[i];
  return to_float(x);
}
SF_INLINE F load_i8(const void* p) {
  int8_t b[16];
  __builtin_memcpy(b, p, 16);
  I x;
  for (int i = 0; i < 16; i++) x[i] = b[i];
  return to_float(x);
}
SF_INLINE F load_f16(const void* p) {
  uint16_t h[16];
  __builtin_memcpy(h, p, 32);
  I x;
  for (int i = 0; i < 16; i++) x[i] = h[i];
  // Exponent and fraction moved into place are a float too small by 2^112; a half's infinity and NaN need all ones.
  const I sign = (x & 0x8000) << 16, magnitude = (x & 0x7fff) << 13;
  const F scaled = (F)magnitude * 0x1p112f;
  const I special = (x & 0x7c00) == 0x7c00;
  return (F)(sign | (special ? (magnitude | 0x7f800000) : (I)scaled));
}
SF_INLINE I load_pair(const int32_t* p) {
  const I x = {p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1], p[0], p[1]};
  return x;
}
SF_INLINE F spread(F x, int half) {
  return half ? __builtin_shufflevector(x, x, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15)
              : __builtin_shufflevector(x, x, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}
SF_INLINE F add_neighbours(F a, F b) {
  return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}
#if defined(__SSE2__)
SF_INLINE Quads load_quads(const int8_t (*a)[4]) {
  const __m128i once = _mm_loadl_epi64((const __m128i*)a), x = _mm_unpacklo_epi64(once, once);
  return {_mm_srai_epi16(_mm_slli_epi16(x, 8), 8), _mm_srai_epi16(x, 8)};
}
// Every x86-64 adds neighbouring products of int16 in one instruction.
SF_INLINE I dot4(I acc, I w, Quads a) {
  const __m128i low_bytes = _mm_set1_epi16(0x00ff);
  for (int i = 0; i < 4; i++) {
    __m128i x, sum;
    __builtin_memcpy(&x, (const char*)&w + 16 * i, 16);
    __builtin_memcpy(&sum, (const char*)&acc + 16 * i, 16);
    sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_and_si128(x, low_bytes), a.even));
    sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_srli_epi16(x, 8), a.odd));
    __builtin_memcpy((char*)&acc + 16 * i, &sum, 16);
  }
  return acc;
}
#else
SF_INLINE Quads load_quads(const int8_t (*a)[4]) {
  Quads x;
  for (int b = 0; b < 2; b++) {
    x.even[b] = (uint16_t)(int16_t)a[b][0] | (uint32_t)(uint16_t)(int16_t)a[b][2] << 16;
    x.odd[b] = (uint16_t)(int16_t)a[b][1] | (uint32_t)(uint16_t)(int16_t)a[b][3] << 16;
  }
  return x;
}
// Products of a byte with a signed byte fit 16 bits: multiply as int16, then widen the sums.
SF_INLINE I dot4(I acc, I w, Quads a) {
  const I p = (I)((S)(w & 0x00ff00ff) * (S)load_pair(a.even)),
          q = (I)((S)((w >> 8) & 0x00ff00ff) * (S)load_pair(a.odd));
  return add_i(acc, (((p << 16) >> 16) + (p >> 16)) + (((q << 16) >> 16) + (q >> 16)));
}
#endif
constexpr bool kDotTakesBytes = true;
SF_INLINE I dot4_centred(I acc, I, Quads) { return acc; }
// Hides a variable's content from the optimizer.
#define SF_OPAQUE(x) __asm__ volatile("" : "+m"(x))
SF_INLINE F first(int n, F x, F y) {
  const I lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return lane < n ? x : y;
}
SF_INLINE F swap_pairs(F x) {
  return __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}
SF_INLINE float sum_lanes(F x) {
  float s[16];
  store(s, x);
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) s[i] += s[i + half];
  return s[0];
}
SF_INLINE float max_lanes(F x) {
  float m = x[0];
  for (int i = 1; i < 16; i++) m = x[i] > m ? x[i] : m;
  return m;
}
SF_INLINE int32_t max_lanes_i(I x) {
  int32_t m = x[0];
  for (int i = 1; i < 16; i++) m = x[i] > m ? x[i] : m;
  return m;
}
SF_INLINE int32_t sum_lanes_i(I x) {
  int32_t s = 0;
  for (int i = 0; i < 16; i++) s += x[i];
  return s;
}
SF_INLINE int any_lane(I mask) {
  int32_t any = 0;
  for (int i = 0; i < 16; i++) any |= mask[i];
  return any != 0;
}
SF_INLINE int any_nan(F x) { return any_lane(x != x); }
SF_INLINE int any_greater(F a, F b) { return any_lane(a > b); }
SF_INLINE void store_bf16(uint16_t* p, F x) {
  const I b = (I)x;
  const I rounded = (I)((U)b + 0x7fff + ((U)b >> 16 & 1));
  const I quiet = b | 0x00400000;
  const I r = (x == x ? rounded : quiet) >> 16;
  for (int i = 0; i < 16; i++) p[i] = (uint16_t)r[i];
}
SF_INLINE F load_bf16(const uint16_t* p) {
  I x;
  for (int i = 0; i < 16; i++) x[i] = (int32_t)((uint32_t)p[i] << 16);
  return (F)x;
}
SF_INLINE I zip_bf16(F even, F odd) {
  uint16_t low[16], high[16];
  store_bf16(low, even);
  store_bf16(high, odd);
  I x;
  for (int i = 0; i < 16; i++) x[i] = (int32_t)(low[i] | (uint32_t)high[i] << 16);
  return x;
}
SF_INLINE F rotate_pairs(F x, F t) {
  const F c = __builtin_shufflevector(t, t, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14);
  const F s = __builtin_shufflevector(t, t, 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15);
  const F sign = {-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
  return x * c + swap_pairs(x) * s * sign;
}
SF_INLINE void store_int8(int8_t* p, I x) {
  x = x < 127 ? x : set1_i(127);
  x = x > -128 ? x : set1_i(-128);
  for (int i = 0; i < 16; i++) p[i] = (int8_t)x[i];
}
SF_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
SF_INLINE void prefetch_l2(const void* p) { __builtin_prefetch(p, 0, 2); }
// As in simd_avx512.h, row by row.
SF_INLINE void quantize_rows(const F* lo, const F* hi, int block, ActBlock* out) {
  const I magnitude = set1_i(0x7fffffff);
  for (int r = 0; r < kRowGroup; r++) {
    const int32_t top = max_lanes_i(max_i(and_i(bits(lo[r]), magnitude), and_i(bits(hi[r]), magnitude)));
    float amax;
    __builtin_memcpy(&amax, &top, 4);
    const float scale = act_scale(amax);
    const F inverse = set1(act_inverse(scale));
    const I a = to_int(mul(lo[r], inverse)), b = to_int(mul(hi[r], inverse));
    const int32_t first_sum = sum_lanes_i(a);
    int8_t codes[32];
    store_int8(codes, a);
    store_int8(codes + 16, b);
    for (int quad = 0; quad < 8; quad++) __builtin_memcpy(out->codes[quad][r][block], codes + 4 * quad, 4);
    put_numbers(out, r, block, scale, first_sum, first_sum + sum_lanes_i(b));
  }
}
