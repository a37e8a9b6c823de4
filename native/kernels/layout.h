// Data layouts that packing, kernels and cache agree on. Plain constants and structs: included by files of every
// instruction set, so nothing here may instantiate a standard template.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sixfold {

// Columns of a weight tile, keys of a KV block, floats of a 64-byte vector.
constexpr int kLanes = 16;
// Values that share one quantization scale, in weights and activations alike.
constexpr int kQuantBlock = 32;
// Products handle two such blocks side by side, in neighbouring lanes.
constexpr int kBlockPair = 2 * kQuantBlock;
// Activation rows that are stored side by side. Kernels exist for 1..kRowGroup rows of a group.
constexpr int kRowGroup = 8;
// Tokens of a KV block.
constexpr int kBlockTokens = 16;
// Keys of an attention segment: partial results are formed per segment at absolute positions and merged in order.
constexpr int kSegmentKeys = 256;

// Values of a block of the K types, in the file and packed.
constexpr int kSuperBlock = 256;

// Numbers of the GGUF format.
enum GgmlType : int32_t {
  kGgmlF32 = 0,
  kGgmlF16 = 1,
  kGgmlQ4_0 = 2,
  kGgmlQ4_1 = 3,
  kGgmlQ5_0 = 6,
  kGgmlQ5_1 = 7,
  kGgmlQ8_0 = 8,
  kGgmlQ4_K = 12,
  kGgmlQ5_K = 13,
  kGgmlQ6_K = 14,
  kGgmlBF16 = 30,
};

enum WeightKind : int32_t {
  kWeightQ4_0,
  kWeightQ4_1,
  kWeightQ5_0,
  kWeightQ5_1,
  kWeightQ8_0,
  kWeightQ4_K,
  kWeightQ5_K,
  kWeightQ6_K,
  kWeightBF16,
  kWeightF32,
  kWeightKinds,
};

// How a kernel reads its activations: int8 with a scale per 32 values, bf16, or float.
enum ActKind : int32_t { kActInt8, kActBF16, kActFloat };

// A packed weight matrix y = W a with n outputs (padded to 16) and k inputs. Tiles are ordered [n / 16][k / tile_k].
//
//   Codes of 16 columns x two blocks of 32 k. A vector of 64 bytes has 16 lanes of 4 codes: lane 2c + b is column c of
//   half the columns, block b. Operand g of 8 holds k = 4g..4g+3 of both blocks; its vectors for columns 0..7 and 8..15
//   follow each other.
//     4 bits  8 vectors [g][half]: operand g in the low nibbles, operand 4 + g in the high ones. GGUF keeps k and
//             k + 16 in one byte, too: packing its 32-value types moves whole bytes
//     5 bits  the same, then [half]: bit g of each byte is the fifth bit of operand g
//     6 bits  the same as 4 bits, then [g / 4][half]: bits 2 (g % 4).. of each byte are operand g's high two
//     8 bits  16 vectors [g][half], stored as q + 128 (unsigned)
//   Numbers per column and block are [half][16 lanes], too.
//   Tiles of 64 k                                            w =
//     Q4_1, Q5_1        codes, fp16 d, bf16 middles m        d * (code - 8 or 16) + m
//     Q4_0, Q5_0, Q8_0  codes, fp16 d                        d * (code - 8, 16 or 128)
//   Where k is an odd number of blocks, the last one is followed by a block of zeros.
//   Tiles of 256 k: 16 fp16 d, 16 fp16 e, 256 bytes of scales, then codes of 4 x 64 k
//     Q4_K, Q5_K  scales: per 64 k 32 bytes s, 32 bytes t    d * s * code - e * t
//     Q6_K        scales: per 64 k two times 32 signed bytes s, of k % 32 < 16 and of the others; no e
//                                                            d * s * (code - 32)
//   BF16 tile, 32 x 16 elements: [k / 2][column][2]; F32 tile: [k][column]
struct MatrixView {
  WeightKind kind;
  int32_t n;       // outputs, padded to a multiple of 16
  int32_t n_true;  // outputs that mean something
  int32_t k;       // inputs, a multiple of 32
  const uint8_t* tiles;
};

constexpr int kCodeBytes4 = 512, kCodeBytes5 = 640, kCodeBytes6 = 768, kCodeBytes8 = 1024;  // of 16 columns x 64 k
constexpr int kTileBytes16 = 1024, kTileBytes32 = 2048;                                     // BF16, F32: 32 k
constexpr int kSuperHeader = 64 + 256;
// Bytes of one number of 16 bits per column and block, of both blocks.
constexpr int kPairNumbers = 64;

// Bytes of codes of 16 columns x 64 k, of quantized types.
static inline int code_bytes(WeightKind kind) {
  switch (kind) {
    case kWeightQ4_0:
    case kWeightQ4_1:
    case kWeightQ4_K:
      return kCodeBytes4;
    case kWeightQ5_0:
    case kWeightQ5_1:
    case kWeightQ5_K:
      return kCodeBytes5;
    case kWeightQ6_K:
      return kCodeBytes6;
    default:
      return kCodeBytes8;
  }
}

static inline bool is_super(WeightKind kind) {
  return kind == kWeightQ4_K || kind == kWeightQ5_K || kind == kWeightQ6_K;
}

static inline bool has_minimum(WeightKind kind) { return kind == kWeightQ4_1 || kind == kWeightQ5_1; }

// Inputs that a tile spans.
static inline int tile_k(WeightKind kind) {
  return is_super(kind) ? kSuperBlock : kind >= kWeightBF16 ? kQuantBlock : kBlockPair;
}

// Tiles one behind the other that k inputs need.
static inline int tiles_of(WeightKind kind, int k) { return (k + tile_k(kind) - 1) / tile_k(kind); }

static inline int tile_bytes(WeightKind kind) {
  if (kind >= kWeightBF16) return kind == kWeightBF16 ? kTileBytes16 : kTileBytes32;
  if (is_super(kind)) return kSuperHeader + kSuperBlock / kBlockPair * code_bytes(kind);
  return code_bytes(kind) + (has_minimum(kind) ? 2 : 1) * kPairNumbers;
}

static inline ActKind act_kind(WeightKind kind) {
  return kind == kWeightF32 ? kActFloat : kind == kWeightBF16 ? kActBF16 : kActInt8;
}

// Activations of kRows rows x two blocks of 32 k as the integer kernels read them: weights are the unsigned register
// operand, and a row's four codes of both blocks are broadcast from memory, so one pointer and small displacements
// serve all rows. Number: uint16_t, bits of bf16, in builds with products of bf16 pairs (KernelTable::bf16_sums), else
// float. A last block without a neighbour has zeros beside it.
template <int kRows, class Number>
struct ActRows {
  int8_t codes[kQuantBlock / 4][kRows][2][4];  // [k / 4][row][block][k % 4]
  Number scale[kRows][2];                      // amax / 127, rounded to bf16 in every build
  Number scaled_sum[kRows][2];                 // scale * sum(codes): multiplies a block's middle
  int32_t offset[kRows][2];                    // -128 * sum(codes): undoes the + 128 of Q8_0
  int32_t small_offset[kRows][2];              // -8 * sum(codes): the same for codes of 4 bits
  int32_t first_offset[kRows][2];              // -32 * sum(first 16 codes): the same for Q6_K
};

// Whether the group that begins with row `row` of n_rows has this row alone. Producers and kernels ask the same.
static inline bool is_single(int row, int n_rows) { return row % kRowGroup == 0 && n_rows - row == 1; }

// Bytes of one group of 8 activation rows with k inputs. Groups of bf16 are [k / 2][rows][2], of float [k][rows].
static inline size_t act_group_bytes(ActKind kind, int k) {
  if (kind == kActInt8) return (size_t)tiles_of(kWeightQ8_0, k) * sizeof(ActRows<kRowGroup, float>);
  return (size_t)k * kRowGroup * (kind == kActBF16 ? 2 : 4);
}

// KV memory is [layer][block][kv head][K, then V], 16 tokens each. d = head dimension.
//   bf16     K [d / 2][16 tokens][2]   one vector = 2 dimensions of 16 keys: scores need no horizontal sum
//            V [8 token pairs][d][2]   one vector = 16 dimensions of 2 tokens
//   float32  K [d][16 tokens]          V [16 tokens][d]
struct KvView {
  uint8_t* base;
  int32_t n_layers, n_blocks, n_kv_heads, head_dim;
  int32_t is_float;  // 1: float32, 0: bf16
};

static inline size_t kv_half_bytes(const KvView& kv) {
  return (size_t)kBlockTokens * kv.head_dim * (kv.is_float ? 4 : 2);
}

static inline uint8_t* kv_block(const KvView& kv, int layer, int block, int head) {
  return kv.base + (((size_t)layer * kv.n_blocks + block) * kv.n_kv_heads + head) * 2 * kv_half_bytes(kv);
}

// Of all heads of one layer.
static inline size_t kv_block_bytes(const KvView& kv) { return kv.n_kv_heads * 2 * kv_half_bytes(kv); }

// Bytes after the end of weight memory that may be prefetched (never read).
constexpr size_t kPrefetchSlack = 12288;

}  // namespace sixfold
