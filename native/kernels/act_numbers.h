// What is kept of 32 activations beside their codes.
// Part of isa.cc: included inside the namespace of one instruction set, before its vectors.

// amax / 127 in bf16, ties to even; zero where that is no normal number. NaN stays NaN.
inline float act_scale(float amax) {
  const float exact = amax / 127.0f;
  if (exact != exact) return exact;
  if (exact < 0x1p-126f) return 0.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &exact, 4);
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  return scale;
}

// What an activation is multiplied with to become a code of -127..127.
inline float act_inverse(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

// Row r of block b: the sum of the first 16 codes, and of all. Of rows that hold NaN the sums are any numbers.
template <class Rows>
inline void put_numbers(Rows* out, int r, int b, float scale, int32_t first_sum, int32_t sum) {
  out->scale[r][b] = scale;
  out->scaled_sum[r][b] = scale * (float)sum;
  out->offset[r][b] = (int32_t)(-128u * (uint32_t)sum);
  out->small_offset[r][b] = (int32_t)(-8u * (uint32_t)sum);
  out->first_offset[r][b] = (int32_t)(-32u * (uint32_t)first_sum);
}
