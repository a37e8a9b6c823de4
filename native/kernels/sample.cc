// Compiled once per instruction set: SF_ISA names the build. No standard-library templates here: their weak copies
// would leak instructions of this build into the rest of the program.
//
// The loops are written with the compiler's vector types. Each operation rounds once on its own (no fused multiply-add)
// and sums are sums of integers, so that all builds and NumPy agree bit for bit, whatever the width of a vector.
#include "sample.h"

#include <math.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define SF_PASTE2(a, b) a##b
#define SF_PASTE(a, b) SF_PASTE2(a, b)
#define SF_INLINE inline __attribute__((always_inline))

namespace sixfold {
namespace {

// One register wide: the compiler takes comparisons of wider vectors apart, lane by lane.
#if defined(__AVX512F__)
constexpr size_t kLanes = 16;
#elif defined(__AVX2__)
constexpr size_t kLanes = 8;
#else
constexpr size_t kLanes = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef double Doubles __attribute__((vector_size(4 * kLanes)));  // half as many
typedef uint64_t Longs __attribute__((vector_size(4 * kLanes)));  // half as many

// Long enough that adding up lanes costs little, short enough that the second look at one chunk costs nothing.
constexpr size_t kChunk = 1024;

// The constants of weights.py.
constexpr int kUnitBits = 40;
constexpr float kXMin = -42.0f;
constexpr float kRound = 12582912.0f;
constexpr float kC1 = 0.693147f, kC2 = 0.24022242f, kC3 = 0.055507336f, kC4 = 0.009671513f, kC5 = 0.0013264727f;
constexpr float kLog2E = 1.442695f;

SF_INLINE Floats load(const float* p) {
  Floats v;
  memcpy(&v, p, sizeof v);
  return v;
}

// The last n < 16 floats; the other lanes hold `fill`.
SF_INLINE Floats load_tail(const float* p, size_t n, float fill) {
  float lane[kLanes];
  for (size_t i = 0; i < kLanes; i++) lane[i] = i < n ? p[i] : fill;
  return load(lane);
}

SF_INLINE Floats splat(float x) { return x - (Floats){}; }

// 2^40 * 2^x for x <= 0, as in weights.py.
SF_INLINE Floats scaled_exp2(Floats x) {
  x = x > kXMin ? x : splat(kXMin);
  const Floats n = (x + kRound) - kRound;
  const Floats f = x - n;
  const Floats e = ((((kC5 * f + kC4) * f + kC3) * f + kC2) * f + kC1) * f + 1.0f;
  const Ints power = (__builtin_convertvector(n, Ints) + (127 + kUnitBits)) << 23;
  return e * (Floats)power;
}

// How a row's logits become weights.
struct Weighing {
  float highest;
  float scale;  // log2(e) / temperature
  float min_x;  // x below it weighs 0 (min-p)
};

SF_INLINE Floats weigh(Floats logits, const Weighing& how) {
  const Floats x = (logits - how.highest) * how.scale;
  const Floats w = scaled_exp2(x);
  return x < how.min_x ? (Floats){} : w;
}

// Whole numbers of a vector of floats.
struct Whole {
  Longs low, high;
};

// To the nearest whole number, ties to even; w is in [0, 2^40].
SF_INLINE Whole whole(Floats w) {
#ifdef __AVX512DQ__
  return {(Longs)_mm512_cvtps_epi64(_mm512_castps512_ps256((__m512)w)),
          (Longs)_mm512_cvtps_epi64(_mm512_extractf32x8_ps((__m512)w, 1))};
#else
  // Adding 2^52 leaves the whole number in the low bits of the double.
  Doubles low, high;
  for (size_t i = 0; i < kLanes / 2; i++) low[i] = w[i], high[i] = w[kLanes / 2 + i];
  constexpr double kShift = 4503599627370496.0;
  constexpr uint64_t kShiftBits = 0x4330000000000000u;
  return {(Longs)(low + kShift) - kShiftBits, (Longs)(high + kShift) - kShiftBits};
#endif
}

SF_INLINE uint64_t sum(Longs v) {
  uint64_t total = 0;
  for (size_t lane = 0; lane < kLanes / 2; lane++) total += v[lane];
  return total;
}

// Sum of the weights of a stretch of logits.
uint64_t mass(const float* row, size_t n, const Weighing& how) {
  Longs low = {}, high = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats v = i + kLanes <= n ? load(row + i) : load_tail(row + i, n - i, -INFINITY);
    const Whole w = whole(weigh(v, how));
    low += w.low;
    high += w.high;
  }
  return sum(low + high);
}

// Weight of each of n logits, and their sum. `out` has room for whole vectors.
uint64_t weights(const float* logits, size_t n, const Weighing& how, uint64_t* out) {
  Longs total = {};
  for (size_t i = 0; i < n; i += kLanes) {
    const Floats v = i + kLanes <= n ? load(logits + i) : load_tail(logits + i, n - i, -INFINITY);
    const Whole w = whole(weigh(v, how));
    memcpy(out + i, &w, sizeof w);
    total += w.low + w.high;
  }
  return sum(total);
}

// Highest logit, or NaN when any logit is NaN.
float highest_of(const float* row, size_t n) {
  Floats best[4];  // four chains hide the latency of one
  for (int a = 0; a < 4; a++) best[a] = splat(-INFINITY);
  Ints nan = {};
  size_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    for (int a = 0; a < 4; a++) {
      const Floats v = load(row + i + a * kLanes);
      best[a] = v > best[a] ? v : best[a];
      nan |= (v != v);
    }
  }
  for (; i < n; i += kLanes) {
    const Floats v = i + kLanes <= n ? load(row + i) : load_tail(row + i, n - i, -INFINITY);
    best[0] = v > best[0] ? v : best[0];
    nan |= (v != v);
  }
  float result = -INFINITY;
  int32_t any_nan = 0;
  for (size_t lane = 0; lane < kLanes; lane++) {
    for (int a = 0; a < 4; a++) result = best[a][lane] > result ? best[a][lane] : result;
    any_nan |= nan[lane];
  }
  return any_nan ? NAN : result;
}

// First index at which the row holds `value`, which it does.
size_t find(const float* row, float value) {
  size_t i = 0;
  while (row[i] != value) i++;
  return i;
}

// Philox4x32-10 (Salmon and others, 2011), as in philox.py: 64 bits for (seed, choice, position).
uint64_t random64(uint64_t seed, uint32_t choice, uint64_t position) {
  uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = choice, c3 = 0;
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t product_0 = (uint64_t)0xD2511F53u * c0, product_1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)product_1;
    c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)product_0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (uint64_t)c1 << 32 | c0;
}

// random / 2^64 of the whole, rounded down: always below `total`.
SF_INLINE uint64_t share(uint64_t random, uint64_t total) {
  return (uint64_t)((unsigned __int128)random * total >> 64);
}

// The part of the vocabulary that can matter, in order of id.
struct Candidates {
  size_t n;
  float* logits;      // [n]
  uint32_t* ids;      // [n]
  uint64_t* weights;  // [n]
  uint64_t* keys;     // [n] work space of a selection
  uint64_t* shares;   // [n] work space of a selection
};

Candidates candidates_in(void* scratch, size_t n_vocab) {
  const size_t n = padded_candidates(n_vocab);
  Candidates c;
  c.n = 0;
  c.weights = (uint64_t*)scratch;
  c.keys = c.weights + n;
  c.shares = c.keys + n;
  c.logits = (float*)(c.shares + n);
  c.ids = (uint32_t*)(c.logits + n);
  return c;
}

// Whether one of kStretch logits is at least `threshold`.
constexpr size_t kStretch = 32;
SF_INLINE bool reaches(const float* logits, float threshold) {
  Floats best = load(logits);
  for (size_t i = kLanes; i < kStretch; i += kLanes) {
    const Floats v = load(logits + i);
    best = v > best ? v : best;
  }
  int32_t any = 0;
  const Ints above = best >= threshold;
  for (size_t lane = 0; lane < kLanes; lane++) any |= above[lane];
  return any != 0;
}

// Takes every logit that is at least `threshold`.
void collect(const float* row, size_t n, float threshold, Candidates* c) {
  size_t found = 0, i = 0;
#ifdef __AVX512F__
  const __m512 limit = _mm512_set1_ps(threshold);
  __m512i id = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; i + kLanes <= n; i += kLanes, id = _mm512_add_epi32(id, _mm512_set1_epi32(kLanes))) {
    const __m512 v = _mm512_loadu_ps(row + i);
    const __mmask16 take = _mm512_cmp_ps_mask(v, limit, _CMP_GE_OQ);
    if (!take) continue;
    // A compressing store to memory is slow on some processors: compress in the register, store all lanes.
    _mm512_storeu_ps(c->logits + found, _mm512_maskz_compress_ps(take, v));
    _mm512_storeu_si512(c->ids + found, _mm512_maskz_compress_epi32(take, id));
    found += (size_t)__builtin_popcount(take);
  }
#endif
  while (i < n) {
    const size_t end = i + kStretch <= n ? i + kStretch : n;
    if (end - i == kStretch && !reaches(row + i, threshold)) {
      i = end;
      continue;
    }
    for (; i < end; i++) {
      c->logits[found] = row[i];
      c->ids[found] = (uint32_t)i;
      found += row[i] >= threshold;
    }
  }
  c->n = found;
}

// Logit and id as one number that rises along the order "falling logit, ties by id"; 0 and -0 are equal logits.
SF_INLINE uint64_t key_of(float logit, uint32_t id) {
  const float positive_zero = logit + 0.0f;
  uint32_t bits;
  memcpy(&bits, &positive_zero, sizeof bits);
  const uint32_t falling = bits >> 31 ? bits : ~bits & 0x7fffffffu;
  return (uint64_t)falling << 32 | id;
}

constexpr uint64_t kLastKey = UINT64_MAX;

// Sorts keys, each with its share.
void insertion_sort(uint64_t* keys, uint64_t* shares, size_t n) {
  for (size_t i = 1; i < n; i++) {
    const uint64_t key = keys[i], share = shares[i];
    size_t j = i;
    for (; j > 0 && keys[j - 1] > key; j--) {
      keys[j] = keys[j - 1];
      shares[j] = shares[j - 1];
    }
    keys[j] = key;
    shares[j] = share;
  }
}

// The key at which shares, added up from the best key on, first reach `needed` >= 1; the shares reach it. Keys are
// distinct. Digit by digit from the highest bit in which keys differ: only the keys of the digit in which it happens go
// on.
uint64_t select(uint64_t* keys, uint64_t* shares, size_t n, uint64_t needed) {
  constexpr size_t kFew = 32;  // up to here, sorting is quicker than counting
  constexpr int kDigitBits = 8;
  constexpr uint64_t kMask = (1u << kDigitBits) - 1;
  while (n > kFew) {
    uint64_t differing = 0;
    for (size_t i = 1; i < n; i++) differing |= keys[i] ^ keys[0];
    const int n_bits = 64 - __builtin_clzll(differing);
    const int shift = n_bits > kDigitBits ? n_bits - kDigitBits : 0;
    uint64_t sums[kMask + 1] = {};
    for (size_t i = 0; i < n; i++) sums[keys[i] >> shift & kMask] += shares[i];
    uint64_t digit = 0;
    while (sums[digit] < needed) needed -= sums[digit++];
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
      const uint64_t key = keys[i], share = shares[i];
      keys[kept] = key;
      shares[kept] = share;
      kept += (key >> shift & kMask) == digit;
    }
    n = kept;
  }
  insertion_sort(keys, shares, n);
  size_t i = 0;
  while (shares[i] < needed) needed -= shares[i++];
  return keys[i];
}

// Key of the k-th best candidate; 1 <= k <= n.
uint64_t key_of_rank(const Candidates& c, size_t k) {
  for (size_t i = 0; i < c.n; i++) {
    c.keys[i] = key_of(c.logits[i], c.ids[i]);
    c.shares[i] = 1;
  }
  return select(c.keys, c.shares, c.n, k);
}

// Key at which the weights from the best candidate on reach `needed`, which they do.
uint64_t key_of_mass(const Candidates& c, uint64_t needed) {
  for (size_t i = 0; i < c.n; i++) c.keys[i] = key_of(c.logits[i], c.ids[i]);
  memcpy(c.shares, c.weights, c.n * sizeof *c.shares);
  return select(c.keys, c.shares, c.n, needed);
}

// Candidates beyond `last` weigh nothing from now on. Returns the sum of the others.
uint64_t cut_weights(const Candidates& c, uint64_t last) {
  uint64_t total = 0;
  for (size_t i = 0; i < c.n; i++) {
    if (key_of(c.logits[i], c.ids[i]) > last) c.weights[i] = 0;
    total += c.weights[i];
  }
  return total;
}

// Distances below the highest logit, in units of the temperature, at which candidates are looked for, until there are
// enough. Beyond the last one every weight is 0.
constexpr float kReach[] = {2.0f, 3.0f, 4.0f, 5.0f, 6.0f, 8.0f, 10.0f, 12.0f, 15.0f, 19.0f, 24.0f, 30.0f};
constexpr int kReaches = sizeof kReach / sizeof kReach[0];

// Gathers `enough` candidates or more; beyond the last reach only when `exhaustive`.
void collect_enough(const float* row, size_t n, float highest, float temperature, size_t enough, bool exhaustive,
                    Candidates* c) {
  for (int i = 0; i < kReaches; i++) {
    collect(row, n, highest - kReach[i] * temperature, c);
    if (c->n >= enough) return;
  }
  if (exhaustive) collect(row, n, -INFINITY, c);
}

// Gathers candidates that weigh `needed` together or more.
void collect_mass(const float* row, size_t n, const Weighing& how, float temperature, uint64_t needed, Candidates* c) {
  for (int i = 0; i < kReaches; i++) {
    collect(row, n, how.highest - kReach[i] * temperature, c);
    if (weights(c->logits, c->n, how, c->weights) >= needed) return;
  }
}

// The share of top-p, at least 1.
SF_INLINE uint64_t needed_mass(double top_p, uint64_t total) {
  const uint64_t needed = (uint64_t)(top_p * (double)total);
  return needed ? needed : 1;
}

// Gathers what top-k leaves; with weights.
void keep_top_k(const float* row, size_t n, const Weighing& how, float temperature, size_t k, Candidates* c) {
  collect_enough(row, n, how.highest, temperature, k, false, c);
  weights(c->logits, c->n, how, c->weights);
  if (k < c->n) cut_weights(*c, key_of_rank(*c, k));
}

int32_t draw_filtered(const float* row, size_t n, const RowParams& p, const Weighing& how, uint64_t random,
                      void* scratch) {
  const float temperature = kLog2E / p.scale;
  const Weighing before_min_p = {how.highest, how.scale, -INFINITY};
  Candidates c = candidates_in(scratch, n);
  if (p.top_k > 0 && (size_t)p.top_k < n) {
    keep_top_k(row, n, before_min_p, temperature, (size_t)p.top_k, &c);
    if (p.top_p < 1.0) cut_weights(c, key_of_mass(c, needed_mass(p.top_p, cut_weights(c, kLastKey))));
  } else {
    const uint64_t needed = needed_mass(p.top_p, mass(row, n, before_min_p));
    collect_mass(row, n, before_min_p, temperature, needed, &c);
    cut_weights(c, key_of_mass(c, needed));
  }
  uint64_t total = 0;
  for (size_t i = 0; i < c.n; i++) {
    if ((c.logits[i] - how.highest) * how.scale < how.min_x) c.weights[i] = 0;
    total += c.weights[i];
  }
  const uint64_t target = share(random, total);
  uint64_t cumulated = 0;
  size_t i = 0;
  while (cumulated + c.weights[i] <= target) cumulated += c.weights[i++];
  return (int32_t)c.ids[i];
}

// Draws from the whole vocabulary: sums of chunks first, then one chunk token by token.
int32_t draw_all(const float* row, size_t n, const Weighing& how, uint64_t random, void* scratch) {
  uint64_t* sums = (uint64_t*)scratch;
  const size_t n_chunks = (n + kChunk - 1) / kChunk;
  uint64_t total = 0;
  for (size_t i = 0; i < n_chunks; i++) {
    const size_t begin = i * kChunk;
    sums[i] = mass(row + begin, n - begin < kChunk ? n - begin : kChunk, how);
    total += sums[i];
  }
  const uint64_t target = share(random, total);
  uint64_t cumulated = 0;
  size_t chunk = 0;
  while (cumulated + sums[chunk] <= target) cumulated += sums[chunk++];
  uint64_t weight[kChunk];
  const size_t begin = chunk * kChunk, length = n - begin < kChunk ? n - begin : kChunk;
  weights(row + begin, length, how, weight);
  size_t i = 0;
  while (cumulated + weight[i] <= target) cumulated += weight[i++];
  return (int32_t)(begin + i);
}

bool is_finite(float x) { return x > -INFINITY && x < INFINITY; }

int usable(const float* row, size_t n) { return is_finite(highest_of(row, n)); }

int32_t draw_from(const float* row, size_t n, float highest, const RowParams* params, int64_t position, void* scratch) {
  if (params->scale == 0.0f) return (int32_t)find(row, highest);
  const uint64_t random = random64(params->seed, params->choice, (uint64_t)position);
  const Weighing how = {highest, params->scale, params->min_x};
  const bool has_top_k = params->top_k > 0 && (size_t)params->top_k < n;
  if (has_top_k || params->top_p < 1.0) return draw_filtered(row, n, *params, how, random, scratch);
  return draw_all(row, n, how, random, scratch);
}

int32_t draw(const float* row, size_t n, const RowParams* params, int64_t position, void* scratch) {
  const float highest = highest_of(row, n);
  if (!is_finite(highest)) return kUnusable;
  return draw_from(row, n, highest, params, position, scratch);
}

// Logits and ids of the tokens that a mask allows, in order of id; both have room for a vector more. Returns how many.
size_t allowed(const float* row, size_t n, const uint32_t* mask, float* logits, uint32_t* ids) {
  size_t found = 0;
  for (size_t word = 0; word * 32 < n; word++) {
    uint32_t bits = mask[word];
    const size_t begin = word * 32;
    if (n - begin < 32) bits &= (1u << (n - begin)) - 1;
    if (!bits) continue;
#ifdef __AVX512F__
    if (n - begin >= 32) {
      const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
      for (size_t half = 0; half < 32; half += 16) {
        const __mmask16 take = (__mmask16)(bits >> half);
        const __m512i id = _mm512_add_epi32(first, _mm512_set1_epi32((int)(begin + half)));
        _mm512_storeu_ps(logits + found, _mm512_maskz_compress_ps(take, _mm512_loadu_ps(row + begin + half)));
        _mm512_storeu_si512(ids + found, _mm512_maskz_compress_epi32(take, id));
        found += (size_t)__builtin_popcount(take);
      }
      continue;
    }
#endif
    for (; bits; bits &= bits - 1) {
      const size_t id = begin + (size_t)__builtin_ctz(bits);
      logits[found] = row[id];
      ids[found++] = (uint32_t)id;
    }
  }
  return found;
}

// A forbidden token weighs nothing, and sums are exact: leaving it out changes no draw. So what is left is drawn from
// as if it were the whole vocabulary.
int32_t draw_allowed(const float* row, size_t n, const uint32_t* mask, const RowParams* params, int64_t position,
                     void* scratch) {
  if (!is_finite(highest_of(row, n))) return kUnusable;
  const size_t padded = padded_candidates(n);
  float* logits = (float*)((uint64_t*)scratch + 4 * padded);
  uint32_t* ids = (uint32_t*)(logits + padded);
  const size_t n_allowed = allowed(row, n, mask, logits, ids);
  const float highest = n_allowed ? highest_of(logits, n_allowed) : -INFINITY;
  if (!is_finite(highest)) return kNothingAllowed;
  return (int32_t)ids[draw_from(logits, n_allowed, highest, params, position, scratch)];
}

int32_t rank_of(const float* row, size_t n, size_t target) {
  const float own = row[target];
  Ints above = {};
  size_t i = 0;
  int32_t rank = 0;
  for (; i + kLanes <= n; i += kLanes) above -= load(row + i) > splat(own);
  for (; i < n; i++) rank += row[i] > own;
  for (size_t lane = 0; lane < kLanes; lane++) rank += above[lane];
  Ints before = {};
  for (i = 0; i + kLanes <= target; i += kLanes) before -= load(row + i) == splat(own);
  for (; i < target; i++) rank += row[i] == own;
  for (size_t lane = 0; lane < kLanes; lane++) rank += before[lane];
  return rank;
}

// The n_top >= 1 likeliest tokens, best first.
void best_of(const float* row, size_t n, float highest, size_t n_top, int32_t* ids, void* scratch) {
  Candidates c = candidates_in(scratch, n);
  collect_enough(row, n, highest, 1.0f, n_top, true, &c);
  const uint64_t last = key_of_rank(c, n_top);
  size_t kept = 0;
  for (size_t i = 0; i < c.n; i++) {
    const uint64_t key = key_of(c.logits[i], c.ids[i]);
    c.keys[kept] = key;  // not beyond i
    kept += key <= last;
  }
  insertion_sort(c.keys, c.shares, n_top);
  for (size_t i = 0; i < n_top; i++) ids[i] = (int32_t)(uint32_t)c.keys[i];
}

SF_INLINE double floored(double logprob) { return logprob > kLogprobFloor ? logprob : kLogprobFloor; }

int32_t score(const float* row, size_t n, int32_t target, size_t n_top, double* logprob, int32_t* top_ids,
              double* top_logprobs, void* scratch) {
  const float highest = highest_of(row, n);
  if (!is_finite(highest)) return kUnusable;
  const Weighing how = {highest, kLog2E, -INFINITY};
  const double log_sum = log((double)mass(row, n, how) / (double)(1ull << kUnitBits));
  *logprob = floored((double)row[target] - (double)highest - log_sum);
  if (n_top) best_of(row, n, highest, n_top, top_ids, scratch);
  for (size_t i = 0; i < n_top; i++) {
    top_logprobs[i] = floored((double)row[top_ids[i]] - (double)highest - log_sum);
  }
  return rank_of(row, n, (size_t)target);
}

const SamplerTable table = {usable, draw, draw_allowed, score};

}  // namespace

const SamplerTable* SF_PASTE(sampler_, SF_ISA)() { return &table; }

}  // namespace sixfold
