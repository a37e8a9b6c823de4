// What a thread does with one chunk of a phase of a program. In the functions that phases name, `arg` is the program
// and `o` the operation.
#pragma once

#include "program.h"

namespace sixfold {

// Rows of a product chunk: bounds its output scratch, and lets many rows be shared out finely.
constexpr int kChunkRows = 64;
// Rows per chunk of the embedding lookup.
constexpr int kEmbedRows = 16;
// Attention items per thread below which they are split.
constexpr int kItemsPerThread = 4;
// Tiles per thread from which a chunk of attention is a tile with all its heads: taking a chunk costs time, too.
constexpr int kTilesPerThread = 8;
// Tokens of a step from which products fetch keys and values beside their work: with fewer the memory has no time.
constexpr int kAsideRows = 16;
// What they fetch for one layer, at the most: more would not stay in the caches.
constexpr size_t kAsideBytes = size_t{12} << 20;
// How much more time is kept for it than it takes: a fetch of a few bytes more than a block ends early.
constexpr float kAsideMargin = 1.15f;

inline int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The part of a product that one chunk does.
struct ProductPart {
  int tile, n_tiles, row, n_rows;
};

ProductPart part_of(const PackedMatrix& w, int tiles_per_chunk, int chunk, int rows, int chunk_rows = kChunkRows);

// Rows of a chunk of q, k and v, of which each is a head: few heads alone would not split evenly.
int head_chunk_rows(int rows);

size_t aside_bytes(const PackedMatrix& w, int tiles, int rows);

// Chunks of a few microseconds of memory traffic, a multiple of `unit` tiles: of the sizes in question the one with
// which all threads end together best. `row_chunks` bounds how many there may be.
int tiles_per_chunk(const PackedMatrix& w, int unit, int row_chunks, int threads);

struct Chunks {
  // Phases, in the order in which programs have them.
  static void embed(void* arg, const void* o, int chunk, int thread);
  static void inputs(void* arg, const void* o, int chunk, int thread);
  static void qkv(void* arg, const void* o, int chunk, int thread);
  static void qkv_finish(void* arg, const void* o, int chunk, int thread);
  static void attention(void* arg, const void* o, int chunk, int thread);
  static void residual(void* arg, const void* o, int chunk, int thread);
  static void post_norm(void* arg, const void* o, int chunk, int thread);
  static void gate_up(void* arg, const void* o, int chunk, int thread);
  // Of experts.
  static void choose(void* arg, const void* o, int chunk, int thread);
  static void gather(void* arg, const void* o, int chunk, int thread);
  static void expert_gate_up(void* arg, const void* o, int chunk, int thread);
  static void expert_down(void* arg, const void* o, int chunk, int thread);
  static void add_experts(void* arg, const void* o, int chunk, int thread);

  static void hidden(void* arg, const void* o, int chunk, int thread);
  static void head(void* arg, const void* o, int chunk, int thread);

 private:
  using Part = ProductPart;

  static Program& program(void* arg) { return *static_cast<Program*>(arg); }
  static const Program::Op& operation(const void* o) { return *static_cast<const Program::Op*>(o); }
  static Part part_of(const Program::Op& op, int chunk, int rows) {
    return sixfold::part_of(*op.w, op.tiles_per_chunk, chunk, rows);
  }
  static void fetch_destination(const Program& self, const QkvArgs& a, const Part& p);
  static Aside aside_of(Program& self, const Program::Op& op, const Part& p, int thread);
  static float* product(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act);
  static void product_into(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act,
                           float* rows);
  static void make_group(Program& self, const Program::Op& op, int begin, int n, uint8_t* group);
  static void attend(Program& self, const Program::Op& op, int item, int split, int thread);
  static const uint8_t* input_of(Program& self, const Program::Op& op, int rows, int thread);
};

}  // namespace sixfold
