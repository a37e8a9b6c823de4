// The functions that exist once per instruction set. Each build fills one table; the rest of the program calls
// through it and is compiled for the plainest CPU only.
#pragma once

#include "layout.h"

namespace sixfold {

// Interleaved rotates pairs (2i, 2i+1), as GGUF's llama family; halves rotates (i, i + d/2).
enum RopeStyle : int32_t { kRopeInterleaved = 0, kRopeHalves = 1 };

enum Activation : int32_t { kSilu = 0, kGelu = 1 };  // gelu in its tanh form

// What becomes of a q, k or v head after the product: bias, norm, rotation, rounding, cache.
struct QkvArgs {
  KvView kv;
  int32_t layer, n_heads, n_kv_heads, head_dim;
  const float* bias;             // [n_heads + 2 n_kv_heads][head_dim], or null
  const float *q_norm, *k_norm;  // [head_dim] RMSNorm of each head, or null
  float eps;                     // of these norms
  RopeStyle rope_style;
  int32_t rope_dims;  // a head's first dimensions, which are rotated
  // [positions][rope_dims]. Interleaved: (cos, sin) per pair; halves: all cosines, then all sines.
  const float* rope;
  const int32_t* positions;     // [tokens]
  const int32_t* write_blocks;  // [tokens] block that holds the token's position
  void* q;                      // [tokens][n_heads][head_dim] bf16 or float, as the cache
};

// One item of attention: all query heads of one KV head for consecutive tokens of one sequence (a tile).
struct AttentionArgs {
  KvView kv;
  int32_t layer, n_heads, n_kv_heads, head_dim;
  float scale;     // multiplies the scores
  float softcap;   // scores become softcap * tanh(score / softcap); 0: none
  int32_t window;  // keys at this distance or farther are not seen; 0: all are
  const void* q;   // as written by qkv_rows
  float* out;      // [tokens][n_heads][head_dim]
};

// Blocks of keys and values that a product asks for while it multiplies. With many rows the memory is idle there, and
// attention, which waits for it, finds in the caches what comes next.
struct Aside {
  const uint8_t* base;         // block b begins at base + b * block_bytes
  size_t block_bytes;          // a multiple of kAsideStep
  const int32_t *block, *end;  // those that are left
  const uint8_t *at, *at_end;  // of the block before
};

// What a product asks for of an Aside per 32 inputs of a tile with a full group of rows: with more, the misses that are
// outstanding at once hold it up; with less, too few blocks are there when attention comes.
constexpr int kAsideStep = 128;

constexpr int kMaxTileRows = 16;  // query rows (tokens x heads of a group) of one attention item

// Segments that the last of `n_tokens` tokens from `position` on sees.
static inline int attention_segments(int position, int n_tokens) {
  return (position + n_tokens + kSegmentKeys - 1) / kSegmentKeys;
}

// The first key that a token at `position` sees.
static inline int first_key(int position, int window) {
  return window && position >= window ? position - window + 1 : 0;
}

// Floats of one segment's result: o [rows][head_dim], m [rows], l [rows], up to a whole cache line.
static inline size_t attention_part_floats(int rows, int head_dim) {
  return ((size_t)rows * (head_dim + 2) + kLanes - 1) / kLanes * kLanes;
}

// Queries, scores, merged and partial result.
static inline size_t attention_scratch_bytes(int head_dim) {
  return (size_t)kMaxTileRows * (head_dim * 8 + kSegmentKeys * 8) + attention_part_floats(kMaxTileRows, head_dim) * 4;
}

struct KernelTable {
  const char* name;
  // The sums of two blocks are rounded to bf16 before they meet the scales of activations, and the middles of codes are
  // bf16: ActRows hold bits of bf16.
  bool bf16_sums;

  // out[r][c] (leading dimension ldo, starting at the first tile's first column) = product for activation rows
  // [row_begin, row_begin + n_rows), row_begin a multiple of 8, and tiles [tile_begin, tile_begin + n_tiles). `aside`
  // may be null; its blocks are taken off as they are asked for.
  void (*matmul)(const MatrixView* w, const uint8_t* act, int row_begin, int n_rows, int tile_begin, int n_tiles,
                 float* out, int ldo, Aside* aside);

  // RMSNorm of up to 8 rows into one activation group. rows: gather indices, or null for 0..n_rows-1. weight null: no
  // norm, the rows as they are.
  void (*norm_group)(const float* x, int ldx, const int32_t* rows, int n_rows, int k, const float* weight, float eps,
                     ActKind kind, uint8_t* group);

  // Rows of plain floats into one activation group.
  void (*pack_group)(const float* x, int ldx, int n_rows, int k, ActKind kind, uint8_t* group);

  // y[n_rows][ldy] = product of one head's columns for tokens [row_begin, row_begin + n_rows).
  void (*qkv_rows)(const QkvArgs* args, int head, int row_begin, int n_rows, float* y, int ldy);

  // Rows y[n_rows][ldy] of n values, in place: bias added, then RMSNorm; either may be null. n a multiple of 32.
  void (*norm_rows)(float* y, int ldy, int n_rows, int n, const float* bias, const float* weight, float eps);

  // Tokens [token, token + n_tokens) at positions from `position`, KV head `head`, segments [segment, segment_end).
  // parts null: these are all segments with keys that the first token sees; the result is written. Otherwise each
  // segment's result is left in parts[segment], for attention_merge.
  void (*attention)(const AttentionArgs* args, int token, int n_tokens, int position, const int32_t* table, int head,
                    int segment, int segment_end, float* parts, uint8_t* scratch);
  void (*attention_merge)(const AttentionArgs* args, int token, int n_tokens, int position, int head, float* parts,
                          uint8_t* scratch);

  // y holds gate and up tiles alternating; writes act(gate) * up as columns [column, column + n_out) of the groups.
  void (*gate_up_rows)(const float* y, int ldy, int n_rows, int n_out, Activation act, ActKind kind, uint8_t* out,
                       int k, int row_begin, int column);

  // x[r][c] += y[r][c] + bias[c]; bias may be null.
  void (*add_rows)(const float* y, int ldy, int n_rows, int n_columns, const float* bias, float* x, int ldx);

  // x[i] += scale * y[i]; n a multiple of 16.
  void (*add_scaled)(const float* y, float scale, int n, float* x);

  // y[i] = cap * tanh(y[i] / cap); n a multiple of 16.
  void (*softcap)(float* y, int n, float cap);

  // The n_used largest of softmax(scores[n]), largest first, ties to the lowest index; `renormalize` makes the chosen
  // weights sum to one. A NaN among the scores makes every weight NaN. `scores` is overwritten, n padded to 16.
  void (*choose_experts)(float* scores, int n, int n_used, int renormalize, int32_t* ids, float* weights);

  // Continues a running argmax of one row over columns [column, column + n), which are behind those before: ties keep
  // the lowest id. Returns 1 when a value is NaN.
  int (*argmax)(const float* y, int n, int column, float* best, int32_t* best_id);

  // Multiply-accumulates (register-only) in a loop of `rounds`; return MACs done. For measuring the limits.
  double (*int8_peak)(int rounds, int32_t* sink);
  double (*bf16_peak)(int rounds, float* sink);
  // Streams over the bytes; the result only keeps the loads alive. For measuring the limit.
  uint64_t (*read_memory)(const uint8_t* data, size_t bytes);
};

const KernelTable* kernels_generic();
const KernelTable* kernels_avx2();
const KernelTable* kernels_avxvnni();  // AVX2 with the dot products of AVX-VNNI
const KernelTable* kernels_avx512();
const KernelTable* kernels_neon();  // AArch64 with dot products

}  // namespace sixfold
