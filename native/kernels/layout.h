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
// Activation rows that are stored side by side. Kernels exist for 1..kRowGroup rows of a group.
constexpr int kRowGroup = 8;
// Tokens of a KV block.
constexpr int kBlockTokens = 16;
// Keys of an attention segment: partial results are formed per segment at absolute positions and merged in order.
constexpr int kSegmentKeys = 256;

// Numbers of the GGUF format.
enum GgmlType : int32_t { kGgmlF32 = 0, kGgmlF16 = 1, kGgmlQ4_1 = 3, kGgmlQ8_0 = 8 };

enum WeightKind : int32_t { kWeightQ4_1 = 0, kWeightQ8_0 = 1, kWeightF16 = 2, kWeightF32 = 3 };

// How a kernel reads its activations: int8 with a scale per 32 values, or float.
enum ActKind : int32_t { kActInt8 = 0, kActFloat = 1 };

// A packed weight matrix y = W a with n outputs (padded to 16) and k inputs. Tiles are ordered [n / 16][k / 32].
//
//   Q4_1 tile, 320 bytes            16 columns x 32 k
//     [  0, 256)  4 vectors of 64 B: vector g, lane c (4 bytes) = bytes 4g..4g+3 of column c's GGUF nibble array,
//                 so low nibbles are k = 4g..4g+3 and high nibbles k = 16+4g..16+4g+3
//     [256, 288)  16 fp16 scales d
//     [288, 320)  16 fp16 minimums m             w = d * code + m
//   Q8_0 tile, 512 bytes of codes, and 32 bytes of fp16 scales in a side stream of the same order
//     vector g, lane c (4 bytes) = codes of column c for k = 4g..4g+3, stored as q + 128 (unsigned)
//   F16 / F32 tile, 32 x 16 elements: [k][column]
struct MatrixView {
  WeightKind kind;
  int32_t n;       // outputs, padded to a multiple of 16
  int32_t n_true;  // outputs that mean something
  int32_t k;       // inputs, a multiple of 32
  const uint8_t* tiles;
  const uint8_t* scales;  // Q8_0 only
};

constexpr int kTileBytesQ4_1 = 320;
constexpr int kTileBytesQ8_0 = 512;
constexpr int kScaleBytesQ8_0 = 32;

static inline ActKind act_kind(WeightKind kind) {
  return kind == kWeightQ4_1 || kind == kWeightQ8_0 ? kActInt8 : kActFloat;
}

// Activations of 8 rows x 32 k as the integer kernels read them: weights are the unsigned register operand, and a
// row's four codes are broadcast from memory, so one pointer and small displacements serve all rows.
struct alignas(64) ActBlock {
  int8_t codes[kQuantBlock / 4][kRowGroup][4];  // [k / 4][row][k % 4]
  float scale[kRowGroup];                       // amax / 127
  float scaled_sum[kRowGroup];                  // scale * sum(codes): multiplies the minimum of Q4_1
  int32_t offset[kRowGroup];                    // -128 * sum(codes): undoes the + 128 of Q8_0
  float unused[kRowGroup];
};
static_assert(sizeof(ActBlock) == 384, "one activation block is six cache lines");

// Bytes of one group of 8 activation rows with k inputs. Float groups are [k][8].
static inline size_t act_group_bytes(ActKind kind, int k) {
  return kind == kActInt8 ? (size_t)k / kQuantBlock * sizeof(ActBlock) : (size_t)k * kRowGroup * sizeof(float);
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

// Bytes after the end of weight memory that may be prefetched (never read).
constexpr size_t kPrefetchSlack = 4096;

}  // namespace sixfold
