// Matrix products of packed weights with groups of activation rows.
// Part of isa.cc: included inside the namespace of one instruction set.
//
// Each kernel forms R rows x 16 columns. Its sum over k runs in the same order for every R, so a row's result does
// not depend on how many rows share the step. Weights are unsigned and sit in registers, activations are signed and
// are broadcast from memory: no sign fix-ups and no shuffles.

// How far ahead of its use a streamed weight is fetched, in bytes. With few rows the hardware's own stream
// prefetching keeps up and is only disturbed (measured on weights in memory: 1 row 10-20 % slower with it, 4 rows 3-17
// %, 8 rows 5-10 % slower without).
constexpr int kAheadBytes = 2560, kFetchRows = 7;

// What a product fetches while it multiplies.
struct Fetch {
  int ahead;  // this far ahead of each weight; 0: nothing
  Aside* aside;
};

template <int R>
SF_INLINE void fetch_ahead(const Fetch* fetch, const uint8_t* p, int bytes) {
  if (R < kFetchRows || !fetch->ahead) return;
  for (int c = 0; c < bytes; c += 64) prefetch(p + fetch->ahead + c);
}

// Into the first-level cache, though it is too small: prefetches into the second were without effect in about half of
// all processes (measured; docs/performance.md).
template <int R>
SF_INLINE void fetch_aside(Aside* aside) {
  if (R < SF_GEMM_ROWS) return;
  if (aside->at == aside->at_end) {
    if (aside->block == aside->end) return;
    aside->at = aside->base + *aside->block++ * aside->block_bytes;
    aside->at_end = aside->at + aside->block_bytes;
  }
  for (int c = 0; c < kAsideStep; c += 64) prefetch(aside->at + c);
  aside->at += kAsideStep;
}

// sum[r] += codes of 4 or 5 bits times activations; `p` points at the codes.
template <int R, int kBits, int kRows>
SF_INLINE void add_products(const uint8_t* p, const ActRows<kRows>* a, int row, I* sum) {
  I fifth = zero_i();
  if (kBits == 5) fifth = load_bytes(p + kCodeBytes4);
#ifdef SF_PAIR_SUMS
  I pairs[R];  // 16 bits hold the sums of 8 pairs of products of 4 bits, or of 4 of 5 bits
#endif
  SF_UNROLL for (int g = 0; g < 4; g++) {
    const I both = load_bytes(p + 64 * g);
    I low = low_nibbles(both), high = high_nibbles(both);
    if (kBits == 5) low = with_bit(low, fifth, g), high = with_bit(high, fifth, 4 + g);
#ifdef SF_PAIR_SUMS
    const bool first = g == 0 || (kBits == 5 && g == 2), last = g == 3 || (kBits == 5 && g == 1);
    SF_UNROLL for (int r = 0; r < R; r++) {
      const I some =
          add_pairs(products_of_pairs(low, a->codes[g][row + r]), products_of_pairs(high, a->codes[4 + g][row + r]));
      pairs[r] = first ? some : add_pairs(pairs[r], some);
      if (last) sum[r] = add_i(sum[r], sums_of_pairs(pairs[r]));
    }
#else
    SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], low, a->codes[g][row + r]);
    SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], high, a->codes[4 + g][row + r]);
#endif
  }
}

// Types with a minimum: Q4_1, Q5_1.
template <int R, int kBits, int kRows>
SF_INLINE void tile_minimum(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                            const Fetch* fetch) {
  constexpr int kCodes = kBits == 5 ? kCodeBytes5 : kCodeBytes4, kBytes = kCodes + 64;
  const int blocks = w->k / kQuantBlock;
  const uint8_t* p = w->tiles + (size_t)tile * blocks * kBytes;
  const ActRows<kRows>* a = (const ActRows<kRows>*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int b = 0; b < blocks; b++, p += kBytes, a++) {
    fetch_ahead<R>(fetch, p, kBytes);
    fetch_aside<R>(fetch->aside);
    I sum[R];
    SF_UNROLL for (int r = 0; r < R; r++) sum[r] = zero_i();
    add_products<R, kBits, kRows>(p, a, row, sum);
    const F d = load_f16(p + kCodes), m = load_f16(p + kCodes + 32);
    SF_UNROLL for (int r = 0; r < R; r++) {
      acc[r] = fma(to_float(sum[r]), mul(d, set1(a->scale[row + r])), acc[r]);
      acc[r] = fma(m, set1(a->scaled_sum[row + r]), acc[r]);
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

// Types around zero: Q4_0, Q5_0, Q8_0. The sum begins at what the offset of the codes would add too much.
template <int R, int kBits, int kRows>
SF_INLINE void tile_centred(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                            const Fetch* fetch) {
  constexpr int kCodes = kBits == 8 ? kCodeBytes8 : kBits == 5 ? kCodeBytes5 : kCodeBytes4, kBytes = kCodes + 32;
  const int blocks = w->k / kQuantBlock;
  const uint8_t* p = w->tiles + (size_t)tile * blocks * kBytes;
  const ActRows<kRows>* a = (const ActRows<kRows>*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int b = 0; b < blocks; b++, p += kBytes, a++) {
    fetch_ahead<R>(fetch, p, kBytes);
    fetch_aside<R>(fetch->aside);
    I sum[R];
    SF_UNROLL for (int r = 0; r < R; r++) {
      sum[r] = kBits == 8 && !kDotTakesBytes ? zero_i() : set1_i(a->offset[row + r]);
      if (kBits < 8) sum[r] = shift_right(sum[r], 8 - kBits);
    }
    if (kBits == 8) {
      SF_UNROLL for (int g = 0; g < 8; g++) {
        const I codes = load_bytes(p + 64 * g);
        SF_UNROLL for (int r = 0; r < R; r++) sum[r] = kDotTakesBytes
                                                           ? dot4(sum[r], codes, a->codes[g][row + r])
                                                           : dot4_centred(sum[r], codes, a->codes[g][row + r]);
      }
    } else {
      add_products<R, kBits, kRows>(p, a, row, sum);
    }
    const F d = load_f16(p + kCodes);
    SF_UNROLL for (int r = 0; r < R; r++) acc[r] = fma(to_float(sum[r]), mul(d, set1(a->scale[row + r])), acc[r]);
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

// Q4_K, Q5_K.
template <int R, int kBits, int kRows>
SF_INLINE void tile_super(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                          const Fetch* fetch) {
  constexpr int kCodes = kBits == 5 ? kCodeBytes5 : kCodeBytes4, kParts = kSuperBlock / kQuantBlock;
  const int supers = w->k / kSuperBlock;
  const uint8_t* p = w->tiles + (size_t)tile * supers * (kSuperHeader + kParts * kCodes);
  const ActRows<kRows>* a = (const ActRows<kRows>*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int super = 0; super < supers; super++) {
    const F d = load_f16(p), e = sub(zero_f(), load_f16(p + 32));
    const uint8_t* scales = p + 64;
    fetch_ahead<R>(fetch, p, kSuperHeader);
    p += kSuperHeader;
    for (int part = 0; part < kParts; part++, p += kCodes, scales += 32, a++) {
      fetch_ahead<R>(fetch, p, kCodes);
      fetch_aside<R>(fetch->aside);
      I sum[R];
      SF_UNROLL for (int r = 0; r < R; r++) sum[r] = zero_i();
      add_products<R, kBits, kRows>(p, a, row, sum);
      const F scale = mul(d, load_u8(scales)), low = mul(e, load_u8(scales + 16));
      SF_UNROLL for (int r = 0; r < R; r++) {
        acc[r] = fma(to_float(sum[r]), mul(scale, set1(a->scale[row + r])), acc[r]);
        acc[r] = fma(low, set1(a->scaled_sum[row + r]), acc[r]);
      }
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

// A scale for 16 k: the low nibbles, k = 0..15 of a part, and the high ones are summed apart.
// Their scaled sums meet before the scale of the activations multiplies both: one multiplication less a row.
template <int R, int kRows>
SF_INLINE void tile_q6_k(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                         const Fetch* fetch) {
  constexpr int kParts = kSuperBlock / kQuantBlock;
  const int supers = w->k / kSuperBlock;
  const uint8_t* p = w->tiles + (size_t)tile * supers * (kSuperHeader + kParts * kCodeBytes6);
  const ActRows<kRows>* a = (const ActRows<kRows>*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int super = 0; super < supers; super++) {
    const F d = load_f16(p);
    const uint8_t* scales = p + 64;
    fetch_ahead<R>(fetch, p, kSuperHeader);
    p += kSuperHeader;
    for (int part = 0; part < kParts; part++, p += kCodeBytes6, scales += 32, a++) {
      fetch_ahead<R>(fetch, p, kCodeBytes6);
      fetch_aside<R>(fetch->aside);
      F both[R];
      SF_UNROLL for (int half = 0; half < 2; half++) {
        const I top = load_bytes(p + kCodeBytes4 + 64 * half);
        I sum[R];
        SF_UNROLL for (int r = 0; r < R; r++) {
          const I first = set1_i(a->first_offset[row + r]);
          sum[r] = half ? sub_i(shift_right(set1_i(a->offset[row + r]), 2), first) : first;
        }
        SF_UNROLL for (int g = 0; g < 4; g++) {
          const I nibbles = load_bytes(p + 64 * g);
          const I codes = with_two_bits(half ? high_nibbles(nibbles) : low_nibbles(nibbles), top, g);
          SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], codes, a->codes[4 * half + g][row + r]);
        }
        const F scale = mul(d, load_i8(scales + 16 * half));
        SF_UNROLL for (int r = 0; r < R; r++) both[r] =
            half ? fma(to_float(sum[r]), scale, both[r]) : mul(to_float(sum[r]), scale);
      }
      SF_UNROLL for (int r = 0; r < R; r++) acc[r] = fma(both[r], set1(a->scale[row + r]), acc[r]);
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

// Two sums hide the latency of the dot product when there are few rows.
template <int R, int kRows>
SF_INLINE void tile_bf16(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                         const Fetch* fetch) {
  constexpr int kSums = 2, kBytes = kCodeBytes16;
  const uint8_t* p = w->tiles + (size_t)tile * w->k / kQuantBlock * kBytes;
  const uint8_t* a = act + 4 * row;
  F acc[kSums][R];
  SF_UNROLL for (int s = 0; s < kSums; s++) SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = zero_f();
  for (int b = 0; b < w->k / kQuantBlock; b++, p += kBytes, a += 4 * kRows * kQuantBlock / 2) {
    fetch_ahead<R>(fetch, p, kBytes);
    fetch_aside<R>(fetch->aside);
    SF_UNROLL for (int g = 0; g < kQuantBlock / 2; g++) {
      const I pairs = load_bytes(p + 64 * g);
      SF_UNROLL for (int r = 0; r < R; r++) acc[g % kSums][r] =
          dot2_bf16(acc[g % kSums][r], pairs, a + 4 * (g * kRows + r));
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, add(acc[0][r], acc[1][r]));
}

// The four sums over k mod 4 hide the latency of the addition when there are few rows.
template <int R, int kRows>
SF_INLINE void tile_float(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo) {
  constexpr int kSums = 4;
  const float* p = (const float*)w->tiles + (size_t)tile * w->k * kLanes;
  const float* a = (const float*)act;
  F acc[kSums][R];
  SF_UNROLL for (int s = 0; s < kSums; s++) SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = zero_f();
  for (int k = 0; k < w->k; k += kSums, p += kSums * kLanes, a += kSums * kRows)
    SF_UNROLL for (int s = 0; s < kSums; s++) {
      const F v = load(p + s * kLanes);
      SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = fma(v, set1(a[s * kRows + row + r]), acc[s][r]);
    }
  SF_UNROLL for (int r = 0; r < R; r++)
      store(out + (size_t)r * ldo, add(add(acc[0][r], acc[1][r]), add(acc[2][r], acc[3][r])));
}

// Rows [row, row + R) of the group of kRows rows at `act`.
template <int R, WeightKind kKind, int kRows>
void tile_rows(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo, const Fetch* fetch) {
  if (SF_GEMM_ROWS == kRowGroup || kRows == 1) row = 0;  // a whole group at once: the compiler need not carry an index
  switch (kKind) {
    case kWeightQ4_0:
      return tile_centred<R, 4, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ5_0:
      return tile_centred<R, 5, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ8_0:
      return tile_centred<R, 8, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ4_1:
      return tile_minimum<R, 4, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ5_1:
      return tile_minimum<R, 5, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ4_K:
      return tile_super<R, 4, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ5_K:
      return tile_super<R, 5, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightQ6_K:
      return tile_q6_k<R, kRows>(w, tile, act, row, out, ldo, fetch);
    case kWeightBF16:
      return tile_bf16<R, kRows>(w, tile, act, row, out, ldo, fetch);
    default:
      return tile_float<R, kRows>(w, tile, act, row, out, ldo);
  }
}

using TileFunction = void (*)(const MatrixView*, int, const uint8_t*, int, float*, int, const Fetch*);

#define SF_SOME(rows, kind) tile_rows<rows, kind, kRowGroup>
#if SF_GEMM_ROWS == 8
#define SF_ROWS(kind)                                                      \
  {SF_SOME(1, kind), SF_SOME(2, kind), SF_SOME(3, kind), SF_SOME(4, kind), \
   SF_SOME(5, kind), SF_SOME(6, kind), SF_SOME(7, kind), SF_SOME(8, kind)}
#elif SF_GEMM_ROWS == 4
#define SF_ROWS(kind) {SF_SOME(1, kind), SF_SOME(2, kind), SF_SOME(3, kind), SF_SOME(4, kind)}
#else
#define SF_ROWS(kind) {SF_SOME(1, kind), SF_SOME(2, kind)}
#endif
const TileFunction kTileFunctions[kWeightKinds][SF_GEMM_ROWS] = {
    SF_ROWS(kWeightQ4_0), SF_ROWS(kWeightQ4_1), SF_ROWS(kWeightQ5_0), SF_ROWS(kWeightQ5_1), SF_ROWS(kWeightQ8_0),
    SF_ROWS(kWeightQ4_K), SF_ROWS(kWeightQ5_K), SF_ROWS(kWeightQ6_K), SF_ROWS(kWeightBF16), SF_ROWS(kWeightF32)};
#define SF_ALONE(kind) tile_rows<1, kind, 1>
const TileFunction kSingleFunctions[kWeightKinds] = {
    SF_ALONE(kWeightQ4_0), SF_ALONE(kWeightQ4_1), SF_ALONE(kWeightQ5_0), SF_ALONE(kWeightQ5_1), SF_ALONE(kWeightQ8_0),
    SF_ALONE(kWeightQ4_K), SF_ALONE(kWeightQ5_K), SF_ALONE(kWeightQ6_K), SF_ALONE(kWeightBF16), SF_ALONE(kWeightF32)};

// A tile stays in the first-level cache while all row groups sweep over it.
void matmul(const MatrixView* w, const uint8_t* act, int row_begin, int n_rows, int tile_begin, int n_tiles, float* out,
            int ldo, Aside* aside) {
  const ActKind kind = act_kind(w->kind);
  const size_t group_bytes = act_group_bytes(kind, w->k);
  const uint8_t* first_group = act + (size_t)(row_begin / kRowGroup) * group_bytes;
  Aside none = {};
  Fetch fetch = {kAheadBytes, aside ? aside : &none};
  // Of several sweeps the last one fetches the next tile, and the first finds it there.
  const int last = n_rows / SF_GEMM_ROWS * SF_GEMM_ROWS - SF_GEMM_ROWS;
  const int tile_size = w->k / tile_k(w->kind) * tile_bytes(w->kind);
  for (int t = 0; t < n_tiles; t++)
    for (int r = 0; r < n_rows; r += SF_GEMM_ROWS) {
      const int rows = n_rows - r < SF_GEMM_ROWS ? n_rows - r : SF_GEMM_ROWS;
      const TileFunction form = is_single(r, n_rows) ? kSingleFunctions[w->kind] : kTileFunctions[w->kind][rows - 1];
      if (last > 0) fetch.ahead = r == last ? tile_size : 0;
      form(w, tile_begin + t, first_group + (size_t)(r / kRowGroup) * group_bytes, r % kRowGroup,
           out + (size_t)r * ldo + t * kLanes, ldo, &fetch);
    }
}

double bf16_peak(int rounds, float* sink) {
  const uint32_t ones = 0x3f803f80;
  F sums[12];
  I w = set1_i((int32_t)ones);
  SF_UNROLL for (int i = 0; i < 12; i++) {
    sums[i] = zero_f();
    SF_OPAQUE(sums[i]);
  }
  for (int n = 0; n < rounds; n++) {
    SF_OPAQUE(w);
    SF_UNROLL for (int i = 0; i < 12; i++) sums[i] = dot2_bf16(sums[i], w, &ones);
  }
  for (int i = 1; i < 12; i++) sums[0] = add(sums[0], sums[i]);
  *sink = sum_lanes(sums[0]);
  return 12.0 * 32 * rounds;
}

double int8_peak(int rounds, int32_t* sink) {
  const int8_t ones[4] = {1, 1, 1, 1};
  I sums[12], w = set1_i(0x01010101);
  SF_UNROLL for (int i = 0; i < 12; i++) {
    sums[i] = zero_i();
    SF_OPAQUE(sums[i]);  // equal sums would be computed once
  }
  for (int n = 0; n < rounds; n++) {
    SF_OPAQUE(w);  // and products with constants in advance
    SF_UNROLL for (int i = 0; i < 12; i++) sums[i] = dot4(sums[i], w, ones);
  }
  for (int i = 1; i < 12; i++) sums[0] = add_i(sums[0], sums[i]);
  *sink = sum_lanes_i(sums[0]);
  return 12.0 * 64 * rounds;
}

uint64_t read_memory(const uint8_t* data, size_t bytes) {
  I top[4];
  for (int i = 0; i < 4; i++) top[i] = zero_i();
  for (size_t at = 0; at + 256 <= bytes; at += 256)
    for (int i = 0; i < 4; i++) {
      prefetch(data + at + 64 * i + 2048);
      top[i] = max_i(top[i], load_bytes(data + at + 64 * i));
    }
  return (uint64_t)max_lanes_i(max_i(max_i(top[0], top[1]), max_i(top[2], top[3])));
}
