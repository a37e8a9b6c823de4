// Producing activations: RMSNorm, int8 quantization, SwiGLU, rotary embedding and the KV write.
// Part of isa.cc: included inside the namespace of one instruction set.

// exp(x) for every x that softmax and SiLU meet; the argument is clamped to [-87, 88], NaN stays NaN.
// x = n ln 2 + r with |r| <= ln(2) / 2; exp(r) by a polynomial, then 2^n by exponent. The coefficients minimize the
// largest relative error over that range, 1.1e-7, with the first two fixed at 1.
SF_INLINE F exp_f(F x) {
  x = min(set1(88.0f), max(set1(-87.0f), x));
  const F n = round_even(mul(x, set1(1.44269504f)));
  F r = fma(n, set1(-0.693359375f), x);
  r = fma(n, set1(2.12194440e-4f), r);
  F p = set1(0x1.106284p-7f);
  p = fma(p, r, set1(0x1.5729f0p-5f));
  p = fma(p, r, set1(0x1.5557aep-3f));
  p = fma(p, r, set1(0x1.fffdfcp-2f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return times_power_of_two(p, n);
}

// Columns [column, column + 32) of a group of kRows rows with k columns; the first kRows of lo and hi are looked at.
template <int kRows>
SF_INLINE void put_columns(ActKind kind, uint8_t* group, int k, int column, const F* lo, const F* hi) {
  if (kind == kActInt8) {
    auto* out = (ActRows<kRows, ActNumber>*)group + column / kBlockPair;
    const int block = column / kQuantBlock % 2;
    if (block == 0 && column + kQuantBlock == k) __builtin_memset(out, 0, sizeof *out);  // it has no neighbour
    if (kRows == kRowGroup) return quantize_rows(lo, hi, block, (ActBlock*)out);
    ActBlock all;
    quantize_rows(lo, hi, block, &all);
    for (int r = 0; r < kRows; r++) {
      for (int c = 0; c < kQuantBlock / 4; c++) __builtin_memcpy(out->codes[c][r][block], all.codes[c][r][block], 4);
      out->scale[r][block] = all.scale[r][block], out->scaled_sum[r][block] = all.scaled_sum[r][block];
      out->offset[r][block] = all.offset[r][block], out->small_offset[r][block] = all.small_offset[r][block];
      out->first_offset[r][block] = all.first_offset[r][block];
    }
  } else if (kind == kActBF16) {
    uint16_t v[kRows][32];
    for (int r = 0; r < kRows; r++) store_bf16(v[r], lo[r]), store_bf16(v[r] + 16, hi[r]);
    uint8_t* out = group + (size_t)column * kRows * 2;
    for (int c = 0; c < 16; c++)
      for (int r = 0; r < kRows; r++) __builtin_memcpy(out + (c * kRows + r) * 4, v[r] + 2 * c, 4);
  } else {
    float v[kRows][32];
    for (int r = 0; r < kRows; r++) store(v[r], lo[r]), store(v[r] + 16, hi[r]);
    float* out = (float*)group + (size_t)column * kRows;
    for (int c = 0; c < 32; c++)
      for (int r = 0; r < kRows; r++) out[c * kRows + r] = v[r][c];
  }
}

// The same of a group that holds n_rows; all 8 of lo and hi are defined.
SF_INLINE void put_rows(ActKind kind, uint8_t* group, int n_rows, int k, int column, const F* lo, const F* hi) {
  if (is_single(0, n_rows))
    put_columns<1>(kind, group, k, column, lo, hi);
  else
    put_columns<kRowGroup>(kind, group, k, column, lo, hi);
}

// 1 / sqrt(mean(x^2) + eps); k a multiple of 32.
SF_INLINE float inverse_rms(const float* x, int k, float eps) {
  F even = zero_f(), odd = zero_f();
  for (int i = 0; i < k; i += 32) {
    const F a = load(x + i), b = load(x + i + 16);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  return 1.0f / __builtin_sqrtf(sum_lanes(add(even, odd)) / (float)k + eps);
}

void norm_rows(float* y, int ldy, int n_rows, int n, const float* bias, const float* weight, float eps) {
  for (int r = 0; r < n_rows; r++, y += ldy) {
    if (bias)
      for (int i = 0; i < n; i += kLanes) store(y + i, add(load(y + i), load(bias + i)));
    if (!weight) continue;
    const F inverse = set1(inverse_rms(y, n, eps));
    for (int i = 0; i < n; i += kLanes) store(y + i, mul(mul(load(y + i), inverse), load(weight + i)));
  }
}

void pack_group(const float* x, int ldx, int n_rows, int k, ActKind kind, uint8_t* group) {
  for (int i = 0; i < k; i += 32) {
    F lo[kRowGroup], hi[kRowGroup];
    SF_UNROLL for (int r = 0; r < kRowGroup; r++) {
      const float* p = x + (size_t)(r < n_rows ? r : 0) * ldx + i;
      lo[r] = load(p), hi[r] = load(p + 16);
    }
    put_rows(kind, group, n_rows, k, i, lo, hi);
  }
}

// Missing rows of a group repeat the first one: their values are computed and never looked at.
void norm_group(const float* x, int ldx, const int32_t* rows, int n_rows, int k, const float* weight, float eps,
                ActKind kind, uint8_t* group) {
  if (!weight) return pack_group(x, ldx, n_rows, k, kind, group);
  const float* row[kRowGroup];
  F inverse[kRowGroup];
  for (int r = 0; r < kRowGroup; r++) {
    if (r >= n_rows) {
      row[r] = row[0], inverse[r] = inverse[0];
      continue;
    }
    row[r] = x + (size_t)(rows ? rows[r] : r) * ldx;
    inverse[r] = set1(inverse_rms(row[r], k, eps));
  }
  for (int i = 0; i < k; i += 32) {
    const F w0 = load(weight + i), w1 = load(weight + i + 16);
    F lo[kRowGroup], hi[kRowGroup];
    SF_UNROLL for (int r = 0; r < kRowGroup; r++) {
      lo[r] = mul(mul(load(row[r] + i), inverse[r]), w0);
      hi[r] = mul(mul(load(row[r] + i + 16), inverse[r]), w1);
    }
    put_rows(kind, group, n_rows, k, i, lo, hi);
  }
}

SF_INLINE F silu(F x) { return mul(x, reciprocal(add(set1(1.0f), exp_f(sub(zero_f(), x))))); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Source: arXiv 1606.08415.
SF_INLINE F gelu(F x) {
  const F u = mul(x, fma(mul(x, x), set1(0.044715f), set1(1.0f)));
  return mul(x, reciprocal(add(set1(1.0f), exp_f(mul(u, set1(-1.59576912f))))));
}

// tanh(x) = 1 - 2 / (exp(2 x) + 1): exact to about 1e-7 absolutely, which is what a cap of logits needs.
SF_INLINE F capped(F x, float cap) {
  const F e = exp_f(mul(x, set1(2.0f / cap)));
  return mul(set1(cap), sub(set1(1.0f), mul(set1(2.0f), reciprocal(add(e, set1(1.0f))))));
}

void softcap(float* y, int n, float cap) {
  for (int i = 0; i < n; i += kLanes) store(y + i, capped(load(y + i), cap));
}

template <Activation kAct>
SF_INLINE void gate_up(const float* y, int ldy, int n_rows, int n_out, ActKind kind, uint8_t* out, int k, int row_begin,
                       int column) {
  const size_t group_bytes = act_group_bytes(kind, k);
  for (int r = 0; r < n_rows; r += kRowGroup) {
    uint8_t* group = out + (size_t)((row_begin + r) / kRowGroup) * group_bytes;
    const int rows = n_rows - r < kRowGroup ? n_rows - r : kRowGroup;
    for (int i = 0; i < n_out; i += 32) {
      F v[2][kRowGroup];
      for (int q = 0; q < kRowGroup; q++) {
        const float* p = y + (size_t)(r + q) * ldy + 2 * i;  // gate tile, up tile, gate tile, up tile
        for (int half = 0; half < 2; half++)
          v[half][q] = q < rows ? mul(kAct == kGelu ? gelu(load(p + 32 * half)) : silu(load(p + 32 * half)),
                                      load(p + 32 * half + 16))
                                : zero_f();
      }
      put_rows(kind, group, rows, k, column + i, v[0], v[1]);
    }
  }
}

void gate_up_rows(const float* y, int ldy, int n_rows, int n_out, Activation act, ActKind kind, uint8_t* out, int k,
                  int row_begin, int column) {
  if (act == kGelu)
    gate_up<kGelu>(y, ldy, n_rows, n_out, kind, out, k, row_begin, column);
  else
    gate_up<kSilu>(y, ldy, n_rows, n_out, kind, out, k, row_begin, column);
}

void add_rows(const float* y, int ldy, int n_rows, int n_columns, const float* bias, float* x, int ldx) {
  for (int r = 0; r < n_rows; r++)
    for (int c = 0; c < n_columns; c += kLanes) {
      float* p = x + (size_t)r * ldx + c;
      const F value = load(y + (size_t)r * ldy + c);
      store(p, add(load(p), bias ? add(value, load(bias + c)) : value));
    }
}

void add_scaled(const float* y, float scale, int n, float* x) {
  for (int i = 0; i < n; i += kLanes) store(x + i, fma(load(y + i), set1(scale), load(x + i)));
}

void choose_experts(float* scores, int n, int n_used, int renormalize, int32_t* ids, float* weights) {
  F top = set1(-__builtin_inff()), sum = zero_f();
  for (int i = 0; i < n; i += kLanes) top = max(top, first(n - i, load(scores + i), set1(-__builtin_inff())));
  const F shift = set1(max_lanes(top));
  for (int i = 0; i < n; i += kLanes) {
    const F p = first(n - i, exp_f(sub(load(scores + i), shift)), zero_f());
    store(scores + i, p);
    sum = add(sum, p);
  }
  float total = 0;
  for (int u = 0; u < n_used; u++) {
    int best = 0;
    for (int i = 1; i < n; i++)
      if (scores[i] > scores[best] || scores[best] < 0) best = i;
    ids[u] = best, weights[u] = scores[best];
    total += scores[best];
    scores[best] = -1.0f;
  }
  const float all = sum_lanes(sum);
  // NaN in any score is NaN in `all`: adding 0 * all brings it to every weight.
  const float divisor = renormalize ? total + 0.0f * all : all;
  for (int u = 0; u < n_used; u++) weights[u] /= divisor;
}

// The first d values of y in place, by the position's row of the table.
SF_INLINE void rotate(float* y, const float* table, int d, RopeStyle style) {
  const int half = d / 2;
  int i = 0;
  if (style == kRopeInterleaved) {
    for (; i + kLanes <= d; i += kLanes) store(y + i, rotate_pairs(load(y + i), load(table + i)));
    for (; i < d; i += 2) {
      const float a = y[i], b = y[i + 1];
      y[i] = a * table[i] - b * table[i + 1];
      y[i + 1] = b * table[i] + a * table[i + 1];
    }
  } else {
    for (; i + kLanes <= half; i += kLanes) {
      const F a = load(y + i), b = load(y + half + i), c = load(table + i), s = load(table + half + i);
      store(y + i, sub(mul(a, c), mul(b, s)));
      store(y + half + i, fma(b, c, mul(a, s)));
    }
    for (; i < half; i++) {
      const float a = y[i], b = y[half + i];
      y[i] = a * table[i] - b * table[half + i];
      y[half + i] = b * table[i] + a * table[half + i];
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

SF_INLINE void write_value_pair(const QkvArgs* a, uint8_t* half, int slot, const float* y0, const float* y1) {
  uint16_t* p = (uint16_t*)half + (size_t)(slot / 2) * a->head_dim * 2;
  for (int i = 0; i < a->head_dim; i += kLanes) store_bytes(p + 2 * i, zip_bf16(load(y0 + i), load(y1 + i)));
}

SF_INLINE void query_rows(const QkvArgs* a, int head, int row_begin, int n_rows, float* y, int ldy) {
  const int d = a->head_dim;
  for (int r = 0; r < n_rows; r++, y += ldy) {
    const int token = row_begin + r;
    rotate(y, a->rope + (size_t)a->positions[token] * a->rope_dims, a->rope_dims, a->rope_style);
    const size_t at = ((size_t)token * a->n_heads + head) * d;
    for (int i = 0; i < d; i += kLanes) {
      if (a->kv.is_float)
        store((float*)a->q + at + i, load(y + i));
      else
        store_bf16((uint16_t*)a->q + at + i, load(y + i));
    }
  }
}

SF_INLINE void key_rows(const QkvArgs* a, int head, int row_begin, int n_rows, float* y, int ldy) {
  for (int r = 0; r < n_rows; r++, y += ldy) {
    const int token = row_begin + r, position = a->positions[token];
    rotate(y, a->rope + (size_t)position * a->rope_dims, a->rope_dims, a->rope_style);
    write_key(a, kv_block(a->kv, a->layer, a->write_blocks[token], head), position % kBlockTokens, y);
  }
}

SF_INLINE void value_rows(const QkvArgs* a, int head, int row_begin, int n_rows, float* y, int ldy) {
  const size_t half_bytes = kv_half_bytes(a->kv);
  for (int r = 0; r < n_rows; r++, y += ldy) {
    const int token = row_begin + r, slot = a->positions[token] % kBlockTokens;
    uint8_t* half = kv_block(a->kv, a->layer, a->write_blocks[token], head) + half_bytes;
    // The next token is in the same block: it is the other half of this one's pair.
    const bool pair = !a->kv.is_float && slot % 2 == 0 && r + 1 < n_rows &&
                      a->write_blocks[token + 1] == a->write_blocks[token] &&
                      a->positions[token + 1] == a->positions[token] + 1;
    if (pair) {
      write_value_pair(a, half, slot, y, y + ldy);
      r++, y += ldy;
    } else {
      write_value(a, half, slot, y);
    }
  }
}

void qkv_rows(const QkvArgs* a, int head, int row_begin, int n_rows, float* y, int ldy) {
  const int keys = a->n_heads, first_value = a->n_heads + a->n_kv_heads;
  const float* norm = head < keys ? a->q_norm : head < first_value ? a->k_norm : nullptr;
  const float* bias = a->bias ? a->bias + (size_t)head * a->head_dim : nullptr;
  if (norm || bias) norm_rows(y, ldy, n_rows, a->head_dim, bias, norm, a->eps);
  if (head < keys)
    query_rows(a, head, row_begin, n_rows, y, ldy);
  else if (head < first_value)
    key_rows(a, head - keys, row_begin, n_rows, y, ldy);
  else
    value_rows(a, head - first_value, row_begin, n_rows, y, ldy);
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
