// Matrix products of packed weights with groups of activation rows.
// Part of isa.cc: included inside the namespace of one instruction set.
//
// Each kernel forms R rows x 16 columns. Its sum over k runs in the same order for every R, so a row's result does
// not depend on how many rows share the step. Weights are unsigned and sit in registers, activations are signed and
// are broadcast from memory: no sign fix-ups and no shuffles.

// How far ahead of its use a streamed weight is fetched, in bytes. With few rows the hardware's own stream
// prefetching keeps up and is only disturbed (measured: 1 row 10 % slower with it, 8 rows 20 % slower without).
constexpr int kAheadBytes = 2560, kFetchRows = 3;

template <int R>
SF_INLINE void fetch_ahead(const uint8_t* p, int bytes) {
  if (R < kFetchRows) return;
  for (int c = 0; c < bytes; c += 64) prefetch(p + kAheadBytes + c);
}

template <int R>
SF_INLINE void tile_q4_1(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo) {
  const int blocks = w->k / kQuantBlock;
  const uint8_t* p = w->tiles + (size_t)tile * blocks * kTileBytesQ4_1;
  const ActBlock* a = (const ActBlock*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int b = 0; b < blocks; b++, p += kTileBytesQ4_1, a++) {
    fetch_ahead<R>(p, kTileBytesQ4_1);
    I sum[R];
    SF_UNROLL for (int r = 0; r < R; r++) sum[r] = zero_i();
    SF_UNROLL for (int g = 0; g < 4; g++) {
      const I both = load_bytes(p + 64 * g);
      const I low = low_nibbles(both), high = high_nibbles(both);
      SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], low, a->codes[g][row + r]);
      SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], high, a->codes[4 + g][row + r]);
    }
    const F d = load_f16(p + 256), m = load_f16(p + 288);
    SF_UNROLL for (int r = 0; r < R; r++) {
      acc[r] = fma(to_float(sum[r]), mul(d, set1(a->scale[row + r])), acc[r]);
      acc[r] = fma(m, set1(a->scaled_sum[row + r]), acc[r]);
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

template <int R>
SF_INLINE void tile_q8_0(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo) {
  const int blocks = w->k / kQuantBlock;
  const uint8_t* p = w->tiles + (size_t)tile * blocks * kTileBytesQ8_0;
  const uint8_t* s = w->scales + (size_t)tile * blocks * kScaleBytesQ8_0;
  const ActBlock* a = (const ActBlock*)act;
  F acc[R];
  SF_UNROLL for (int r = 0; r < R; r++) acc[r] = zero_f();
  for (int b = 0; b < blocks; b++, p += kTileBytesQ8_0, s += kScaleBytesQ8_0, a++) {
    fetch_ahead<R>(p, kTileBytesQ8_0);
    I sum[R];
    SF_UNROLL for (int r = 0; r < R; r++) sum[r] = set1_i(a->offset[row + r]);
    SF_UNROLL for (int g = 0; g < 8; g++) {
      const I codes = load_bytes(p + 64 * g);
      SF_UNROLL for (int r = 0; r < R; r++) sum[r] = dot4(sum[r], codes, a->codes[g][row + r]);
    }
    const F d = load_f16(s);
    SF_UNROLL for (int r = 0; r < R; r++) acc[r] = fma(to_float(sum[r]), mul(d, set1(a->scale[row + r])), acc[r]);
  }
  SF_UNROLL for (int r = 0; r < R; r++) store(out + (size_t)r * ldo, acc[r]);
}

// Float activations. The four sums over k mod 4 hide the latency of the addition when there are few rows.
template <int R, WeightKind kKind>
SF_INLINE void tile_float(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo) {
  constexpr int kSums = 4, kElement = kKind == kWeightF16 ? 2 : 4;
  const uint8_t* p = w->tiles + (size_t)tile * w->k * kLanes * kElement;
  const float* a = (const float*)act;
  F acc[kSums][R];
  SF_UNROLL for (int s = 0; s < kSums; s++) SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = zero_f();
  for (int k = 0; k < w->k; k += kSums, p += kSums * kLanes * kElement, a += kSums * kRowGroup) {
    SF_UNROLL for (int s = 0; s < kSums; s++) {
      const uint8_t* q = p + s * kLanes * kElement;
      const F v = kKind == kWeightF16 ? load_f16(q) : load((const float*)q);
      SF_UNROLL for (int r = 0; r < R; r++) acc[s][r] = fma(v, set1(a[s * kRowGroup + row + r]), acc[s][r]);
    }
  }
  SF_UNROLL for (int r = 0; r < R; r++)
      store(out + (size_t)r * ldo, add(add(acc[0][r], acc[1][r]), add(acc[2][r], acc[3][r])));
}

// Rows [row, row + R) of the group at `act`.
template <int R, WeightKind kKind>
void tile_rows(const MatrixView* w, int tile, const uint8_t* act, int row, float* out, int ldo) {
  if (SF_GEMM_ROWS == kRowGroup) row = 0;  // a whole group at once: the compiler need not carry an index
  if (kKind == kWeightQ4_1)
    tile_q4_1<R>(w, tile, act, row, out, ldo);
  else if (kKind == kWeightQ8_0)
    tile_q8_0<R>(w, tile, act, row, out, ldo);
  else
    tile_float<R, kKind>(w, tile, act, row, out, ldo);
}

using TileFunction = void (*)(const MatrixView*, int, const uint8_t*, int, float*, int);

#if SF_GEMM_ROWS == 8
#define SF_ROWS(kind)                                                              \
  {tile_rows<1, kind>, tile_rows<2, kind>, tile_rows<3, kind>, tile_rows<4, kind>, \
   tile_rows<5, kind>, tile_rows<6, kind>, tile_rows<7, kind>, tile_rows<8, kind>}
#else
#define SF_ROWS(kind) {tile_rows<1, kind>, tile_rows<2, kind>}
#endif
const TileFunction kTileFunctions[4][SF_GEMM_ROWS] = {SF_ROWS(kWeightQ4_1), SF_ROWS(kWeightQ8_0), SF_ROWS(kWeightF16),
                                                      SF_ROWS(kWeightF32)};

// A tile stays in the first-level cache while all row groups sweep over it.
void matmul(const MatrixView* w, const uint8_t* act, int row_begin, int n_rows, int tile_begin, int n_tiles, float* out,
            int ldo) {
  const ActKind kind = act_kind(w->kind);
  const size_t group_bytes = act_group_bytes(kind, w->k);
  const uint8_t* first_group = act + (size_t)(row_begin / kRowGroup) * group_bytes;
  for (int t = 0; t < n_tiles; t++)
    for (int r = 0; r < n_rows; r += SF_GEMM_ROWS) {
      const int rows = n_rows - r < SF_GEMM_ROWS ? n_rows - r : SF_GEMM_ROWS;
      kTileFunctions[w->kind][rows - 1](w, tile_begin + t, first_group + (size_t)(r / kRowGroup) * group_bytes,
                                        r % kRowGroup, out + (size_t)r * ldo + t * kLanes, ldo);
    }
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
