// Logits to tokens, for rows that need more than the highest logit. src/sixfold/sampler/reference.py is the definition,
// src/sixfold/sampler/weights.py the arithmetic; every build gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sixfold {

// What one row's draw depends on, beside its logits and position: ROW_PARAMS in src/sixfold/sampler/kernels.py.
struct RowParams {
  uint64_t seed;
  double top_p;   // 1 is off
  float scale;    // log2(e) / temperature; 0 is greedy
  float min_x;    // log2(min-p); -inf is off
  int32_t top_k;  // 0 is off
  uint32_t choice;
};
static_assert(sizeof(RowParams) == 32, "ROW_PARAMS has 32 bytes");

constexpr double kLogprobFloor = -9999.0;  // reported instead of -inf
constexpr int32_t kUnusable = -1;
constexpr int32_t kNothingAllowed = -2;

// Whole vectors of 16, and one more that stores of whole vectors may run over.
inline __attribute__((always_inline)) size_t padded_candidates(size_t n_vocab) { return (n_vocab + 31) / 16 * 16; }

// Scratch that `draw` and `score` need, 64-byte aligned: logit, id, two weights and a key of every candidate, and
// behind them logit and id of what a mask leaves. Little of it is touched unless a row is nearly flat.
inline size_t sampler_scratch_bytes(size_t n_vocab) { return padded_candidates(n_vocab) * (4 + 4 + 8 + 8 + 8 + 4 + 4); }

// The functions that exist once per instruction set. A row is n_vocab floats, 1 <= n_vocab < 2^22.
struct SamplerTable {
  // 1 when no logit is NaN and the highest is finite.
  int (*usable)(const float* row, size_t n_vocab);

  // The token at absolute index `position`, or kUnusable.
  int32_t (*draw)(const float* row, size_t n_vocab, const RowParams* params, int64_t position, void* scratch);

  // The same among the tokens that a mask allows, bit i % 32 of word i / 32 for token i; kNothingAllowed where none of
  // them has a logit above -inf.
  int32_t (*draw_allowed)(const float* row, size_t n_vocab, const uint32_t* mask, const RowParams* params,
                          int64_t position, void* scratch);

  // Raw logits -> *logprob and rank of `target` (returned; kUnusable leaves the outputs alone), and the n_top likeliest
  // tokens with their logprobs. n_top <= n_vocab.
  int32_t (*score)(const float* row, size_t n_vocab, int32_t target, size_t n_top, double* logprob, int32_t* top_ids,
                   double* top_logprobs, void* scratch);
};

const SamplerTable* sampler_generic();
const SamplerTable* sampler_avx2();
const SamplerTable* sampler_avxvnni();
const SamplerTable* sampler_avx512();
const SamplerTable* sampler_neon();

}  // namespace sixfold
