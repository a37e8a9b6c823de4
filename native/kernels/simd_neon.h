// 16-lane operations for AArch64 with the dot product extension: four registers each. Same names and meaning as
// simd_avx512.h.
// Part of isa.cc: included inside the namespace of this instruction set.
#define SF_INLINE inline __attribute__((always_inline))

#define SF_GEMM_ROWS 4
#define SF_ATTENTION_ROWS 2
#define SF_SCORE_BLOCKS 2
#define SF_WEIGH_VECTORS 2

struct F {
  float32x4_t v[4];
};
struct I {
  int32x4_t v[4];
};
typedef int8x16_t Quads;
typedef float ActNumber;  // a scale or sum of activations
using ActBlock = ActRows<kRowGroup, ActNumber>;

SF_INLINE F set1(float x) {
  const float32x4_t y = vdupq_n_f32(x);
  return {{y, y, y, y}};
}
SF_INLINE I set1_i(int32_t x) {
  const int32x4_t y = vdupq_n_s32(x);
  return {{y, y, y, y}};
}
SF_INLINE F zero_f() { return set1(0.0f); }
SF_INLINE I zero_i() { return set1_i(0); }
SF_INLINE F load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
SF_INLINE I load_bytes(const void* p) {
  const uint8_t* q = (const uint8_t*)p;
  return {{vreinterpretq_s32_u8(vld1q_u8(q)), vreinterpretq_s32_u8(vld1q_u8(q + 16)),
           vreinterpretq_s32_u8(vld1q_u8(q + 32)), vreinterpretq_s32_u8(vld1q_u8(q + 48))}};
}
SF_INLINE void store(float* p, F x) { SF_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.v[i]); }
SF_INLINE void store_bytes(void* p, I x) {
  SF_UNROLL for (int i = 0; i < 4; i++) vst1q_u8((uint8_t*)p + 16 * i, vreinterpretq_u8_s32(x.v[i]));
}
#define SF_BINARY(type, name, f)                                      \
  SF_INLINE type name(type a, type b) {                               \
    SF_UNROLL for (int i = 0; i < 4; i++) a.v[i] = f(a.v[i], b.v[i]); \
    return a;                                                         \
  }
SF_BINARY(F, add, vaddq_f32)
SF_BINARY(F, sub, vsubq_f32)
SF_BINARY(F, mul, vmulq_f32)
SF_BINARY(F, div, vdivq_f32)
// NaN in either survives.
SF_BINARY(F, max, vmaxq_f32)
SF_BINARY(F, min, vminq_f32)
SF_BINARY(I, add_i, vaddq_s32)
SF_BINARY(I, sub_i, vsubq_s32)
SF_BINARY(I, and_i, vandq_s32)
SF_BINARY(I, or_i, vorrq_s32)
SF_BINARY(I, max_i, vmaxq_s32)
SF_INLINE F fma(F a, F b, F c) {
  SF_UNROLL for (int i = 0; i < 4; i++) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
#define SF_UNARY(to, from, name, f)                           \
  SF_INLINE to name(from x) {                                 \
    to y;                                                     \
    SF_UNROLL for (int i = 0; i < 4; i++) y.v[i] = f(x.v[i]); \
    return y;                                                 \
  }
SF_UNARY(F, I, to_float, vcvtq_f32_s32)
SF_UNARY(I, F, to_int, vcvtnq_s32_f32)
SF_UNARY(F, F, round_even, vrndnq_f32)
SF_UNARY(I, F, bits, vreinterpretq_s32_f32)
SF_UNARY(F, I, from_bits, vreinterpretq_f32_s32)
SF_INLINE I shift_left(I x, int n) {
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] = vshlq_s32(x.v[i], vdupq_n_s32(n));
  return x;
}
SF_INLINE F times_power_of_two(F x, F n) { return from_bits(add_i(bits(x), shift_left(to_int(n), 23))); }
SF_INLINE F reciprocal(F x) { return div(set1(1.0f), x); }
// Of unsigned bytes: to the left, or to the right by -n.
SF_INLINE I shift_bytes(I x, int n) {
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] =
      vreinterpretq_s32_u8(vshlq_u8(vreinterpretq_u8_s32(x.v[i]), vdupq_n_s8((int8_t)n)));
  return x;
}
SF_INLINE I low_nibbles(I x) { return and_i(x, set1_i(0x0f0f0f0f)); }
SF_INLINE I high_nibbles(I x) { return shift_bytes(x, -4); }
SF_INLINE I with_bit(I x, I plane, int g) { return or_i(x, and_i(shift_bytes(plane, 4 - g), set1_i(0x10101010))); }
SF_INLINE I with_two_bits(I x, I plane, int g) {
  return or_i(x, and_i(shift_bytes(plane, 4 - 2 * g), set1_i(0x30303030)));
}
SF_INLINE F load_u8(const void* p) {
  const uint8x16_t x = vld1q_u8((const uint8_t*)p);
  const uint16x8_t lo = vmovl_u8(vget_low_u8(x)), hi = vmovl_u8(vget_high_u8(x));
  return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(lo))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(lo))),
           vcvtq_f32_u32(vmovl_u16(vget_low_u16(hi))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(hi)))}};
}
SF_INLINE F load_i8(const void* p) {
  const int8x16_t x = vld1q_s8((const int8_t*)p);
  const int16x8_t lo = vmovl_s8(vget_low_s8(x)), hi = vmovl_s8(vget_high_s8(x));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(lo))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(hi)))}};
}
SF_INLINE F load_f16(const void* p) {
  F x;
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] =
      vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)p + 4 * i)));
  return x;
}
#define SF_OPAQUE(x) __asm__ volatile("" : "+w"((x).v[0]), "+w"((x).v[1]), "+w"((x).v[2]), "+w"((x).v[3]))

// sdot multiplies signed bytes: codes of 4 to 6 bits are that, too; whole bytes go through dot4_centred.
constexpr bool kDotTakesBytes = false;
SF_INLINE Quads load_quads(const int8_t (*a)[4]) {
  int64_t both;
  __builtin_memcpy(&both, a, 8);
  return vreinterpretq_s8_s64(vdupq_n_s64(both));
}
SF_INLINE I dot4(I acc, I w, Quads a) {
  SF_UNROLL for (int i = 0; i < 4; i++) acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_s32(w.v[i]), a);
  return acc;
}
SF_INLINE I dot4_centred(I acc, I w, Quads a) {
  SF_UNROLL for (int i = 0; i < 4; i++) w.v[i] = veorq_s32(w.v[i], vdupq_n_s32((int32_t)0x80808080u));
  return dot4(acc, w, a);
}
SF_INLINE I load_pair(const int32_t* p) {
  int64_t both;
  __builtin_memcpy(&both, p, 8);
  const int32x4_t x = vreinterpretq_s32_s64(vdupq_n_s64(both));
  return {{x, x, x, x}};
}
SF_INLINE F spread(F x, int half) {
  const float32x4_t a = x.v[2 * half], b = x.v[2 * half + 1];
  return {{vzip1q_f32(a, a), vzip2q_f32(a, a), vzip1q_f32(b, b), vzip2q_f32(b, b)}};
}
SF_INLINE F add_neighbours(F a, F b) {
  return {
      {vpaddq_f32(a.v[0], a.v[1]), vpaddq_f32(a.v[2], a.v[3]), vpaddq_f32(b.v[0], b.v[1]), vpaddq_f32(b.v[2], b.v[3])}};
}
SF_INLINE F first(int n, F x, F y) {
  static const int32_t lane[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] =
      vbslq_f32(vcltq_s32(vld1q_s32(lane + 4 * i), vdupq_n_s32(n)), x.v[i], y.v[i]);
  return x;
}
SF_UNARY(F, F, swap_pairs, vrev64q_f32)
SF_INLINE float sum_lanes(F x) { return vaddvq_f32(vaddq_f32(vaddq_f32(x.v[0], x.v[1]), vaddq_f32(x.v[2], x.v[3]))); }
SF_INLINE float max_lanes(F x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3]))); }
SF_INLINE int32_t max_lanes_i(I x) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(x.v[0], x.v[1]), vmaxq_s32(x.v[2], x.v[3])));
}
SF_INLINE int32_t sum_lanes_i(I x) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
SF_INLINE int any_nan(F x) {
  uint32x4_t equal = vdupq_n_u32(0xffffffffu);
  SF_UNROLL for (int i = 0; i < 4; i++) equal = vandq_u32(equal, vceqq_f32(x.v[i], x.v[i]));
  return vminvq_u32(equal) == 0;
}
SF_INLINE int any_greater(F a, F b) {
  uint32x4_t any = vdupq_n_u32(0);
  SF_UNROLL for (int i = 0; i < 4; i++) any = vorrq_u32(any, vcgtq_f32(a.v[i], b.v[i]));
  return vmaxvq_u32(any) != 0;
}
// Four floats as bf16 in the low halves of four lanes; ties to even, NaN stays NaN.
SF_INLINE uint32x4_t to_bf16(float32x4_t x) {
  const uint32x4_t b = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(b, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(vaddq_u32(b, vdupq_n_u32(0x7fff)), odd);
  return vshrq_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, vorrq_u32(b, vdupq_n_u32(0x00400000))), 16);
}
SF_INLINE void store_bf16(uint16_t* p, F x) {
  SF_UNROLL for (int i = 0; i < 4; i++) vst1_u16(p + 4 * i, vmovn_u32(to_bf16(x.v[i])));
}
SF_INLINE F load_bf16(const uint16_t* p) {
  F x;
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return x;
}
SF_INLINE I zip_bf16(F even, F odd) {
  I x;
  SF_UNROLL for (int i = 0; i < 4; i++) x.v[i] =
      vreinterpretq_s32_u32(vorrq_u32(to_bf16(even.v[i]), vshlq_n_u32(to_bf16(odd.v[i]), 16)));
  return x;
}
SF_INLINE F rotate_pairs(F x, F t) {
  const float32x4_t sign = {-1, 1, -1, 1};
  SF_UNROLL for (int i = 0; i < 4; i++) {
    const float32x4_t c = vtrn1q_f32(t.v[i], t.v[i]), s = vtrn2q_f32(t.v[i], t.v[i]);
    x.v[i] = vfmaq_f32(vmulq_f32(vmulq_f32(vrev64q_f32(x.v[i]), s), sign), x.v[i], c);
  }
  return x;
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
    const I part[2] = {to_int(mul(lo[r], inverse)), to_int(mul(hi[r], inverse))};
    int32_t sum[2];
    for (int half = 0; half < 2; half++) {
      const int32x4_t* v = part[half].v;
      const int8x16_t codes = vcombine_s8(vqmovn_s16(vcombine_s16(vqmovn_s32(v[0]), vqmovn_s32(v[1]))),
                                          vqmovn_s16(vcombine_s16(vqmovn_s32(v[2]), vqmovn_s32(v[3]))));
      sum[half] = vaddlvq_s8(codes);
      int8_t bytes[16];
      vst1q_s8(bytes, codes);
      for (int quad = 0; quad < 4; quad++) __builtin_memcpy(out->codes[4 * half + quad][r][block], bytes + 4 * quad, 4);
    }
    put_numbers(out, r, block, scale, sum[0], sum[0] + sum[1]);
  }
}
