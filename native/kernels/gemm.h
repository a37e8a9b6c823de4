// Matrix products of packed weights with groups of activation rows.
// Part of isa.cc: included inside the namespace of one instruction set.
//
// Each kernel forms R rows x 16 columns. Its sum over k runs in the same order for every R, so a row's result does
// not depend on how many rows share the step. Weights are unsigned and sit in registers, activations are signed and
// are broadcast from memory: no sign fix-ups and no shuffles. Two blocks of 32 k are side by side in the lanes, so that
// their scaled sums become pairs of bf16 by themselves where these have an instruction (docs/decisions/0022).

// How far ahead of its use a streamed weight is fetched, in bytes, and from how many rows on. With AVX-512 and one row
// the hardware's own stream prefetching keeps up and is only disturbed; with codes of 8 and 16 bits up to four.
constexpr int kAheadBytes = 8192;
#ifdef SF_AVX512
constexpr int kFetchRows = 2, kFetchRowsWide = 5;
#else
constexpr int kFetchRows = 1, kFetchRowsWide = 1;
#endif

// What a product fetches while it multiplies.
struct Fetch {
  int ahead;  // this far ahead of each weight; 0: [next, end), `step` bytes for each block
  const uint8_t *next, *end;
  int step;
  Aside* aside;
};

// kWide: codes of 8 or 16 bits. Ahead goes to the second-level cache: the first one has room for fewer misses at once
// than the memory needs to keep busy.
template <int R, bool kWide>
SF_INLINE void fetch_ahead(Fetch* fetch, const uint8_t* p, int bytes) {
  if (R < (kWide ? kFetchRowsWide : kFetchRows)) return;
  if (fetch->ahead) {
    for (int c = 0; c < bytes; c += 64) prefetch_l2(p + fetch->ahead + c);
    return;
  }
  const uint8_t* next = fetch->next;
  const uint8_t* stop = next + fetch->step < fetch->end ? next + fetch->step : fetch->end;
  for (; next < stop; next += 64) prefetch(next);
  fetch->next = next;
}

// Into the first-level cache, though it is too small: prefetches into the second were without effect in about half of
// all processes (measured; docs/performance.md).
template <int R>
SF_INLINE void fetch_aside(Aside* aside, int blocks) {
  if (R < SF_GEMM_ROWS) return;
  for (; blocks; blocks--) {
    if (aside->at == aside->at_end) {
      if (aside->block == aside->end) return;
      aside->at = aside->base + *aside->block++ * aside->block_bytes;
      aside->at_end = aside->at + aside->block_bytes;
      if (aside->block != aside->end) touch_pages(aside->base + *aside->block * aside->block_bytes, aside->block_bytes);
    }
    for (int c = 0; c < kAsideStep; c += 64) prefetch(aside->at + c);
    aside->at += kAsideStep;
  }
}

template <int kRows>
using Act = ActRows<kRows, ActNumber>;
static_assert(SF_GEMM_ROWS == kRowGroup || sizeof(ActNumber) == 4,
              "rows of a group are equally far apart in all arrays");

// Halves of a tile's columns that are computed at once, not one after the other. A half is 8 columns x 2 blocks.
#ifdef SF_BF16_SUMS
constexpr int kHalves = 2;

typedef I Middles;  // bf16
SF_INLINE Middles load_middles(const uint8_t* p) { return load_bytes(p); }
// What d * (code - middle) leaves of d * code + m: smaller than m, so it suffers less from being bf16.
constexpr bool kCentredSupers = true;
SF_INLINE Middles middles_of(const F* d, int middle, const F* m) {
  return join_bf16(fma(d[0], set1(middle), m[0]), fma(d[1], set1(middle), m[1]));
}
// acc + sum[half] of both blocks, times the row's scales: lanes are the 16 columns.
SF_INLINE F add_blocks(F acc, const F* sum, const ActNumber* scale) {
  return dot2_bf16(acc, join_bf16(sum[0], sum[1]), scale);
}
SF_INLINE F add_middles(F acc, Middles m, const ActNumber* scaled_sum) { return dot2_bf16(acc, m, scaled_sum); }
#else
constexpr int kHalves = 1;

typedef F Middles;
SF_INLINE Middles load_middles(const uint8_t* p) { return load_bf16((const uint16_t*)p); }
constexpr bool kCentredSupers = false;  // sums that begin at nothing cost less
SF_INLINE Middles middles_of(const F*, int, const F* m) { return *m; }
SF_INLINE F load_pair_f(const ActNumber* p) { return from_bits(load_pair((const int32_t*)p)); }
// Lanes stay apart by block until the whole sum is there.
SF_INLINE F add_blocks(F acc, const F* sum, const ActNumber* scale) { return fma(*sum, load_pair_f(scale), acc); }
SF_INLINE F add_middles(F acc, Middles m, const ActNumber* scaled_sum) { return fma(m, load_pair_f(scaled_sum), acc); }
#endif
constexpr int kTurns = 2 / kHalves;

// Keeps what is loaded through a pointer from being carried from turn to turn in registers that there are not.
#define SF_ANEW(pointer) __asm__ volatile("" : "+r"(pointer))

template <int R>
SF_INLINE void store_sums(const F (*acc)[R], float* out, int ldo) {
  SF_UNROLL for (int r = 0; r < R; r++) {
#ifdef SF_BF16_SUMS
    store(out + (size_t)r * ldo, acc[0][r]);
#else
    store(out + (size_t)r * ldo, add_neighbours(acc[0][r], acc[1][r]));
#endif
  }
}

// sum[half][r] = codes of 4 or 5 bits, `kCentred` less the middle one, times activations; `p` points at the codes.
template <int R, int kBits, bool kCentred, int kRows>
SF_INLINE void add_products(const uint8_t* p, const Act<kRows>* a, I (*sum)[R]) {
  I fifth[kHalves];
  SF_UNROLL for (int h = 0; h < kHalves; h++) fifth[h] = kBits == 5 ? load_bytes(p + kCodeBytes4 + 64 * h) : zero_i();
  SF_UNROLL for (int r = 0; r < R; r++) {
    I offset = kCentred ? load_pair(a->small_offset[r]) : zero_i();
    if (kCentred && kBits == 5) offset = shift_left(offset, 1);
    SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] = offset;
  }
#ifdef SF_PAIR_SUMS
  I pairs[R];  // 16 bits hold the sums of 8 pairs of products of 4 bits, or of 4 of 5 bits
#endif
  SF_UNROLL for (int g = 0; g < 4; g++) {
    I low[kHalves], high[kHalves];
    SF_UNROLL for (int h = 0; h < kHalves; h++) {
      const I both = load_bytes(p + 128 * g + 64 * h);
      low[h] = low_nibbles(both), high[h] = high_nibbles(both);
      if (kBits == 5) low[h] = with_bit(low[h], fifth[h], g), high[h] = with_bit(high[h], fifth[h], 4 + g);
    }
#ifdef SF_PAIR_SUMS
    const bool first = g == 0 || (kBits == 5 && g == 2), last = g == 3 || (kBits == 5 && g == 1);
    SF_UNROLL for (int r = 0; r < R; r++) {
      const I some = add_pairs(products_of_pairs(low[0], load_quads(a->codes[g][r])),
                               products_of_pairs(high[0], load_quads(a->codes[4 + g][r])));
      pairs[r] = first ? some : add_pairs(pairs[r], some);
      if (last) sum[0][r] = add_i(sum[0][r], sums_of_pairs(pairs[r]));
    }
#else
    SF_UNROLL for (int r = 0; r < R; r++) {
      const Quads quads = load_quads(a->codes[g][r]);
      SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] = dot4(sum[h][r], low[h], quads);
    }
    SF_UNROLL for (int r = 0; r < R; r++) {
      const Quads quads = load_quads(a->codes[4 + g][r]);
      SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] = dot4(sum[h][r], high[h], quads);
    }
#endif
  }
}

// The same of codes of 8 bits.
template <int R, int kRows>
SF_INLINE void add_byte_products(const uint8_t* p, const Act<kRows>* a, I (*sum)[R]) {
  SF_UNROLL for (int r = 0; r < R; r++) SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] =
      kDotTakesBytes ? load_pair(a->offset[r]) : zero_i();
  SF_UNROLL for (int g = 0; g < 8; g++) {
    I codes[kHalves];
    SF_UNROLL for (int h = 0; h < kHalves; h++) codes[h] = load_bytes(p + 128 * g + 64 * h);
    SF_UNROLL for (int r = 0; r < R; r++) {
      const Quads quads = load_quads(a->codes[g][r]);
      SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] =
          kDotTakesBytes ? dot4(sum[h][r], codes[h], quads) : dot4_centred(sum[h][r], codes[h], quads);
    }
  }
}

// acc[r] += scale[half] * sum[half][r] of both blocks, times the row's scales.
template <int R, int kRows>
SF_INLINE void add_scaled_blocks(F* acc, I (*sum)[R], const F* scale, const Act<kRows>* a) {
  SF_UNROLL for (int r = 0; r < R; r++) {
    F scaled[kHalves];
    SF_UNROLL for (int h = 0; h < kHalves; h++) scaled[h] = mul(to_float(sum[h][r]), scale[h]);
    acc[r] = add_blocks(acc[r], scaled, a->scale[r]);
  }
}

// Types of blocks of 32: around zero, or with a middle.
template <int R, int kBits, bool kMiddle, int kRows>
SF_INLINE void tile_small(const MatrixView* w, int tile, const uint8_t* act, float* out, int ldo, Fetch* fetch) {
  constexpr int kCodes = kBits == 8 ? kCodeBytes8 : kBits == 5 ? kCodeBytes5 : kCodeBytes4;
  constexpr int kBytes = kCodes + (kMiddle ? 2 : 1) * kPairNumbers;
  const int pairs = (w->k + kBlockPair - 1) / kBlockPair;
  const uint8_t* p = w->tiles + (size_t)tile * pairs * kBytes;
  F acc[kTurns][R];
  SF_UNROLL for (int t = 0; t < kTurns; t++) SF_UNROLL for (int r = 0; r < R; r++) acc[t][r] = zero_f();
  for (int pair = 0; pair < pairs; pair++, p += kBytes) {
    fetch_ahead<R, kBits == 8>(fetch, p, kBytes);
    fetch_aside<R>(fetch->aside, 2);
    SF_UNROLL for (int t = 0; t < kTurns; t++) {
      const Act<kRows>* a = (const Act<kRows>*)act + pair;
      if (kTurns > 1) SF_ANEW(a);
      I sum[kHalves][R];
      if (kBits == 8)
        add_byte_products<R, kRows>(p + 64 * t, a, sum);
      else
        add_products<R, kBits, true, kRows>(p + 64 * t, a, sum);
      F d[kHalves];
      SF_UNROLL for (int h = 0; h < kHalves; h++) d[h] = load_f16(p + kCodes + 32 * (t + h));
      add_scaled_blocks<R, kRows>(acc[t], sum, d, a);
      if (kMiddle) {
        const Middles m = load_middles(p + kCodes + kPairNumbers + 32 * t);
        SF_UNROLL for (int r = 0; r < R; r++) acc[t][r] = add_middles(acc[t][r], m, a->scaled_sum[r]);
      }
    }
  }
  store_sums<R>(acc, out, ldo);
}

// Q4_K, Q5_K.
template <int R, int kBits, int kRows>
SF_INLINE void tile_super(const MatrixView* w, int tile, const uint8_t* act, float* out, int ldo, Fetch* fetch) {
  constexpr int kCodes = kBits == 5 ? kCodeBytes5 : kCodeBytes4, kPairs = kSuperBlock / kBlockPair;
  const int supers = w->k / kSuperBlock;
  const uint8_t* p = w->tiles + (size_t)tile * supers * (kSuperHeader + kPairs * kCodes);
  const Act<kRows>* pair = (const Act<kRows>*)act;
  F acc[kTurns][R];
  SF_UNROLL for (int t = 0; t < kTurns; t++) SF_UNROLL for (int r = 0; r < R; r++) acc[t][r] = zero_f();
  for (int super = 0; super < supers; super++) {
    const F all_d = load_f16(p), all_e = sub(zero_f(), load_f16(p + 32));
    F d[2], e[2];
    SF_UNROLL for (int h = 0; h < 2; h++) d[h] = spread(all_d, h), e[h] = spread(all_e, h);
    const uint8_t* scales = p + 64;
    fetch_ahead<R, false>(fetch, p, kSuperHeader);
    p += kSuperHeader;
    for (int part = 0; part < kPairs; part++, p += kCodes, scales += 64, pair++) {
      fetch_ahead<R, false>(fetch, p, kCodes);
      fetch_aside<R>(fetch->aside, 2);
      SF_UNROLL for (int t = 0; t < kTurns; t++) {
        const Act<kRows>* a = pair;
        if (kTurns > 1) SF_ANEW(a);
        I sum[kHalves][R];
        add_products<R, kBits, kCentredSupers, kRows>(p + 64 * t, a, sum);
        F scale[kHalves], m[kHalves];
        SF_UNROLL for (int h = 0; h < kHalves; h++) {
          scale[h] = mul(d[t + h], load_u8(scales + 16 * (t + h)));
          m[h] = mul(e[t + h], load_u8(scales + 32 + 16 * (t + h)));
        }
        add_scaled_blocks<R, kRows>(acc[t], sum, scale, a);
        const Middles middles = middles_of(scale, kBits == 5 ? 16 : 8, m);
        SF_UNROLL for (int r = 0; r < R; r++) acc[t][r] = add_middles(acc[t][r], middles, a->scaled_sum[r]);
      }
    }
  }
  store_sums<R>(acc, out, ldo);
}

// A scale for 16 k: the low nibbles, k % 32 < 16, and the high ones are summed apart.
template <int R, int kRows>
SF_INLINE void tile_q6_k(const MatrixView* w, int tile, const uint8_t* act, float* out, int ldo, Fetch* fetch) {
  constexpr int kPairs = kSuperBlock / kBlockPair;
  const int supers = w->k / kSuperBlock;
  const uint8_t* p = w->tiles + (size_t)tile * supers * (kSuperHeader + kPairs * kCodeBytes6);
  const Act<kRows>* pair = (const Act<kRows>*)act;
  F acc[kTurns][R];
  SF_UNROLL for (int t = 0; t < kTurns; t++) SF_UNROLL for (int r = 0; r < R; r++) acc[t][r] = zero_f();
  for (int super = 0; super < supers; super++) {
    const F all_d = load_f16(p);
    const F d[2] = {spread(all_d, 0), spread(all_d, 1)};
    const uint8_t* scales = p + 64;
    fetch_ahead<R, false>(fetch, p, kSuperHeader);
    p += kSuperHeader;
    for (int part = 0; part < kPairs; part++, p += kCodeBytes6, scales += 64, pair++) {
      fetch_ahead<R, false>(fetch, p, kCodeBytes6);
      fetch_aside<R>(fetch->aside, 2);
      SF_UNROLL for (int t = 0; t < kTurns; t++) {
        const Act<kRows>* a = pair;
        if (kTurns > 1) SF_ANEW(a);
        SF_UNROLL for (int high = 0; high < 2; high++) {
          I top[kHalves], sum[kHalves][R];
          SF_UNROLL for (int h = 0; h < kHalves; h++) top[h] = load_bytes(p + kCodeBytes4 + 128 * high + 64 * (t + h));
          SF_UNROLL for (int r = 0; r < R; r++) {
            const I first = load_pair(a->first_offset[r]);
            const I offset = high ? sub_i(shift_left(load_pair(a->small_offset[r]), 2), first) : first;
            SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] = offset;
          }
          SF_UNROLL for (int g = 0; g < 4; g++) {
            I codes[kHalves];
            SF_UNROLL for (int h = 0; h < kHalves; h++) {
              const I nibbles = load_bytes(p + 128 * g + 64 * (t + h));
              codes[h] = with_two_bits(high ? high_nibbles(nibbles) : low_nibbles(nibbles), top[h], g);
            }
            SF_UNROLL for (int r = 0; r < R; r++) {
              const Quads quads = load_quads(a->codes[4 * high + g][r]);
              SF_UNROLL for (int h = 0; h < kHalves; h++) sum[h][r] = dot4(sum[h][r], codes[h], quads);
            }
          }
          F scale[kHalves];
          SF_UNROLL for (int h = 0; h < kHalves; h++) scale[h] =
              mul(d[t + h], load_i8(scales + 32 * high + 16 * (t + h)));
          add_scaled_blocks<R, kRows>(acc[t], sum, scale, a);
        }
      }
    }
  }
  store_sums<R>(acc, out, ldo);
}

// Two sums hide the latency of the dot product when there are few rows.
template <int R, int kRows>
SF_INLINE void tile_bf16(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo,
                         Fetch* fetch) {
  constexpr int kSums = 2, kBytes = kTileBytes16;
  const uint8_t* p = w->tiles + (size_t)tile * w->k / kQuantBlock * kBytes;
  const uint8_t* a = act + 4 * row;
  F acc[kSums][R];
  SF_UNROLL for (int s = 0; s < kSums; s++) SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = zero_f();
  for (int b = 0; b < w->k / kQuantBlock; b++, p += kBytes, a += 4 * kRows * kQuantBlock / 2) {
    fetch_ahead<R, true>(fetch, p, kBytes);
    fetch_aside<R>(fetch->aside, 1);
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
void tile_rows(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo, Fetch* fetch) {
  if (SF_GEMM_ROWS == kRowGroup || kRows == 1) row = 0;  // a whole group at once: the compiler need not carry an index
  // In each array of ActRows a row is 8 bytes behind the one before: so is all that is read of it.
  const uint8_t* rows = act + 8 * row;
  switch (kKind) {
    case kWeightQ4_0:
      return tile_small<R, 4, false, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ5_0:
      return tile_small<R, 5, false, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ8_0:
      return tile_small<R, 8, false, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ4_1:
      return tile_small<R, 4, true, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ5_1:
      return tile_small<R, 5, true, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ4_K:
      return tile_super<R, 4, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ5_K:
      return tile_super<R, 5, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightQ6_K:
      return tile_q6_k<R, kRows>(w, tile, rows, out, ldo, fetch);
    case kWeightBF16:
      return tile_bf16<R, kRows>(w, tile, act, row, out, ldo, fetch);
    default:
      return tile_float<R, kRows>(w, tile, act, row, out, ldo);
  }
}

using TileFunction = void (*)(const MatrixView*, int, const uint8_t*, int, float*, int, Fetch*);

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
  Fetch fetch = {0, nullptr, nullptr, 0, aside ? aside : &none};
  // Several sweeps share the next tile among them, and the first one finds it there. One alone fetches ahead of itself;
  // fewer rows behind it find what it left.
  const int sweeps = n_rows / SF_GEMM_ROWS, tile_size = tiles_of(w->kind, w->k) * tile_bytes(w->kind);
  if (sweeps > 1) {
    const int calls = tiles_of(w->kind, w->k) * (is_super(w->kind) ? 1 + kSuperBlock / kBlockPair : 1) * sweeps;
    fetch.step = (tile_size / 64 + calls - 1) / calls * 64;
  }
  for (int t = 0; t < n_tiles; t++) {
    fetch.next = w->tiles + (size_t)(tile_begin + t + 1) * tile_size, fetch.end = fetch.next + tile_size;
    for (int r = 0; r < n_rows; r += SF_GEMM_ROWS) {
      fetch.ahead = sweeps > 1 || r ? 0 : kAheadBytes;
      const int rows = n_rows - r < SF_GEMM_ROWS ? n_rows - r : SF_GEMM_ROWS;
      const TileFunction form = is_single(r, n_rows) ? kSingleFunctions[w->kind] : kTileFunctions[w->kind][rows - 1];
      form(w, tile_begin + t, first_group + (size_t)(r / kRowGroup) * group_bytes, r % kRowGroup,
           out + (size_t)r * ldo + t * kLanes, ldo, &fetch);
    }
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
  const int8_t quads[2][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}};
  const Quads ones = load_quads(quads);
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
