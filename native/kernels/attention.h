// Paged attention over the KV cache, online softmax by segments.
// Part of isa.cc: included inside the namespace of one instruction set.
//
// One item is R query rows (tokens of one sequence x the query heads of one KV head). Keys are walked in segments of
// 256 at absolute positions. A segment yields per row its largest score m, l = sum exp(s - m) and o = sum exp(s - m) v;
// segments are merged in index order. A row's arithmetic thus depends on its own position alone: not on the rows
// beside it, not on how the prompt was cut. Keys behind a row's position are left out, never multiplied by zero.

// scores[r][c] = q[r] . k[c] for B blocks of 16 keys; lanes are keys, so there are no horizontal sums.
template <int R, int B, bool kFloat>
SF_INLINE void score_blocks(uint8_t* const* blocks, const uint8_t* q, int d, float scale, float* scores) {
  const int steps = kFloat ? d : d / 2;  // 64-byte vectors of a K block
  const size_t row_bytes = (size_t)steps * 4;
  F acc[R * B];
  SF_UNROLL for (int i = 0; i < R * B; i++) acc[i] = zero_f();
  for (int i = 0; i < steps; i++) SF_UNROLL for (int b = 0; b < B; b++) {
      const I keys = load_bytes(blocks[b] + (size_t)i * 64);
      SF_UNROLL for (int r = 0; r < R; r++) {
        const uint8_t* element = q + r * row_bytes + (size_t)i * 4;
        if (kFloat)
          acc[r * B + b] = fma(from_bits(keys), set1(*(const float*)element), acc[r * B + b]);
        else
          acc[r * B + b] = dot2_bf16(acc[r * B + b], keys, element);
      }
    }
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int b = 0; b < B; b++)
      store(scores + r * kSegmentKeys + b * kLanes, mul(acc[r * B + b], set1(scale)));
}

template <int R, bool kFloat>
void score_segment(uint8_t* const* blocks, int n_blocks, const uint8_t* q, int d, float scale, float* scores) {
  constexpr int kBatch = R <= 3 ? 4 : 2;  // enough independent sums to hide the latency, few enough for registers
  int b = 0;
  for (; b + kBatch <= n_blocks; b += kBatch)
    score_blocks<R, kBatch, kFloat>(blocks + b, q, d, scale, scores + b * kLanes);
  for (; b < n_blocks; b++) score_blocks<R, 1, kFloat>(blocks + b, q, d, scale, scores + b * kLanes);
}

// out[r][column : column + 16 * D] (+)= sum over keys [begin, end) of p[r][key] v[key], begin even. bf16: a probability
// is the sum of two bf16 numbers, so that rounding it costs 2^-17 and not 2^-9. Keys from `end` on are not multiplied
// by zero but left out, down to the second half of a pair: they may be another sequence's leftovers, and NaN.
template <int R, int D, bool kFloat>
SF_INLINE void weigh_values(uint8_t* const* blocks, int begin, int end, const float* p, const uint16_t* high,
                            const uint16_t* low, int d, size_t half_bytes, int column, float* out) {
  F acc[R * D];
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int i = 0; i < D; i++) acc[r * D + i] =
      begin ? load(out + (size_t)r * d + column + i * kLanes) : zero_f();
  constexpr int kPer = kFloat ? 1 : 2;  // keys of one vector
  for (int key = begin; key < end; key += kPer) {
    const uint8_t* v = blocks[key / kBlockTokens] + half_bytes + ((size_t)(key % kBlockTokens) / kPer * d + column) * 4;
    const I visible = set1_i(kFloat || key + 1 < end ? -1 : 0xffff);
    I values[D];
    SF_UNROLL for (int i = 0; i < D; i++) values[i] = and_i(load_bytes(v + i * 64), visible);
    SF_UNROLL for (int r = 0; r < R; r++) {
      const int at = r * kSegmentKeys + key;
      SF_UNROLL for (int i = 0; i < D; i++) {
        if (kFloat) {
          acc[r * D + i] = fma(from_bits(values[i]), set1(p[at]), acc[r * D + i]);
        } else {
          acc[r * D + i] = dot2_bf16(acc[r * D + i], values[i], high + at);
          acc[r * D + i] = dot2_bf16(acc[r * D + i], values[i], low + at);
        }
      }
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int i = 0; i < D; i++)
      store(out + (size_t)r * d + column + i * kLanes, acc[r * D + i]);
}

template <int R, bool kFloat>
void weigh_segment(uint8_t* const* blocks, int begin, int end, const float* p, const uint16_t* high,
                   const uint16_t* low, int d, size_t half_bytes, float* out) {
  int c = 0;
  for (; c + 64 <= d; c += 64) weigh_values<R, 4, kFloat>(blocks, begin, end, p, high, low, d, half_bytes, c, out);
  for (; c < d; c += 32) weigh_values<R, 2, kFloat>(blocks, begin, end, p, high, low, d, half_bytes, c, out);
}

constexpr int kRowsAtOnce = SF_ATTENTION_ROWS;

using ScoreFunction = void (*)(uint8_t* const*, int, const uint8_t*, int, float, float*);
using WeighFunction = void (*)(uint8_t* const*, int, int, const float*, const uint16_t*, const uint16_t*, int, size_t,
                               float*);
#if SF_ATTENTION_ROWS == 6
#define SF_EACH(name, flag) {name<1, flag>, name<2, flag>, name<3, flag>, name<4, flag>, name<5, flag>, name<6, flag>}
#else
#define SF_EACH(name, flag) {name<1, flag>, name<2, flag>}
#endif
const ScoreFunction kScore[2][kRowsAtOnce] = {SF_EACH(score_segment, false), SF_EACH(score_segment, true)};
const WeighFunction kWeigh[2][kRowsAtOnce] = {SF_EACH(weigh_segment, false), SF_EACH(weigh_segment, true)};

// Scores of one row to probabilities of its first n keys, zero up to n_padded. Returns m and l of the segment.
SF_INLINE void soften(float* s, int n, int n_padded, bool is_float, uint16_t* high, uint16_t* low, float* m, float* l) {
  F top = set1(-__builtin_inff());
  for (int c = 0; c < n; c += kLanes) top = max(top, first(n - c, load(s + c), set1(-__builtin_inff())));
  *m = max_lanes(top);
  F sum = zero_f();
  for (int c = 0; c < n_padded; c += kLanes) {
    F p = first(n - c, exp_f(sub(load(s + c), set1(*m))), zero_f());
    sum = add(sum, p);
    if (is_float) {
      store(s + c, p);
    } else {
      store_bf16(high + c, p);
      store_bf16(low + c, sub(p, load_bf16(high + c)));
    }
  }
  *l = sum_lanes(sum);
}

struct AttentionScratch {
  uint8_t* q;      // [rows][d] elements of the cache's type
  float* scores;   // [rows][256]
  uint16_t* high;  // [rows][256]
  uint16_t* low;   // [rows][256]
  float* part;     // [rows][d] of the segment
  float* total;    // [rows][d] merged so far
};

SF_INLINE AttentionScratch carve(uint8_t* p, int d) {
  AttentionScratch s;
  s.q = p, p += (size_t)kMaxTileRows * d * 4;
  s.scores = (float*)p, p += (size_t)kMaxTileRows * kSegmentKeys * 4;
  s.high = (uint16_t*)p, p += (size_t)kMaxTileRows * kSegmentKeys * 2;
  s.low = (uint16_t*)p, p += (size_t)kMaxTileRows * kSegmentKeys * 2;
  s.part = (float*)p, p += (size_t)kMaxTileRows * d * 4;
  s.total = (float*)p;
  return s;
}

// Rows [row, row_end) over keys [begin, end) of the segment.
SF_INLINE void weigh(const AttentionScratch& s, uint8_t* const* blocks, int row, int row_end, int begin, int end, int d,
                     bool is_float, size_t half_bytes) {
  for (int r = row; r < row_end; r += kRowsAtOnce) {
    const int some = row_end - r < kRowsAtOnce ? row_end - r : kRowsAtOnce, at = r * kSegmentKeys;
    kWeigh[is_float][some - 1](blocks, begin, end, s.scores + at, s.high + at, s.low + at, d, half_bytes,
                               s.part + (size_t)r * d);
  }
}

SF_INLINE F exp_one(float x) { return exp_f(set1(x)); }

// (m, l, total) of the row's earlier segments with those of this one.
SF_INLINE void merge(float* m, float* l, float* total, float m_part, float l_part, const float* part, int d) {
  const float top = *m > m_part ? *m : m_part;
  const F old_weight = exp_one(*m - top), new_weight = exp_one(m_part - top);
  float pair[2][kLanes];
  store(pair[0], old_weight);
  store(pair[1], new_weight);
  *l = *l * pair[0][0] + l_part * pair[1][0];
  *m = top;
  for (int i = 0; i < d; i += kLanes)
    store(total + i, fma(load(total + i), old_weight, mul(load(part + i), new_weight)));
}

void attention(const AttentionArgs* a, int token, int n_tokens, int position, const int32_t* table, int head,
               uint8_t* scratch) {
  const int d = a->head_dim, group = a->n_heads / a->n_kv_heads, rows = n_tokens * group;
  const bool is_float = a->kv.is_float;
  const size_t half_bytes = kv_half_bytes(a->kv), q_bytes = (size_t)d * (is_float ? 4 : 2);
  const AttentionScratch s = carve(scratch, d);
  float m[kMaxTileRows], l[kMaxTileRows];
  for (int t = 0; t < n_tokens; t++)
    __builtin_memcpy(s.q + t * group * q_bytes,
                     (const uint8_t*)a->q + ((size_t)(token + t) * a->n_heads + head * group) * q_bytes,
                     group * q_bytes);
  const int n_keys = position + n_tokens;  // of the last token
  for (int begin = 0; begin < n_keys; begin += kSegmentKeys) {
    const int keys = n_keys - begin < kSegmentKeys ? n_keys - begin : kSegmentKeys;
    const int n_blocks = (keys + kBlockTokens - 1) / kBlockTokens;
    uint8_t* blocks[kSegmentKeys / kBlockTokens];
    for (int b = 0; b < n_blocks; b++) blocks[b] = kv_block(a->kv, a->layer, table[begin / kBlockTokens + b], head);
    for (int r = 0; r < rows; r += kRowsAtOnce) {
      const int some = rows - r < kRowsAtOnce ? rows - r : kRowsAtOnce;
      kScore[is_float][some - 1](blocks, n_blocks, s.q + r * q_bytes, d, a->scale, s.scores + r * kSegmentKeys);
    }
    float m_part[kMaxTileRows], l_part[kMaxTileRows];
    for (int r = 0; r < rows; r++) {
      const int visible = position + r / group + 1 - begin;  // keys of this segment that the row may see, if positive
      soften(s.scores + r * kSegmentKeys, visible < keys ? visible : keys, n_blocks * kBlockTokens, is_float,
             s.high + r * kSegmentKeys, s.low + r * kSegmentKeys, m_part + r, l_part + r);
    }
    // The keys that all rows see, then token by token those that later rows see more. A row's sum stays in key order.
    const int first_visible = position + 1 - begin;
    const bool all_equal = n_tokens == 1 || first_visible >= keys;
    const int shared = all_equal ? keys : first_visible > 0 ? first_visible & ~1 : 0;
    if (shared) weigh(s, blocks, 0, rows, 0, shared, d, is_float, half_bytes);
    for (int t = 0; t < n_tokens && !all_equal; t++) {
      const int visible = first_visible + t < keys ? first_visible + t : keys;
      if (visible > shared) weigh(s, blocks, t * group, (t + 1) * group, shared, visible, d, is_float, half_bytes);
    }
    for (int r = 0; r < rows; r++) {
      if (position + r / group < begin) continue;  // an earlier token of the tile ends before this segment
      float *total = s.total + (size_t)r * d, *part = s.part + (size_t)r * d;
      if (begin == 0) {
        m[r] = m_part[r], l[r] = l_part[r];
        __builtin_memcpy(total, part, (size_t)d * 4);
      } else {
        merge(m + r, l + r, total, m_part[r], l_part[r], part, d);
      }
    }
  }
  const int k = a->n_heads * d;
  for (int r = 0; r < rows; r++) {
    const int row = token + r / group, column = (head * group + r % group) * d;
    const F inverse = set1(1.0f / l[r]);
    const float* total = s.total + (size_t)r * d;
    uint8_t* out = a->out + (size_t)(row / kRowGroup) * act_group_bytes(a->out_kind, k);
    for (int i = 0; i < d; i += 32)
      put_32(a->out_kind, out, row % kRowGroup, column + i, mul(load(total + i), inverse),
             mul(load(total + i + 16), inverse));
  }
}
