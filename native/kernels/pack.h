// From GGUF tensor bytes to packed matrices and embedding rows.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "layout.h"
#include "memory.h"
#include "thread_pool.h"

namespace sixfold {

// Bytes of one row of k values, or 0 for a type that is not known here.
size_t row_bytes(int ggml_type, int64_t k);

// One tensor of a matrix: n_rows outputs with k inputs each, raw as in the file.
struct PackSource {
  int ggml_type;
  const uint8_t* data;
  size_t bytes;
  int64_t n_rows, k;
  std::string name = {};  // for messages
};

// Throws std::invalid_argument if a scale, a minimum or a value is NaN or infinite. `pack_matrix` does so on its way.
void check_finite(const PackSource& source);

struct PackedMatrix {
  std::vector<MatrixView> parts;  // one below the other: neighbours differ in type
  ActKind act;                    // what all parts read
  int32_t n, n_true, k;           // of the whole; n padded to a multiple of 16
  std::shared_ptr<Arena> arena;   // keeps the bytes alive
  size_t bytes;
};

// As the kernel of the same name, over all parts.
void matmul(const KernelTable& kernels, const PackedMatrix& w, const uint8_t* act, int row_begin, int n_rows,
            int tile_begin, int n_tiles, float* out, int ldo, Aside* aside = nullptr);

// Sources one below the other, or alternating by tiles of 16 rows (`interleave`). Weights of 16 bits become bf16. All
// are stored as float32 with `float_activations`, or when they would read different activations, or when interleaved
// types differ. Throws std::invalid_argument.
std::shared_ptr<PackedMatrix> pack_matrix(const std::vector<PackSource>& sources, bool interleave,
                                          bool float_activations, ThreadPool& pool, std::shared_ptr<Arena> arena);

// The matrix back as float32 [n_true][k]: for tests and for looking inside.
void unpack_matrix(const PackedMatrix& matrix, float* out);

// Rows of an embedding table, read in place.
struct Embedding {
  int ggml_type;
  const uint8_t* data;
  int64_t n_rows, k;
  void row(int64_t index, float* out) const;
};

// `finite`: that is known already. Throws std::invalid_argument.
Embedding make_embedding(const PackSource& source, bool finite = false);

// [begin, end) of one row of a tensor as float32; both multiples of 32.
void dequantize(int ggml_type, const uint8_t* row, int64_t begin, int64_t end, float* out);

float half_to_float(uint16_t half);
float bf16_to_float(uint16_t x);

}  // namespace sixfold
