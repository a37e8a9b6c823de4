#include "program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace sixfold {
namespace {

// Rows of a product chunk: bounds its output scratch, and lets many rows be shared out finely.
constexpr int kChunkRows = 64;
// Weight bytes of a product chunk that is worth handing out: a few microseconds of memory traffic.
constexpr int kChunkBytes = 24 << 10;
// Rows per chunk of the embedding lookup.
constexpr int kEmbedRows = 16;
// Attention items per thread below which they are split.
constexpr int kItemsPerThread = 4;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

int ceil_div(int a, int b) { return (a + b - 1) / b; }

size_t weight_bytes_per_tile(const MatrixView& v) {
  const size_t per_block[] = {kTileBytesQ4_1, kTileBytesQ8_0 + kScaleBytesQ8_0, 1024, 2048};
  return per_block[v.kind] * (v.k / kQuantBlock);
}

std::shared_ptr<float> copy_floats(const float* from, size_t n) {
  std::shared_ptr<float> to(new float[n], [](float* p) { delete[] p; });
  std::memcpy(to.get(), from, n * sizeof(float));
  return to;
}

}  // namespace

// The chunk functions of the phases. `arg` is the program, `op` the operation.
struct Chunks {
  static Program& program(void* arg) { return *static_cast<Program*>(arg); }
  static const Program::Op& operation(const void* op) { return *static_cast<const Program::Op*>(op); }

  // The part of a product that one chunk does.
  struct Part {
    int tile, n_tiles, row, n_rows;
  };

  static Part part_of(const Program::Op& op, int chunk, int rows) {
    const int row_chunks = ceil_div(rows, kChunkRows);
    Part p;
    p.tile = chunk / row_chunks * op.tiles_per_chunk;
    p.n_tiles = std::min(op.tiles_per_chunk, op.w->view.n / kLanes - p.tile);
    p.row = chunk % row_chunks * kChunkRows;
    p.n_rows = std::min(kChunkRows, rows - p.row);
    return p;
  }

  // The product into the thread's scratch; leading dimension p.n_tiles * 16.
  static const float* product(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act) {
    float* y = self.workers_[thread].y;
    self.kernels_->matmul(&op.w->view, act, p.row, p.n_rows, p.tile, p.n_tiles, y, p.n_tiles * kLanes);
    return y;
  }

  // Makes one activation group, rows [begin, begin + n): the operation's norm, or attention's output as it is.
  static void make_group(Program& self, const Program::Op& op, int begin, int n, uint8_t* group) {
    if (op.kind == Program::Kind::kProj) {
      const int k = op.w->view.k;
      self.kernels_->pack_group(self.attended_ + static_cast<size_t>(begin) * k, k, n, k, op.in_kind, group);
    } else {
      const bool gather = op.kind == Program::Kind::kHead;
      const float* x = self.residual_ + (gather ? 0 : static_cast<size_t>(begin) * self.hidden_);
      self.kernels_->norm_group(x, self.hidden_, gather ? self.step_.logit_tokens + begin : nullptr, n, self.hidden_,
                                op.norm.get(), op.eps, op.in_kind, group);
    }
  }

  // A phase of its own where there are many rows.
  static void inputs(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int rows = op.kind == Program::Kind::kHead ? self.step_.n_logits : self.step_.n_tokens;
    make_group(self, op, chunk * kRowGroup, std::min(kRowGroup, rows - chunk * kRowGroup),
               self.input_ + chunk * act_group_bytes(op.in_kind, op.w->view.k));
  }

  // Few rows: each thread makes them for itself, which is cheaper than waiting for another to do it.
  static const uint8_t* input_of(Program& self, const Program::Op& op, int rows, int thread) {
    if (rows > kRowGroup) return self.input_;
    Program::Worker& worker = self.workers_[thread];
    const uint64_t tag = self.step_number_ * self.ops_.size() + op.index;
    if (worker.input_tag != tag) {
      make_group(self, op, 0, rows, worker.input);
      worker.input_tag = tag;
    }
    return worker.input;
  }

  static void embed(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int end = std::min((chunk + 1) * kEmbedRows, self.step_.n_tokens);
    for (int t = chunk * kEmbedRows; t < end; t++)
      op.table->row(self.step_.token_ids[t], self.residual_ + static_cast<size_t>(t) * self.hidden_);
  }

  static void qkv(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const uint8_t* act = input_of(self, op, self.step_.n_tokens, thread);
    product(self, op, p, thread, act);
    QkvArgs args = op.qkv;
    args.positions = self.step_.positions;
    self.kernels_->qkv_rows(&args, p.tile * kLanes / args.head_dim, p.row, p.n_rows, self.workers_[thread].y,
                            p.n_tiles * kLanes);
  }

  static void attention(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int heads = op.attention.n_kv_heads, item = chunk / self.splits_, split = chunk % self.splits_;
    const Program::Tile& tile = self.tiles_[item / heads];
    uint8_t* scratch = self.workers_[thread].attention;
    float* parts = self.splits_ > 1 ? self.parts_ + item * self.parts_per_item_ : nullptr;
    self.kernels_->attention(&op.attention, tile.token, tile.n_tokens, tile.position, tile.table, item % heads,
                             split * tile.n_segments / self.splits_, (split + 1) * tile.n_segments / self.splits_,
                             parts, scratch);
    if (!parts || ++self.parts_done_[item] < self.splits_) return;
    // The last to finish a part merges them all: no further barrier is needed.
    self.parts_done_[item] = 0;
    self.kernels_->attention_merge(&op.attention, tile.token, tile.n_tokens, tile.position, item % heads, parts,
                                   scratch);
  }

  static void residual(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const float* y = product(self, op, p, thread, op.in ? op.in : input_of(self, op, self.step_.n_tokens, thread));
    self.kernels_->add_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes,
                            self.residual_ + static_cast<size_t>(p.row) * self.hidden_ + p.tile * kLanes, self.hidden_);
  }

  static void gate_up(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const float* y = product(self, op, p, thread, input_of(self, op, self.step_.n_tokens, thread));
    self.kernels_->gate_up_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes / 2, op.act, op.out_kind, op.out,
                                op.w->view.n / 2, p.row, p.tile * kLanes / 2);
  }

  static void head(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Step& step = self.step_;
    Program::Worker& worker = self.workers_[thread];
    if (worker.best_tag != self.step_number_) {
      std::fill(worker.best, worker.best + step.n_logits, -std::numeric_limits<float>::infinity());
      std::fill(worker.best_id, worker.best_id + step.n_logits, -1);
      std::memset(worker.nan, 0, step.n_logits);
      worker.best_tag = self.step_number_;
    }
    const Part p = part_of(op, chunk, step.n_logits);
    const float* y = product(self, op, p, thread, input_of(self, op, step.n_logits, thread));
    const int column = p.tile * kLanes, ldy = p.n_tiles * kLanes, n = std::min(ldy, op.w->view.n_true - column);
    for (int r = 0; r < p.n_rows; r++, y += ldy) {
      const int row = p.row + r;
      worker.nan[row] |= self.kernels_->argmax(y, n, column, worker.best + row, worker.best_id + row);
      const int out = self.logit_row_[row];
      if (out >= 0) std::memcpy(step.logits + static_cast<size_t>(out) * self.vocab_ + column, y, sizeof(float) * n);
    }
  }
};

Program::Program(std::shared_ptr<ThreadPool> pool, const KernelTable* kernels, std::shared_ptr<KVCache> kv,
                 int max_tokens, int hidden)
    : pool_(std::move(pool)), kernels_(kernels), kv_(std::move(kv)), max_tokens_(max_tokens), hidden_(hidden) {
  if (max_tokens < 1 || max_tokens > (1 << 16)) refuse("max_tokens must be in 1..65536");
  if (hidden < kQuantBlock || hidden % kQuantBlock != 0) refuse("the hidden size must be a multiple of 32");
}

Program::Op& Program::add(Kind kind) {
  if (finalized_) refuse("the program is finalized");
  ops_.push_back(std::make_unique<Op>());
  ops_.back()->kind = kind;
  ops_.back()->index = static_cast<int>(ops_.size()) - 1;
  return *ops_.back();
}

void Program::copy_norm(Op& op, const float* norm, int64_t size) {
  if (size != hidden_) refuse("a norm weight has " + std::to_string(size) + " values, not " + std::to_string(hidden_));
  op.norm = copy_floats(norm, static_cast<size_t>(size));
}

void Program::check_input(const PackedMatrix& w, int k) const {
  if (w.view.k != k)
    refuse("a matrix has " + std::to_string(w.view.k) + " inputs where " + std::to_string(k) + " are produced");
}

// Chunks of kChunkBytes of weights or somewhat less, a multiple of `unit` tiles: of the sizes in question the one with
// which all threads end together best.
void Program::split(Op& op, int unit) {
  const int units = ceil_div(op.w->view.n / kLanes, unit), threads = pool_->size();
  const int most = std::max(1, static_cast<int>(kChunkBytes / (weight_bytes_per_tile(op.w->view) * unit)));
  int best = most, best_rounds = ceil_div(ceil_div(units, most), threads) * most;
  for (int size = most - 1; size >= ceil_div(most, 2); size--) {
    const int rounds = ceil_div(ceil_div(units, size), threads) * size;
    if (rounds < best_rounds) best = size, best_rounds = rounds;
  }
  while (ceil_div(units, best) * ceil_div(max_tokens_, kChunkRows) > kMaxChunks) best *= 2;
  op.tiles_per_chunk = best * unit;
  op.n_tile_chunks = ceil_div(units, best);
}

void Program::embed(std::shared_ptr<Embedding> table) {
  Op& op = add(Kind::kEmbed);
  if (table->k != hidden_) refuse("embedding rows do not have the hidden size");
  embed_rows_ = table->n_rows;
  op.table = std::move(table);
}

void Program::norm_qkv_rope_write(int layer, const float* norm, int64_t norm_size, std::shared_ptr<PackedMatrix> w,
                                  int n_heads, int n_kv_heads, int head_dim, const float* cos, const float* sin,
                                  int64_t n_positions, RopeStyle style, float eps) {
  const KvView& kv = kv_->view();
  if (layer < 0 || layer >= kv.n_layers) refuse("layer " + std::to_string(layer) + " is not in the KV cache");
  if (n_kv_heads != kv.n_kv_heads || head_dim != kv.head_dim) refuse("heads do not match the KV cache");
  if (n_heads < 1 || n_heads % n_kv_heads != 0 || n_heads / n_kv_heads > kMaxTileRows)
    refuse(std::to_string(n_heads) + " heads over " + std::to_string(n_kv_heads) + " KV heads are not supported");
  check_input(*w, hidden_);
  if (w->view.n_true != (n_heads + 2 * n_kv_heads) * head_dim) refuse("q, k and v rows do not match the heads");
  if (n_positions < 1) refuse("the rope table is empty");
  Op& op = add(Kind::kQkv);
  copy_norm(op, norm, norm_size);
  op.layer = layer;
  op.w = std::move(w);
  op.eps = eps;
  op.in_kind = act_kind(op.w->view.kind);
  group_ = n_heads / n_kv_heads;
  n_positions_ =
      n_positions_ ? std::min<int>(n_positions_, static_cast<int>(n_positions)) : static_cast<int>(n_positions);

  op.qkv = QkvArgs{kv, layer, n_heads, n_kv_heads, head_dim, style, nullptr, nullptr, nullptr, nullptr};
  share_rope(op, cos, sin, n_positions);
  op.tiles_per_chunk = head_dim / kLanes;  // one head: rotation and cache write need all of it
  op.n_tile_chunks = n_heads + 2 * n_kv_heads;
}

// Layers whose tables are equal share one copy.
void Program::share_rope(Op& op, const float* cos, const float* sin, int64_t n_positions) {
  const int half = op.qkv.head_dim / 2;
  const bool interleaved = op.qkv.rope_style == kRopeInterleaved;
  const int step = interleaved ? 2 : 1, offset = interleaved ? 1 : half;  // of a pair's cosine, and to its sine
  op.rope_size = n_positions * half * 2;
  const auto equal = [&](const Op& other) {
    if (!other.rope || other.rope_size != op.rope_size || other.qkv.rope_style != op.qkv.rope_style) return false;
    for (int64_t p = 0; p < n_positions; p++)
      for (int i = 0; i < half; i++) {
        const float* pair = other.rope.get() + p * half * 2 + i * step;
        if (pair[0] != cos[p * half + i] || pair[offset] != sin[p * half + i]) return false;
      }
    return true;
  };
  for (const auto& other : ops_)
    if (equal(*other)) {
      op.rope = other->rope;
      break;
    }
  if (!op.rope) {
    op.rope.reset(new float[op.rope_size], [](float* p) { delete[] p; });
    for (int64_t p = 0; p < n_positions; p++)
      for (int i = 0; i < half; i++) {
        float* pair = op.rope.get() + p * half * 2 + i * step;
        pair[0] = cos[p * half + i];
        pair[offset] = sin[p * half + i];
      }
  }
  op.qkv.rope = op.rope.get();
}

void Program::attention(int layer, float scale) {
  const Op* qkv = nullptr;
  for (const auto& op : ops_)
    if (op->kind == Kind::kQkv && op->layer == layer) qkv = op.get();
  if (!qkv) refuse("attention needs the layer's q, k and v first");
  const QkvArgs args = qkv->qkv;
  Op& op = add(Kind::kAttention);
  op.layer = layer;
  op.attention =
      AttentionArgs{kv_->view(), layer, args.n_heads, args.n_kv_heads, args.head_dim, scale, nullptr, nullptr};
}

void Program::proj_residual(std::shared_ptr<PackedMatrix> w) {
  if (ops_.empty() || ops_.back()->kind != Kind::kAttention) refuse("proj_residual follows attention");
  const AttentionArgs& a = ops_.back()->attention;
  check_input(*w, a.n_heads * a.head_dim);
  if (w->view.n_true != hidden_) refuse("the output projection does not have the hidden size");
  Op& op = add(Kind::kProj);
  op.w = std::move(w);
  op.in_kind = act_kind(op.w->view.kind);
  split(op, 1);
}

void Program::norm_gateup_act(const float* norm, int64_t norm_size, std::shared_ptr<PackedMatrix> w, Activation act,
                              float eps) {
  check_input(*w, hidden_);
  if (w->view.n_true % (4 * kLanes) != 0) refuse("gate and up need a multiple of 32 rows each");
  Op& op = add(Kind::kGateUp);
  copy_norm(op, norm, norm_size);
  op.w = std::move(w);
  op.act = act;
  op.eps = eps;
  op.in_kind = act_kind(op.w->view.kind);
  split(op, 4);  // 32 outputs of each: the block that is quantized together
}

void Program::down_residual(std::shared_ptr<PackedMatrix> w) {
  if (ops_.empty() || ops_.back()->kind != Kind::kGateUp) refuse("down_residual follows norm_gateup_act");
  check_input(*w, ops_.back()->w->view.n_true / 2);
  if (w->view.n_true != hidden_) refuse("the down projection does not have the hidden size");
  Op& op = add(Kind::kDown);
  op.w = std::move(w);
  op.in_kind = act_kind(op.w->view.kind);
  split(op, 1);
}

void Program::final_norm_head(const float* norm, int64_t norm_size, std::shared_ptr<PackedMatrix> w, float eps) {
  check_input(*w, hidden_);
  Op& op = add(Kind::kHead);
  copy_norm(op, norm, norm_size);
  op.w = std::move(w);
  op.eps = eps;
  op.in_kind = act_kind(op.w->view.kind);
  vocab_ = op.w->view.n_true;
  split(op, 4);
}

void Program::finalize() {
  if (finalized_) refuse("the program is finalized");
  if (ops_.empty() || ops_[0]->kind != Kind::kEmbed) refuse("a program begins with embed");
  for (size_t i = 1; i < ops_.size(); i++) {
    if (ops_[i]->kind == Kind::kEmbed) refuse("a program has one embed");
    if (ops_[i]->kind == Kind::kHead && i + 1 != ops_.size()) refuse("final_norm_head comes last");
  }
  const int groups = ceil_div(max_tokens_, kRowGroup);
  size_t q_elements = 0, gated = 0, input = 0, y_columns = 0;
  int head_dim = 0;
  for (const auto& op : ops_) {
    if (op->kind == Kind::kQkv) {
      q_elements = std::max<size_t>(q_elements, op->qkv.n_heads * op->qkv.head_dim);
      head_dim = std::max(head_dim, op->qkv.head_dim);
    }
    if (op->norm || op->kind == Kind::kProj) input = std::max(input, act_group_bytes(op->in_kind, op->w->view.k));
    if (op->kind == Kind::kDown) gated = std::max(gated, act_group_bytes(op->in_kind, op->w->view.k));
    if (op->w) y_columns = std::max<size_t>(y_columns, op->tiles_per_chunk * kLanes);
  }
  residual_ = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * max_tokens_ * hidden_));
  input_ = arena_.allocate(groups * input);
  hidden_act_ = arena_.allocate(groups * gated);
  q_ = arena_.allocate(q_elements * max_tokens_ * sizeof(float));
  attended_ = reinterpret_cast<float*>(arena_.allocate(q_elements * max_tokens_ * sizeof(float)));
  if (n_positions_ > kSegmentKeys && pool_->size() > 1) {
    parts_per_item_ = attention_segments(n_positions_, 0) * attention_part_floats(kMaxTileRows, head_dim);
    const size_t items = kItemsPerThread * pool_->size();
    parts_ = reinterpret_cast<float*>(arena_.allocate(items * parts_per_item_ * sizeof(float)));
    parts_done_.reset(new std::atomic<int>[items]());
  }
  write_blocks_ = reinterpret_cast<int32_t*>(arena_.allocate(sizeof(int32_t) * max_tokens_));
  logit_row_ = reinterpret_cast<int32_t*>(arena_.allocate(sizeof(int32_t) * max_tokens_));
  workers_.resize(pool_->size());
  for (Worker& w : workers_) {
    w.input = arena_.allocate(input);
    w.y = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * kChunkRows * y_columns));
    w.attention = arena_.allocate(attention_scratch_bytes(head_dim));
    w.best = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * max_tokens_));
    w.best_id = reinterpret_cast<int32_t*>(arena_.allocate(sizeof(int32_t) * max_tokens_));
    w.nan = arena_.allocate(max_tokens_);
  }
  for (size_t i = 0; i < ops_.size(); i++) {
    Op& op = *ops_[i];
    const ActKind next_kind = i + 1 < ops_.size() ? ops_[i + 1]->in_kind : kActFloat;
    if (op.kind == Kind::kQkv) {
      op.qkv.q = q_;
      op.qkv.write_blocks = write_blocks_;
    } else if (op.kind == Kind::kAttention) {
      if (i + 1 == ops_.size() || ops_[i + 1]->kind != Kind::kProj) refuse("proj_residual follows attention");
      op.attention.q = q_;
      op.attention.out = attended_;
    } else if (op.kind == Kind::kGateUp) {
      if (i + 1 == ops_.size() || ops_[i + 1]->kind != Kind::kDown) refuse("down_residual follows norm_gateup_act");
      op.out = hidden_act_;
      op.out_kind = next_kind;
    } else if (op.kind == Kind::kDown) {
      op.in = hidden_act_;
    }
  }
  finalized_ = true;
}

void Program::check_step(const Step& s) const {
  if (!finalized_) refuse("the program is not finalized");
  if (s.n_tokens < 1 || s.n_tokens > max_tokens_)
    refuse(std::to_string(s.n_tokens) + " tokens in a step; the program was made for 1.." +
           std::to_string(max_tokens_));
  const int64_t positions =
      std::min<int64_t>(n_positions_ ? n_positions_ : INT32_MAX, int64_t{s.max_blocks} * kBlockTokens);
  for (int t = 0; t < s.n_tokens; t++) {
    if (s.token_ids[t] < 0 || s.token_ids[t] >= embed_rows_)
      refuse("token id " + std::to_string(s.token_ids[t]) + " is not in the vocabulary");
    if (s.positions[t] < 0 || s.positions[t] >= positions)
      refuse("position " + std::to_string(s.positions[t]) + " is beyond the tables");
    if (s.row_of_token[t] < 0 || s.row_of_token[t] >= s.n_rows) refuse("a token belongs to no row");
    if (t && s.row_of_token[t] == s.row_of_token[t - 1] && s.positions[t] != s.positions[t - 1] + 1)
      refuse("tokens of a row must have rising positions without gaps");
    if (t && s.row_of_token[t] < s.row_of_token[t - 1]) refuse("tokens must be ordered by row");
  }
  for (int r = 0; r < s.n_rows; r++)
    if (s.slot_of_row[r] < 0 || s.slot_of_row[r] >= s.n_slots) refuse("a row's slot has no block table");
  for (int t = 0; t < s.n_tokens; t++) {
    if (t + 1 < s.n_tokens && s.row_of_token[t + 1] == s.row_of_token[t]) continue;
    const int32_t* table = s.block_tables + s.slot_of_row[s.row_of_token[t]] * s.table_stride;
    const int blocks = s.positions[t] / kBlockTokens + 1;
    int32_t low = 0, high = 0;
    for (int b = 0; b < blocks; b++) low = std::min(low, table[b]), high = std::max(high, table[b]);
    if (low < 0 || high >= kv_->view().n_blocks) refuse("a block table names a block that is not in the cache");
  }
  if (s.n_logits < 0 || s.n_logits > max_tokens_) refuse("more logit rows than tokens");
  if (s.n_logits && !vocab_) refuse("the program has no head");
  int written = 0;
  for (int i = 0; i < s.n_logits; i++) {
    if (s.logit_tokens[i] < 0 || s.logit_tokens[i] >= s.n_tokens)
      refuse("logits wanted of a token that is not in the step");
    written += !s.greedy[i];
  }
  if (written > s.n_logit_rows) refuse("the logits array has too few rows");
}

void Program::cut_tiles() {
  tiles_.clear();
  splits_ = 1;
  const int most = std::min(4, std::max(1, 12 / group_));
  for (int t = 0; t < step_.n_tokens;) {
    int n = 1;
    // Tiles end at multiples of their size: a chunk that begins in the middle of one costs a small tile only once.
    while (n < most && t + n < step_.n_tokens && step_.row_of_token[t + n] == step_.row_of_token[t] &&
           step_.positions[t + n] % most != 0)
      n++;
    tiles_.push_back(Tile{t, n, step_.positions[t], attention_segments(step_.positions[t], n),
                          step_.block_tables + step_.slot_of_row[step_.row_of_token[t]] * step_.table_stride});
    t += n;
  }
  // The longest first: a late long item would leave the other threads waiting.
  std::stable_sort(tiles_.begin(), tiles_.end(),
                   [](const Tile& a, const Tile& b) { return a.position + a.n_tokens > b.position + b.n_tokens; });
  // Too few items for the threads: cut them at segment borders, where results are partial anyway.
  const int items = static_cast<int>(tiles_.size()) * kv_->view().n_kv_heads, wanted = kItemsPerThread * pool_->size();
  if (parts_ && items < wanted) splits_ = std::min(ceil_div(wanted, items), tiles_[0].n_segments);
}

void Program::prepare(const Step& step) {
  step_ = step;
  step_number_++;
  for (int t = 0; t < step.n_tokens; t++) {
    const int32_t* table = step.block_tables + step.slot_of_row[step.row_of_token[t]] * step.table_stride;
    write_blocks_[t] = table[step.positions[t] / kBlockTokens];
  }
  int written = 0;
  for (int i = 0; i < step.n_logits; i++) logit_row_[i] = step.greedy[i] ? -1 : written++;
  cut_tiles();

  phases_.clear();
  const int tokens = step.n_tokens, groups = ceil_div(tokens, kRowGroup), row_chunks = ceil_div(tokens, kChunkRows);
  for (const auto& p : ops_) {
    const Op& op = *p;
    switch (op.kind) {
      case Kind::kEmbed:
        phases_.push_back({Chunks::embed, &op, ceil_div(tokens, kEmbedRows)});
        break;
      case Kind::kQkv:
      case Kind::kGateUp:
        if (tokens > kRowGroup) phases_.push_back({Chunks::inputs, &op, groups});
        phases_.push_back({op.kind == Kind::kQkv ? Chunks::qkv : Chunks::gate_up, &op, op.n_tile_chunks * row_chunks});
        break;
      case Kind::kAttention:
        phases_.push_back(
            {Chunks::attention, &op, static_cast<int>(tiles_.size()) * op.attention.n_kv_heads * splits_});
        break;
      case Kind::kProj:
        if (tokens > kRowGroup) phases_.push_back({Chunks::inputs, &op, groups});
        phases_.push_back({Chunks::residual, &op, op.n_tile_chunks * row_chunks});
        break;
      case Kind::kDown:
        phases_.push_back({Chunks::residual, &op, op.n_tile_chunks * row_chunks});
        break;
      case Kind::kHead:
        if (!step.n_logits) break;
        if (step.n_logits > kRowGroup) phases_.push_back({Chunks::inputs, &op, ceil_div(step.n_logits, kRowGroup)});
        phases_.push_back({Chunks::head, &op, op.n_tile_chunks * ceil_div(step.n_logits, kChunkRows)});
        break;
    }
  }
}

void Program::run(const Step& step) {
  const std::lock_guard<std::mutex> lock(running_);
  check_step(step);
  prepare(step);
  pool_->run(phases_, this);
  for (int i = 0; i < step.n_logits; i++) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t id = -1;
    uint8_t nan = 0;
    for (const Worker& w : workers_) {
      if (w.best_tag != step_number_) continue;
      nan |= w.nan[i];
      if (w.best[i] > best || (w.best[i] == best && w.best_id[i] >= 0 && (id < 0 || w.best_id[i] < id)))
        best = w.best[i], id = w.best_id[i];
    }
    step.out_ids[i] = id;
    step.out_nan[i] = nan || id < 0;
  }
}

}  // namespace sixfold
