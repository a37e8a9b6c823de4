// What the kernels compute, one value at a time in double precision. Shares no code with native/kernels but the numbers
// of the types: a mistake would have to be made twice to go unseen. What kernels round on purpose is rounded here too:
// activations to int8 per 32 values or to bfloat16, what Q4_1 and Q5_1 add to a block, in some builds sums of blocks
// and what meets them, q, k, v and the weights of values to bfloat16, sampling weights to whole numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout.h"
#include "sample.h"

namespace truth {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double half(uint16_t bits);
float bfloat16(float x);

// A tensor as a file holds it, and its values.
struct Tensor {
  int ggml_type, n, k;
  std::vector<uint8_t> bytes;
  Row values;  // [n][k]
};

struct Type {
  int ggml_type, block_bytes, block_values;
  std::vector<int> scales;  // offsets of float16 numbers in a block
  int exponent;             // of these numbers, for values near 1 / 16
  const char* name;
};

extern const std::vector<Type> kTypes;
const Type& type_named(const std::string& name);

// A value as d * code + m, its code relative to the middle one of the type.
struct Number {
  double d;
  int code;
  double m;
};
// Value i of a block of integers. Source of the layouts: the GGUF specification, ggml's block types.
Number number(const Type& type, const uint8_t* block, int i);
double value(const Type& type, const uint8_t* block, int i);

// Any bytes as codes, scales that leave values near 1 / 16.
Tensor random_tensor(const Type& type, int n, int k);
Tensor tensor_of(const Type& type, int n, int k, std::vector<uint8_t> bytes);

// Of 32 values each: a scale, amax / 127 rounded to bfloat16, or 0 where that is no normal number; and codes, rounded
// from x * (1 / scale) in float32, ties to even.
struct Codes {
  std::vector<int> codes;
  Row scales;
};
Codes int8_codes(const Row& x);
// The values as weights that meet activations of a kind.
Row seen_values(const Tensor& w, sixfold::ActKind seen);
// Weights meet activations of a kind. `bf16_sums`: of int8 with KernelTable::bf16_sums.
Row product(const Tensor& w, const Row& x, sixfold::ActKind seen, bool bf16_sums);

Row rms_norm(const Row& x, const float* weight, double eps);
double gated(double gate, double up, bool gelu);
double capped(double x, double cap);

// The first `dims` of y rotated by (cos, sin) [dims / 2]; pairs (2i, 2i + 1), or (i, i + dims / 2).
void rotate(double* y, const float* cos, const float* sin, int dims, bool interleaved);

// q [d] of the token at the last of the keys. With `bf16` the weights are rounded, relative to the largest of 256 keys.
Row attend(const Row& q, const Rows& keys, const Rows& values, double scale, int window, double cap, bool bf16);

// Softmax of the scores, the `used` largest with ties to the lowest index: (ids, shares).
void experts(const Row& scores, int used, bool renormalize, std::vector<int>* ids, Row* shares);

// src/sixfold/sampler/reference.py. -1 for an unusable row.
int draw(const std::vector<float>& row, const sixfold::RowParams& params, int64_t position);

}  // namespace truth
