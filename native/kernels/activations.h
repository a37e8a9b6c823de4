// Producing activations: RMSNorm, int8 quantization, SwiGLU, rotary embedding and the KV write.
// Part of isa.cc: included inside the namespace of one instruction set.

// exp(x) for every x that softmax and SiLU meet; the argument is clamped to [-87, 88], NaN stays NaN.
// x = n ln 2 + r with |r| <= ln(2) / 2; exp(r) by its Taylor series to r^7 (relative error 6e-9), then 2^n by exponent.
SF_INLINE F exp_f(F x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));
  const F n = round_even(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return from_bits(add_i(bits(p), shl23(to_int(n))));
}

// 32 values of one row to codes, scale and sums. The largest magnitude is found on the bit patterns, where NaN is
// above everything: a NaN makes the scale NaN and so reaches the row's result instead of being quantized away.
SF_INLINE void quantize_32(F lo, F hi, ActBlock* block, int row) {
  const I magnitude = set1_i(0x7fffffff);
  const int32_t top = max_lanes_i(max_i(and_i(bits(lo), magnitude), and_i(bits(hi), magnitude)));
  float amax;
  __builtin_memcpy(&amax, &top, 4);
  const float scale = amax / 127.0f;
  const F inverse = set1(amax != 0.0f ? 127.0f / amax : 0.0f);
  const I a = to_int(mul(lo, inverse)), b = to_int(mul(hi, inverse));
  const int32_t sum = sum_lanes_i(add_i(a, b));
  int8_t codes[32];
  store_int8(codes, a);
  store_int8(codes + 16, b);
  for (int quad = 0; quad < 8; quad++) __builtin_memcpy(block->codes[quad][row], codes + 4 * quad, 4);
  block->scale[row] = scale;
  block->scaled_sum[row] = scale * (float)sum;
  block->offset[row] = (int32_t)(-128u * (uint32_t)sum);
}

// Columns [column, column + 32) of one row into its group.
SF_INLINE void put_32(ActKind kind, uint8_t* group, int row, int column, F lo, F hi) {
  if (kind == kActInt8) {
    quantize_32(lo, hi, (ActBlock*)group + column / kQuantBlock, row);
  } else {
    float v[32];
    store(v, lo);
    store(v + 16, hi);
    float* out = (float*)group + (size_t)column * kRowGroup + row;
    for (int i = 0; i < 32; i++) out[i * kRowGroup] = v[i];
  }
}

void norm_group(const float* x, int ldx, const int32_t* rows, int n_rows, int k, const float* weight, float eps,
                ActKind kind, uint8_t* group) {
  for (int r = 0; r < n_rows; r++) {
    const float* row = x + (size_t)(rows ? rows[r] : r) * ldx;
    F even = zero_f(), odd = zero_f();
    for (int i = 0; i < k; i += 32) {
      const F a = load(row + i), b = load(row + i + 16);
      even = fma(a, a, even);
      odd = fma(b, b, odd);
    }
    const F inverse = set1(1.0f / __builtin_sqrtf(sum_lanes(add(even, odd)) / (float)k + eps));
    for (int i = 0; i < k; i += 32) {
      const F a = mul(mul(load(row + i), inverse), load(weight + i));
      const F b = mul(mul(load(row + i + 16), inverse), load(weight + i + 16));
      put_32(kind, group, r, i, a, b);
    }
  }
}

void pack_group(const float* x, int ldx, int n_rows, int k, ActKind kind, uint8_t* group) {
  for (int r = 0; r < n_rows; r++)
    for (int i = 0; i < k; i += 32)
      put_32(kind, group, r, i, load(x + (size_t)r * ldx + i), load(x + (size_t)r * ldx + i + 16));
}

void gate_up_rows(const float* y, int ldy, int n_rows, int n_out, Activation, ActKind kind, uint8_t* out, int k,
                  int row_begin, int column) {
  const size_t group_bytes = act_group_bytes(kind, k);
  for (int r = 0; r < n_rows; r++) {
    const int row = row_begin + r;
    uint8_t* group = out + (size_t)(row / kRowGroup) * group_bytes;
    for (int i = 0; i < n_out; i += 32) {
      const float* p = y + (size_t)r * ldy + 2 * i;  // gate tile, up tile, gate tile, up tile
      F v[2];
      for (int half = 0; half < 2; half++) {
        const F gate = load(p + 32 * half), up = load(p + 32 * half + 16);
        const F sigmoid = div(set1(1.0f), add(set1(1.0f), exp_f(sub(zero_f(), gate))));
        v[half] = mul(mul(gate, sigmoid), up);
      }
      put_32(kind, group, row % kRowGroup, column + i, v[0], v[1]);
    }
  }
}

void add_rows(const float* y, int ldy, int n_rows, int n_columns, float* x, int ldx) {
  for (int r = 0; r < n_rows; r++)
    for (int c = 0; c < n_columns; c += kLanes) {
      float* p = x + (size_t)r * ldx + c;
      store(p, add(load(p), load(y + (size_t)r * ldy + c)));
    }
}

// In place. The partner of a dimension is its neighbour, or the same place in the other half.
SF_INLINE void rotate(float* y, const float* cos, const float* sin, int d, RopeStyle style) {
  if (style == kRopeInterleaved) {
    for (int i = 0; i < d; i += kLanes) {
      const F v = load(y + i);
      store(y + i, fma(v, load(cos + i), mul(swap_pairs(v), load(sin + i))));
    }
  } else {
    for (int i = 0; i < d / 2; i += kLanes) {
      const F a = load(y + i), b = load(y + d / 2 + i);
      store(y + i, fma(a, load(cos + i), mul(b, load(sin + i))));
      store(y + d / 2 + i, fma(b, load(cos + d / 2 + i), mul(a, load(sin + d / 2 + i))));
    }
  }
}

SF_INLINE void write_key(const QkvArgs* a, uint8_t* half, int slot, const float* y) {
  const int d = a->head_dim;
  if (a->kv.is_float) {
    float* p = (float*)half + slot;
    for (int i = 0; i < d; i++) p[i * kBlockTokens] = y[i];
  } else {
    uint16_t rounded[512];
    for (int i = 0; i < d; i += kLanes) store_bf16(rounded + i, load(y + i));
    uint8_t* p = half + slot * 4;
    for (int i = 0; i < d / 2; i++) __builtin_memcpy(p + (size_t)i * 64, rounded + 2 * i, 4);
  }
}

SF_INLINE void write_value(const QkvArgs* a, uint8_t* half, int slot, const float* y) {
  const int d = a->head_dim;
  if (a->kv.is_float) {
    for (int i = 0; i < d; i += kLanes) store((float*)half + (size_t)slot * d + i, load(y + i));
    return;
  }
  uint16_t rounded[512];
  for (int i = 0; i < d; i += kLanes) store_bf16(rounded + i, load(y + i));
  // Two tokens share a vector, and two threads may write them: each touches only its own half.
  uint16_t* p = (uint16_t*)half + (size_t)(slot / 2) * d * 2 + slot % 2;
  for (int i = 0; i < d; i++) p[2 * i] = rounded[i];
}

void qkv_rows(const QkvArgs* a, int head, int row_begin, int n_rows, float* y, int ldy) {
  const int d = a->head_dim;
  const int kv_head = head < a->n_heads + a->n_kv_heads ? head - a->n_heads : head - a->n_heads - a->n_kv_heads;
  const size_t half_bytes = kv_half_bytes(a->kv);
  for (int r = 0; r < n_rows; r++, y += ldy) {
    const int token = row_begin + r, position = a->positions[token];
    if (head < a->n_heads + a->n_kv_heads)
      rotate(y, a->rope_cos + (size_t)position * d, a->rope_sin + (size_t)position * d, d, a->rope_style);
    if (head < a->n_heads) {
      const size_t at = ((size_t)token * a->n_heads + head) * d;
      for (int i = 0; i < d; i += kLanes) {
        if (a->kv.is_float)
          store((float*)a->q + at + i, load(y + i));
        else
          store_bf16((uint16_t*)a->q + at + i, load(y + i));
      }
      continue;
    }
    uint8_t* block = kv_block(a->kv, a->layer, a->write_blocks[token], kv_head);
    if (head < a->n_heads + a->n_kv_heads)
      write_key(a, block, position % kBlockTokens, y);
    else
      write_value(a, block + half_bytes, position % kBlockTokens, y);
  }
}

int argmax(const float* y, int n, int column, float* best, int32_t* best_id) {
  int nan = 0;
  for (int c = 0; c < n; c += kLanes) {
    const int valid = n - c < kLanes ? n - c : kLanes;
    const F v = first(valid, load(y + c), set1(-__builtin_inff()));
    nan |= any_nan(v);
    if (!any_greater(v, set1(*best))) continue;
    for (int i = 0; i < valid; i++)
      if (y[c + i] > *best) *best = y[c + i], *best_id = column + c + i;
  }
  return nan;
}
