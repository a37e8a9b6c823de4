// A recorded forward pass: a flat list of fused operations, built once, replayed for every step. The number of tokens
// is a field of the step, not a shape of the program.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "kv_cache.h"
#include "pack.h"
#include "thread_pool.h"

namespace sixfold {

// What the time of a step is divided by. The names are public.
constexpr const char* kKindNames[] = {"embed", "qkv", "attention", "output", "gate_up", "down", "experts", "head"};
constexpr int kKinds = 8;

// Where the times of steps are added up: two numbers per kind of operation, of which `stride` others may follow.
struct KindTimes {
  uint64_t* first = nullptr;  // [kKinds][stride]: steps, nanoseconds; null: nobody wants them
  int64_t stride = 0;
};

// The inputs and outputs of one step. Arrays belong to the caller.
struct Step {
  int n_tokens;
  const int32_t* token_ids;     // [n_tokens]
  const int32_t* positions;     // [n_tokens]
  const int32_t* row_of_token;  // [n_tokens] -> index into slot_of_row; a row's tokens are neighbours
  int n_rows;
  const int32_t* slot_of_row;  // [n_rows] -> row of block_tables
  int n_slots, max_blocks;
  const int32_t* block_tables;  // [n_slots][max_blocks] with a stride of table_stride
  int64_t table_stride;
  int n_logits;
  const int32_t* logit_tokens;  // [n_logits] token indices whose logits are wanted
  const uint8_t* greedy;        // [n_logits] 1: only the argmax is wanted, 0: the logits
  int32_t* out_ids;             // [n_logits] argmax of every row; ties to the lowest id
  uint8_t* out_nan;             // [n_logits] 1: the row holds NaN or +inf, or -inf alone
  float* logits;                // [rows with greedy = 0][vocabulary]
  int n_logit_rows;             // rows of `logits`
  int n_hidden;
  const int32_t* hidden_tokens;  // [n_hidden] token indices whose hidden states are wanted
  float* hidden;                 // [n_hidden][hidden size]: the residual stream behind the last layer, normed
};

// An optional vector of weights: data null when there is none.
struct Vector {
  const float* data = nullptr;
  int64_t size = 0;
};

// Cosines and sines of the rotary positions, in the order that the kernels read.
struct RopeTable {
  RopeStyle style;
  int dims;  // rotated dimensions of a head
  int64_t n_positions;
  std::unique_ptr<float[]> rows;  // as QkvArgs::rope
};

// cos, sin: [n_positions][dims / 2]. Throws std::invalid_argument.
std::shared_ptr<RopeTable> make_rope_table(const float* cos, const float* sin, int64_t n_positions, int dims,
                                           RopeStyle style);

// A layer's q, k and v. Vectors: `norm` of the input, `bias` of the product; `q_norm` and `k_norm` of each head when
// they have its size, of the whole projection otherwise.
struct QkvOp {
  int layer;
  Vector norm;
  std::shared_ptr<PackedMatrix> w;
  int n_heads, n_kv_heads, head_dim;
  std::shared_ptr<RopeTable> rope;
  float eps;
  Vector bias, q_norm, k_norm;
};

struct Expert {
  std::shared_ptr<PackedMatrix> gate_up, down;
};

// A feed-forward layer of which each token uses a few parts.
struct ExpertsOp {
  Vector norm;
  std::shared_ptr<PackedMatrix> router;
  std::vector<Expert> experts;
  int n_used;
  bool renormalize;
  Activation act;
  float eps;
};

class Program {
 public:
  Program(std::shared_ptr<ThreadPool> pool, const KernelTable* kernels, std::shared_ptr<KVCache> kv, int max_tokens,
          int hidden);

  // Recording. Each throws std::invalid_argument when shapes do not fit; `finalize` ends it.
  void embed(std::shared_ptr<Embedding> table, float scale);
  void norm_qkv_rope_write(const QkvOp& qkv);
  void attention(int layer, float scale, int window, float softcap);
  // Of these two: `post_norm` is applied to the product before it is added.
  void proj_residual(std::shared_ptr<PackedMatrix> w, Vector bias, Vector post_norm, float eps);
  void down_residual(std::shared_ptr<PackedMatrix> w, Vector post_norm, float eps);
  void norm_gateup_act(Vector norm, std::shared_ptr<PackedMatrix> w, Activation act, float eps);
  void norm_experts_residual(const ExpertsOp& experts);
  void final_norm_head(Vector norm, std::shared_ptr<PackedMatrix> w, float eps, float softcap);
  void finalize();

  // Throws std::invalid_argument before anything is computed when an index is out of range.
  void run(const Step& step);

  // From now on each step adds what it spends in each kind of operation. The memory must outlive the program.
  void count_times(KindTimes times) { times_ = times; }

  int max_tokens() const { return max_tokens_; }
  int hidden() const { return hidden_; }
  int vocab() const { return vocab_; }
  const float* residual() const { return residual_; }  // [max_tokens][hidden], of the last run: for tests
  size_t scratch_bytes() const { return arena_.bytes(); }
  int blocks_used() const { return blocks_used_; }  // one more than the highest block of the cache written so far

 private:
  friend struct Chunks;

  enum class Kind { kEmbed, kQkv, kAttention, kProj, kGateUp, kDown, kExperts, kHead };  // as kKindNames

  struct Op {
    Kind kind;
    int index = 0;  // place in the program
    int layer = 0;
    std::shared_ptr<PackedMatrix> w;
    std::shared_ptr<Embedding> table;
    std::shared_ptr<float> norm, bias, post_norm;
    float eps = 0;
    float scale = 1;    // of the embedding
    float softcap = 0;  // of the logits
    Activation act = kSilu;
    QkvArgs qkv{};
    std::shared_ptr<float> q_norm, k_norm;
    bool whole_norm = false;  // q_norm and k_norm are of the whole projection
    std::shared_ptr<RopeTable> rope;
    AttentionArgs attention{};
    const Op* next_attention = nullptr;  // of a product: whose keys and values it fetches beside its work
    size_t aside_bytes = 0;              // of attention: what these products have time for, per group of rows
    std::vector<Expert> experts;         // `w` is the router; in_kind and the chunks are those of gate and up
    int n_used = 0;
    bool renormalize = false;
    int down_tiles_per_chunk = 1, n_down_chunks = 0;
    ActKind gated_kind = kActInt8;  // between gate/up and down of the experts
    uint8_t* in = nullptr;          // activation groups that the product reads, where another operation made them
    ActKind in_kind = kActInt8;
    uint8_t* out = nullptr;
    ActKind out_kind = kActInt8;
    int tiles_per_chunk = 1;
    int n_tile_chunks = 0;
  };

  // Consecutive tokens of one sequence that attention handles together.
  struct Tile {
    int token, n_tokens, position, n_segments;
    const int32_t* table;
  };

  // Up to kChunkRows tokens that use the same expert. A pair is one token with one of its experts.
  struct Unit {
    int expert, pair, n_pairs;
    int group;  // of its first activation group
  };

  struct alignas(64) Worker {
    uint8_t* input = nullptr;  // one activation group: norm or attention output, for steps of one group
    float* y = nullptr;        // output of a product chunk
    uint8_t* attention = nullptr;
    float* best = nullptr;  // [max_tokens] running argmax of the logit rows
    int32_t* best_id = nullptr;
    uint8_t* nan = nullptr;
    // What its items of attention read: in layers without a window, and in those with one. How far products have asked
    // for it in the layer that `aside_tag` names, and how much of the time for that is over, in bytes.
    std::vector<int32_t> read_blocks[2];
    size_t blocks_asked = 0, aside_spent = 0;
    uint64_t input_tag = 0, best_tag = 0, aside_tag = 0;
  };

  Op& add(Kind kind);
  void check_input(const PackedMatrix& w, int k) const;
  void split(Op& op, int unit);
  void add_residual(Kind kind, std::shared_ptr<PackedMatrix> w, Vector bias, Vector post_norm, float eps);
  void allocate_experts();
  void sort_pairs(const Op& op);
  int splits_of(const Op& op) const;
  int units_at_most(const Op& op, int tokens) const;
  int groups_at_most(const Op& op, int tokens) const;
  void check_step(const Step& step) const;
  void prepare(const Step& step);
  void cut_tiles();
  void list_read_blocks();
  void merge_best();
  void add_times(uint64_t started_ns);

  std::shared_ptr<ThreadPool> pool_;
  const KernelTable* kernels_;
  std::shared_ptr<KVCache> kv_;
  int max_tokens_, hidden_, vocab_ = 0, n_positions_ = 0, group_ = 1;
  int window_ = 0;  // the largest of attention, of those that have one
  int64_t embed_rows_ = 0;
  bool finalized_ = false;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<Worker> workers_;
  Arena arena_;

  float* residual_ = nullptr;
  uint8_t* input_ = nullptr;       // activation groups: norm or attention output, for steps of more groups
  uint8_t* hidden_act_ = nullptr;  // activation groups: gate/up output
  float* attended_ = nullptr;      // [max_tokens][heads * head_dim]
  float* parts_ = nullptr;         // results of attention segments, when items are split
  size_t parts_per_item_ = 0;      // floats
  std::unique_ptr<std::atomic<int>[]> parts_done_;  // per item; back at 0 when the item is merged
  float* wide_ = nullptr;                           // [max_tokens][q, k and v], where a norm needs all of it
  float* branch_ = nullptr;                         // [max_tokens][hidden], where a norm stands before the residual
  // Experts. Pairs are numbered by expert, then token.
  int32_t* chosen_ = nullptr;      // [max_tokens][n_used] experts
  float* shares_ = nullptr;        // [max_tokens][n_used]
  int32_t* pair_of_ = nullptr;     // [max_tokens][n_used] -> pair
  int32_t* pair_token_ = nullptr;  // pair -> token
  uint8_t* expert_input_ = nullptr;
  uint8_t* expert_gated_ = nullptr;
  float* expert_out_ = nullptr;  // [pairs][hidden]
  std::vector<Unit> units_;
  std::vector<int> group_unit_, expert_count_;
  std::atomic<int> routed_{0};  // chunks of the router that are done
  void* q_ = nullptr;
  int32_t* write_blocks_ = nullptr;
  int32_t* logit_row_ = nullptr;  // logit index -> row of `logits`, or -1

  std::mutex running_;  // one step at a time
  // Of the step that runs.
  Step step_{};
  uint64_t step_number_ = 0;
  int blocks_used_ = 0;
  std::vector<Tile> tiles_;
  int splits_ = 1;         // chunks of an attention item
  int items_at_once_ = 1;  // attention items of a chunk, if they are not split
  std::vector<Phase> phases_;
  std::vector<uint64_t> ends_;  // of the phases with chunks
  KindTimes times_;
};

}  // namespace sixfold
