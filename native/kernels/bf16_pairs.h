// bf16 values two to a lane, on instruction sets without products of bf16.
// Part of isa.cc: included inside the namespace of one instruction set, behind its vectors.

// The two bf16 of each pair as floats.
SF_INLINE F unzip_even(I pairs) { return from_bits(shift_left(pairs, 16)); }
SF_INLINE F unzip_odd(I pairs) { return from_bits(and_i(pairs, set1_i((int32_t)0xffff0000))); }
SF_INLINE F dot2_bf16(F acc, I w, const void* b) {
  uint32_t pair;
  __builtin_memcpy(&pair, b, 4);
  acc = fma(unzip_odd(w), from_bits(set1_i((int32_t)(pair & 0xffff0000u))), acc);
  return fma(unzip_even(w), from_bits(set1_i((int32_t)(pair << 16))), acc);
}
