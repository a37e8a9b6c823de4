// Paged attention over the KV cache, online softmax by segments.
// Part of isa.cc: included inside the namespace of one instruction set.
//
// One item is R query rows (tokens of one sequence x the query heads of one KV head). Keys are walked in segments of
// 256 at absolute positions. A segment yields per row its largest score m, l = sum exp(s - m) and o = sum exp(s - m) v;
// segments are merged in index order. A row's arithmetic thus depends on its own position alone: not on the rows
// beside it, not on how the prompt was cut. Keys behind a row's position, or before its window, are left out, never
// multiplied by zero.

// From one row's weights to the next one's, for bf16 ones, too.
constexpr size_t kWeightBytes = kSegmentKeys * sizeof(float);

// scores[r][c] = q[r] . k[c] for B blocks of 16 keys; lanes are keys, so there are no horizontal sums. (Prefetching the
// next keys or these values here was measured: it costs 8 % of decoding, the hardware does better alone.)
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
  constexpr int kBatch =
      R <= 3 ? SF_SCORE_BLOCKS
             : SF_SCORE_BLOCKS / 2;  // enough independent sums to hide the latency, few enough for registers
  int b = 0;
  for (; b + kBatch <= n_blocks; b += kBatch)
    score_blocks<R, kBatch, kFloat>(blocks + b, q, d, scale, scores + b * kLanes);
  for (; b < n_blocks; b++) score_blocks<R, 1, kFloat>(blocks + b, q, d, scale, scores + b * kLanes);
}

// out[r][column : column + 16 * D] (+)= sum over keys [begin, end) of p[r][key] v[key]; `fresh`: out is not read. Other
// keys are not multiplied by zero but left out: they may be another sequence's leftovers, and NaN. Of bf16 the two keys
// of a pair are added together, so a row's keys may be cut at even ones only.
template <int R, int D, bool kFloat>
SF_INLINE void weigh_values(uint8_t* const* blocks, int begin, int end, bool fresh, const uint8_t* p, int d,
                            size_t half_bytes, int column, float* out) {
  constexpr int kKeys = kFloat ? 1 : 2;  // of a vector of values; its weights are 4 bytes
  F acc[R * D];
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int i = 0; i < D; i++) acc[r * D + i] =
      fresh ? zero_f() : load(out + (size_t)r * d + column + i * kLanes);
  for (int key = begin & -kKeys; key < end; key += kKeys) {
    const uint8_t* v =
        blocks[key / kBlockTokens] + half_bytes + ((size_t)(key % kBlockTokens) / kKeys * d + column) * 4;
    const uint8_t* weights = p + (size_t)key / kKeys * 4;
    const I seen = set1_i((key < begin ? (int32_t)0xffff0000 : -1) & (key + 1 < end ? -1 : 0xffff));
    SF_UNROLL for (int i = 0; i < D; i++) {
      const I values = load_bytes(v + i * 64);
      SF_UNROLL for (int r = 0; r < R; r++) {
        const uint8_t* weight = weights + r * kWeightBytes;
        F& sum = acc[r * D + i];
        sum = kFloat ? fma(from_bits(values), set1(*(const float*)weight), sum)
                     : dot2_bf16(sum, and_i(values, seen), weight);
      }
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int i = 0; i < D; i++)
      store(out + (size_t)r * d + column + i * kLanes, acc[r * D + i]);
}

template <int R, bool kFloat>
void weigh_segment(uint8_t* const* blocks, int begin, int end, bool fresh, const uint8_t* p, int d, size_t half_bytes,
                   float* out) {
  int c = 0;
  for (; c + SF_WEIGH_VECTORS * kLanes <= d; c += SF_WEIGH_VECTORS * kLanes)
    weigh_values<R, SF_WEIGH_VECTORS, kFloat>(blocks, begin, end, fresh, p, d, half_bytes, c, out);
  for (; c < d; c += 32) weigh_values<R, 2, kFloat>(blocks, begin, end, fresh, p, d, half_bytes, c, out);
}

constexpr int kRowsAtOnce = SF_ATTENTION_ROWS;

using ScoreFunction = void (*)(uint8_t* const*, int, const uint8_t*, int, float, float*);
using WeighFunction = void (*)(uint8_t* const*, int, int, bool, const uint8_t*, int, size_t, float*);
#if SF_ATTENTION_ROWS == 6
#define SF_EACH(name, flag) {name<1, flag>, name<2, flag>, name<3, flag>, name<4, flag>, name<5, flag>, name<6, flag>}
#else
#define SF_EACH(name, flag) {name<1, flag>, name<2, flag>}
#endif
const ScoreFunction kScore[2][kRowsAtOnce] = {SF_EACH(score_segment, false), SF_EACH(score_segment, true)};
const WeighFunction kWeigh[2][kRowsAtOnce] = {SF_EACH(weigh_segment, false), SF_EACH(weigh_segment, true)};

// Weights of 16 keys from key c on, in the cache's type.
SF_INLINE void put_weights(uint8_t* weights, int c, F p, bool is_float) {
  if (is_float)
    store((float*)weights + c, p);
  else
    store_bf16((uint16_t*)weights + c, p);
}

// Scores of one row, keys [begin, n), to weights exp(s - m); other keys beside them get 0. Returns m and l of the
// segment, l being the sum of the weights before they are rounded. NaN among the scores makes l NaN.
SF_INLINE void soften(const float* s, int begin, int n, bool is_float, uint8_t* weights, float* m, float* l) {
  const F nothing = set1(-__builtin_inff());
  const int cut = begin / kLanes * kLanes, whole = n / kLanes * kLanes;
  // Lanes of the vector at `cut` that are not seen are blended away; what follows are whole vectors and a rest.
  const int from = begin > cut ? cut + kLanes : cut, rest = whole >= from ? n - whole : 0;
  F top = nothing;
  if (from > cut) top = first(begin - cut, nothing, first(n - cut, load(s + cut), nothing));
  for (int c = from; c < whole; c += kLanes) top = max(top, load(s + c));
  if (rest) top = max(top, first(rest, load(s + whole), nothing));
  const F shift = set1(*m = max_lanes(top));
  F sum = zero_f();
  if (from > cut) {
    sum = first(begin - cut, zero_f(), first(n - cut, exp_f(sub(load(s + cut), shift)), zero_f()));
    put_weights(weights, cut, sum, is_float);
  }
  for (int c = from; c < whole; c += kLanes) {
    const F p = exp_f(sub(load(s + c), shift));
    sum = add(sum, p);
    put_weights(weights, c, p, is_float);
  }
  if (rest) {
    const F p = first(rest, exp_f(sub(load(s + whole), shift)), zero_f());
    sum = add(sum, p);
    put_weights(weights, whole, p, is_float);
  }
  *l = sum_lanes(sum);
}

struct AttentionScratch {
  uint8_t* q;        // [rows][d] elements of the cache's type
  float* scores;     // [rows][256]
  uint8_t* weights;  // [rows][kWeightBytes]: of the cache's type
  float* total;      // [rows][d] merged so far
  float* part;       // one segment's result
};

SF_INLINE AttentionScratch carve(uint8_t* p, int d) {
  AttentionScratch s;
  s.q = p, p += (size_t)kMaxTileRows * d * 4;
  s.scores = (float*)p, p += (size_t)kMaxTileRows * kSegmentKeys * 4;
  s.weights = p, p += (size_t)kMaxTileRows * kWeightBytes;
  s.total = (float*)p, p += (size_t)kMaxTileRows * d * 4;
  s.part = (float*)p;
  return s;
}

// A segment's result: o [rows][d], then m [rows], l [rows].
SF_INLINE float* part_m(float* part, int rows, int d) { return part + (size_t)rows * d; }
SF_INLINE float* part_l(float* part, int rows, int d) { return part + (size_t)rows * (d + 1); }

// Rows [row, row_end) over keys [begin, end) of the segment.
SF_INLINE void weigh(const AttentionScratch& s, uint8_t* const* blocks, int row, int row_end, int begin, int end,
                     bool fresh, int d, bool is_float, size_t half_bytes, float* part) {
  for (int r = row; r < row_end; r += kRowsAtOnce) {
    const int some = row_end - r < kRowsAtOnce ? row_end - r : kRowsAtOnce;
    kWeigh[is_float][some - 1](blocks, begin, end, fresh, s.weights + r * kWeightBytes, d, half_bytes,
                               part + (size_t)r * d);
  }
}

// Keys of a segment that begins at `begin` and has `keys` of them, before the ones that a token at `position` sees.
SF_INLINE int unseen(const AttentionArgs* a, int position, int begin, int keys) {
  const int low = first_key(position, a->window) - begin;
  return low < 0 ? 0 : low < keys ? low : keys;
}

// One segment of an item whose queries lie in s.q. Rows that end before the segment, or whose window begins behind it,
// are left undefined in `part`.
void attend_segment(const AttentionArgs* a, int n_tokens, int position, const int32_t* table, int head, int segment,
                    const AttentionScratch& s, float* part) {
  const int d = a->head_dim, group = a->n_heads / a->n_kv_heads, rows = n_tokens * group;
  const bool is_float = a->kv.is_float;
  const size_t half_bytes = kv_half_bytes(a->kv), q_bytes = (size_t)d * (is_float ? 4 : 2);
  const int begin = segment * kSegmentKeys, left = position + n_tokens - begin;
  const int keys = left < kSegmentKeys ? left : kSegmentKeys, n_blocks = (keys + kBlockTokens - 1) / kBlockTokens;
  const int low = unseen(a, position, begin, keys), first_block = low / kBlockTokens;
  uint8_t* blocks[kSegmentKeys / kBlockTokens];
  for (int b = first_block; b < n_blocks; b++)
    blocks[b] = kv_block(a->kv, a->layer, table[begin / kBlockTokens + b], head);
  for (int b = first_block; b < n_blocks; b++) touch_pages(blocks[b], 2 * half_bytes);
  for (int r = 0; r < rows; r += kRowsAtOnce) {
    const int some = rows - r < kRowsAtOnce ? rows - r : kRowsAtOnce;
    kScore[is_float][some - 1](blocks + first_block, n_blocks - first_block, s.q + r * q_bytes, d, a->scale,
                               s.scores + r * kSegmentKeys + first_block * kBlockTokens);
  }
  if (a->softcap > 0)
    for (int r = 0; r < rows; r++)
      softcap(s.scores + r * kSegmentKeys + first_block * kBlockTokens, (n_blocks - first_block) * kBlockTokens,
              a->softcap);
  const int first_visible = position + 1 - begin;  // keys of this segment that the first token sees
  for (int r = 0; r < rows; r++) {
    const int visible = first_visible + r / group < keys ? first_visible + r / group : keys;
    const int hidden = unseen(a, position + r / group, begin, keys);
    if (visible > hidden)
      soften(s.scores + r * kSegmentKeys, hidden, visible, is_float, s.weights + r * kWeightBytes,
             part_m(part, rows, d) + r, part_l(part, rows, d) + r);
  }
  // The keys that all rows see, before them token by token those that earlier rows see more, behind them those that
  // later rows see more. A row's sum stays in key order, and pairs of keys stay together.
  const bool all_equal = n_tokens == 1 || first_visible >= keys;
  const int shared_begin = n_tokens == 1 ? low : (unseen(a, position + n_tokens - 1, begin, keys) + 1) & ~1;
  int shared = all_equal ? keys : first_visible > 0 ? first_visible & ~1 : 0;
  if (shared < shared_begin) shared = shared_begin;
  const bool ragged = low < shared_begin;
  if (ragged) {
    __builtin_memset(part, 0, (size_t)rows * d * 4);
    for (int t = 0; t < n_tokens; t++) {
      const int hidden = unseen(a, position + t, begin, keys);
      const int visible = first_visible + t < shared_begin ? first_visible + t : shared_begin;
      if (visible > hidden)
        weigh(s, blocks, t * group, (t + 1) * group, hidden, visible, false, d, is_float, half_bytes, part);
    }
  }
  if (shared > shared_begin) weigh(s, blocks, 0, rows, shared_begin, shared, !ragged, d, is_float, half_bytes, part);
  const bool fresh = !ragged && shared == shared_begin;
  for (int t = 0; t < n_tokens && !all_equal; t++) {
    const int visible = first_visible + t < keys ? first_visible + t : keys;
    if (visible > shared)
      weigh(s, blocks, t * group, (t + 1) * group, shared, visible, fresh, d, is_float, half_bytes, part);
  }
}

// One row's earlier segments (m, l, total) with its result in the next one.
SF_INLINE void merge_row(float* m, float* l, float* total, float m_part, float l_part, const float* part, int d) {
  const float top = *m > m_part ? *m : m_part;
  const F old_weight = exp_f(set1(*m - top)), new_weight = exp_f(set1(m_part - top));
  float old_one[kLanes], new_one[kLanes];
  store(old_one, old_weight);
  store(new_one, new_weight);
  *l = *l * old_one[0] + l_part * new_one[0];
  *m = top;
  for (int i = 0; i < d; i += kLanes)
    store(total + i, fma(load(total + i), old_weight, mul(load(part + i), new_weight)));
}

// Segment `segment` of all rows into (m, l, total); segments come in order, from the first that a row sees.
SF_INLINE void merge_segment(int segment, int window, int position, int group, int rows, int d, float* part, float* m,
                             float* l, float* total) {
  for (int r = 0; r < rows; r++) {
    const int token = position + r / group, begin = first_key(token, window) / kSegmentKeys;
    if (token < segment * kSegmentKeys || segment < begin) continue;  // this token of the tile sees none of it
    const float m_part = part_m(part, rows, d)[r], l_part = part_l(part, rows, d)[r];
    if (segment == begin) {
      m[r] = m_part, l[r] = l_part;
      __builtin_memcpy(total + (size_t)r * d, part + (size_t)r * d, (size_t)d * 4);
    } else {
      merge_row(m + r, l + r, total + (size_t)r * d, m_part, l_part, part + (size_t)r * d, d);
    }
  }
}

SF_INLINE void write_result(const AttentionArgs* a, int token, int rows, int head, const float* l, const float* total) {
  const int d = a->head_dim, group = a->n_heads / a->n_kv_heads;
  for (int r = 0; r < rows; r++) {
    float* out = a->out + ((size_t)(token + r / group) * a->n_heads + head * group + r % group) * d;
    const F inverse = set1(1.0f / l[r]);
    for (int i = 0; i < d; i += kLanes) store(out + i, mul(load(total + (size_t)r * d + i), inverse));
  }
}

void attention(const AttentionArgs* a, int token, int n_tokens, int position, const int32_t* table, int head,
               int segment, int segment_end, float* parts, uint8_t* scratch) {
  const int d = a->head_dim, group = a->n_heads / a->n_kv_heads, rows = n_tokens * group;
  const size_t q_bytes = (size_t)d * (a->kv.is_float ? 4 : 2);
  const AttentionScratch s = carve(scratch, d);
  for (int t = 0; t < n_tokens; t++)
    __builtin_memcpy(s.q + t * group * q_bytes,
                     (const uint8_t*)a->q + ((size_t)(token + t) * a->n_heads + head * group) * q_bytes,
                     group * q_bytes);
  float m[kMaxTileRows], l[kMaxTileRows];
  for (int g = segment; g < segment_end; g++) {
    float* part = parts ? parts + g * attention_part_floats(rows, d) : s.part;
    attend_segment(a, n_tokens, position, table, head, g, s, part);
    if (!parts) merge_segment(g, a->window, position, group, rows, d, part, m, l, s.total);
  }
  if (!parts) write_result(a, token, rows, head, l, s.total);
}

void attention_merge(const AttentionArgs* a, int token, int n_tokens, int position, int head, float* parts,
                     uint8_t* scratch) {
  const int d = a->head_dim, group = a->n_heads / a->n_kv_heads, rows = n_tokens * group;
  float m[kMaxTileRows], l[kMaxTileRows];
  float* total = carve(scratch, d).total;
  for (int g = first_key(position, a->window) / kSegmentKeys; g < attention_segments(position, n_tokens); g++)
    merge_segment(g, a->window, position, group, rows, d, parts + g * attention_part_floats(rows, d), m, l, total);
  write_result(a, token, rows, head, l, total);
}
