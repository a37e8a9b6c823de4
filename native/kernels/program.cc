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

// Null when there is no such vector.
std::shared_ptr<float> copy(const Vector& from, int64_t size, const char* what) {
  if (!from.data) return nullptr;
  if (from.size != size)
    refuse(std::string(what) + " has " + std::to_string(from.size) + " values, not " + std::to_string(size));
  std::shared_ptr<float> to(new float[size], [](float* p) { delete[] p; });
  std::memcpy(to.get(), from.data, static_cast<size_t>(size) * sizeof(float));
  return to;
}

void check_softcap(float cap) {
  if (!(cap >= 0)) refuse("a soft cap is negative");
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
    p.n_tiles = std::min(op.tiles_per_chunk, op.w->n / kLanes - p.tile);
    p.row = chunk % row_chunks * kChunkRows;
    p.n_rows = std::min(kChunkRows, rows - p.row);
    return p;
  }

  // The product into the thread's scratch; leading dimension p.n_tiles * 16.
  static float* product(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act) {
    float* y = self.workers_[thread].y;
    matmul(*self.kernels_, *op.w, act, p.row, p.n_rows, p.tile, p.n_tiles, y, p.n_tiles * kLanes);
    return y;
  }

  // The product into rows of all columns.
  static void product_into(Program& self, const Program::Op& op, const Part& p, const uint8_t* act, float* rows) {
    matmul(*self.kernels_, *op.w, act, p.row, p.n_rows, p.tile, p.n_tiles,
           rows + static_cast<size_t>(p.row) * op.w->n + p.tile * kLanes, op.w->n);
  }

  // Makes one activation group, rows [begin, begin + n): the operation's norm of the residual stream (the stream as it
  // is where there is no norm), or attention's output.
  static void make_group(Program& self, const Program::Op& op, int begin, int n, uint8_t* group) {
    if (op.kind == Program::Kind::kProj) {
      const int k = op.w->k;
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
               self.input_ + chunk * act_group_bytes(op.in_kind, op.w->k));
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
    if (op.scale == 1) return;
    float* x = self.residual_ + static_cast<size_t>(chunk) * kEmbedRows * self.hidden_;
    for (int64_t i = int64_t{end - chunk * kEmbedRows} * self.hidden_; i > 0; i--) *x++ *= op.scale;
  }

  static void qkv(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const uint8_t* act = input_of(self, op, self.step_.n_tokens, thread);
    if (op.whole_norm) return product_into(self, op, p, act, self.wide_);
    product(self, op, p, thread, act);
    QkvArgs args = op.qkv;
    args.positions = self.step_.positions;
    self.kernels_->qkv_rows(&args, p.tile * kLanes / args.head_dim, p.row, p.n_rows, self.workers_[thread].y,
                            p.n_tiles * kLanes);
  }

  // Norms of the whole q and k of a token, then what `qkv` does to each head.
  static void qkv_finish(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int row = chunk * kRowGroup, n_rows = std::min(kRowGroup, self.step_.n_tokens - row);
    const int n = op.w->n, q = op.qkv.n_heads * op.qkv.head_dim, k = op.qkv.n_kv_heads * op.qkv.head_dim;
    float* y = self.wide_ + static_cast<size_t>(row) * n;
    const float* bias = op.qkv.bias;
    self.kernels_->norm_rows(y, n, n_rows, q, bias, op.q_norm.get(), op.qkv.eps);
    self.kernels_->norm_rows(y + q, n, n_rows, k, bias ? bias + q : nullptr, op.k_norm.get(), op.qkv.eps);
    if (bias) self.kernels_->norm_rows(y + q + k, n, n_rows, k, bias + q + k, nullptr, 0);
    QkvArgs args = op.qkv;
    args.bias = nullptr;
    args.positions = self.step_.positions;
    for (int head = 0; head < args.n_heads + 2 * args.n_kv_heads; head++)
      self.kernels_->qkv_rows(&args, head, row, n_rows, y + head * args.head_dim, n);
  }

  static void attention(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int splits = self.splits_of(op);
    const int heads = op.attention.n_kv_heads, item = chunk / splits, split = chunk % splits;
    const Program::Tile& tile = self.tiles_[item / heads];
    const int first = first_key(tile.position, op.attention.window) / kSegmentKeys, n = tile.n_segments - first;
    uint8_t* scratch = self.workers_[thread].attention;
    float* parts = splits > 1 ? self.parts_ + item * self.parts_per_item_ : nullptr;
    self.kernels_->attention(&op.attention, tile.token, tile.n_tokens, tile.position, tile.table, item % heads,
                             first + split * n / splits, first + (split + 1) * n / splits, parts, scratch);
    if (!parts || ++self.parts_done_[item] < splits) return;
    // The last to finish a part merges them all: no further barrier is needed.
    self.parts_done_[item] = 0;
    self.kernels_->attention_merge(&op.attention, tile.token, tile.n_tokens, tile.position, item % heads, parts,
                                   scratch);
  }

  static void residual(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const uint8_t* act = op.in ? op.in : input_of(self, op, self.step_.n_tokens, thread);
    if (op.post_norm) return product_into(self, op, p, act, self.branch_);
    const float* y = product(self, op, p, thread, act);
    const float* bias = op.bias ? op.bias.get() + p.tile * kLanes : nullptr;
    self.kernels_->add_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes, bias,
                            self.residual_ + static_cast<size_t>(p.row) * self.hidden_ + p.tile * kLanes, self.hidden_);
  }

  // The norm behind a product needs all of its row: a phase of its own.
  static void post_norm(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int row = chunk * kRowGroup, n_rows = std::min(kRowGroup, self.step_.n_tokens - row), n = self.hidden_;
    float* y = self.branch_ + static_cast<size_t>(row) * n;
    self.kernels_->norm_rows(y, n, n_rows, n, op.bias.get(), op.post_norm.get(), op.eps);
    self.kernels_->add_rows(y, n, n_rows, n, nullptr, self.residual_ + static_cast<size_t>(row) * n, n);
  }

  static void gate_up(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const Part p = part_of(op, chunk, self.step_.n_tokens);
    const float* y = product(self, op, p, thread, input_of(self, op, self.step_.n_tokens, thread));
    self.kernels_->gate_up_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes / 2, op.act, op.out_kind, op.out,
                                op.w->n / 2, p.row, p.tile * kLanes / 2);
  }

  // --- experts: choose, gather, gate and up, down, add ---------------------------------------------------------------

  // The experts of 8 tokens. Who finishes last sorts the pairs.
  static void choose(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int row = chunk * kRowGroup, n_rows = std::min(kRowGroup, self.step_.n_tokens - row);
    const int n = op.w->n, n_experts = op.w->n_true;
    Program::Worker& worker = self.workers_[thread];
    worker.input_tag = 0;
    const float* x = self.residual_ + static_cast<size_t>(row) * self.hidden_;
    self.kernels_->norm_group(x, self.hidden_, nullptr, n_rows, self.hidden_, op.norm.get(), op.eps, kActFloat,
                              worker.input);
    matmul(*self.kernels_, *op.w, worker.input, 0, n_rows, 0, n / kLanes, worker.y, n);
    for (int r = 0; r < n_rows; r++) {
      const size_t at = static_cast<size_t>(row + r) * op.n_used;
      self.kernels_->choose_experts(worker.y + static_cast<size_t>(r) * n, n_experts, op.n_used, op.renormalize,
                                    self.chosen_ + at, self.shares_ + at);
    }
    if (++self.routed_ < ceil_div(self.step_.n_tokens, kRowGroup)) return;
    self.routed_ = 0;
    self.sort_pairs(op);
  }

  static void gather(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    if (chunk >= static_cast<int>(self.group_unit_.size())) return;
    const Program::Unit& unit = self.units_[self.group_unit_[chunk]];
    const int row = (chunk - unit.group) * kRowGroup, n_rows = std::min(kRowGroup, unit.n_pairs - row);
    self.kernels_->norm_group(self.residual_, self.hidden_, self.pair_token_ + unit.pair + row, n_rows, self.hidden_,
                              op.norm.get(), op.eps, op.in_kind,
                              self.expert_input_ + chunk * act_group_bytes(op.in_kind, self.hidden_));
  }

  static void expert_gate_up(void* arg, const void* o, int chunk, int thread) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int index = chunk / op.n_tile_chunks, tile = chunk % op.n_tile_chunks * op.tiles_per_chunk;
    if (index >= static_cast<int>(self.units_.size())) return;
    const Program::Unit& unit = self.units_[index];
    const PackedMatrix& w = *op.experts[unit.expert].gate_up;
    const int n_tiles = std::min(op.tiles_per_chunk, w.n / kLanes - tile);
    const size_t gated = act_group_bytes(op.gated_kind, w.n / 2);
    float* y = self.workers_[thread].y;
    matmul(*self.kernels_, w, self.expert_input_ + unit.group * act_group_bytes(op.in_kind, w.k), 0, unit.n_pairs, tile,
           n_tiles, y, n_tiles * kLanes);
    self.kernels_->gate_up_rows(y, n_tiles * kLanes, unit.n_pairs, n_tiles * kLanes / 2, op.act, op.gated_kind,
                                self.expert_gated_ + unit.group * gated, w.n / 2, 0, tile * kLanes / 2);
  }

  static void expert_down(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int index = chunk / op.n_down_chunks, tile = chunk % op.n_down_chunks * op.down_tiles_per_chunk;
    if (index >= static_cast<int>(self.units_.size())) return;
    const Program::Unit& unit = self.units_[index];
    const PackedMatrix& w = *op.experts[unit.expert].down;
    matmul(*self.kernels_, w, self.expert_gated_ + unit.group * act_group_bytes(op.gated_kind, w.k), 0, unit.n_pairs,
           tile, std::min(op.down_tiles_per_chunk, w.n / kLanes - tile),
           self.expert_out_ + static_cast<size_t>(unit.pair) * self.hidden_ + tile * kLanes, self.hidden_);
  }

  // A token's experts are added in the order of their shares, whoever shares the step.
  static void add_experts(void* arg, const void* o, int chunk, int) {
    Program& self = program(arg);
    const Program::Op& op = operation(o);
    const int end = std::min((chunk + 1) * kRowGroup, self.step_.n_tokens);
    for (int t = chunk * kRowGroup; t < end; t++)
      for (int u = t * op.n_used; u < (t + 1) * op.n_used; u++)
        self.kernels_->add_scaled(self.expert_out_ + static_cast<size_t>(self.pair_of_[u]) * self.hidden_,
                                  self.shares_[u], self.hidden_,
                                  self.residual_ + static_cast<size_t>(t) * self.hidden_);
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
    float* y = product(self, op, p, thread, input_of(self, op, step.n_logits, thread));
    const int column = p.tile * kLanes, ldy = p.n_tiles * kLanes, n = std::min(ldy, op.w->n_true - column);
    if (op.softcap > 0) self.kernels_->softcap(y, p.n_rows * ldy, op.softcap);
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

void Program::check_input(const PackedMatrix& w, int k) const {
  if (w.k != k) refuse("a matrix has " + std::to_string(w.k) + " inputs where " + std::to_string(k) + " are produced");
}

// Chunks of kChunkBytes of weights or somewhat less, a multiple of `unit` tiles: of the sizes in question the one with
// which all threads end together best.
int Program::tiles_per_chunk(const PackedMatrix& w, int unit, int row_chunks) const {
  const int tiles = w.n / kLanes, units = ceil_div(tiles, unit), threads = pool_->size();
  const int most = std::max(1, static_cast<int>(kChunkBytes / (w.bytes / tiles * unit)));
  int best = most, best_rounds = ceil_div(ceil_div(units, most), threads) * most;
  for (int size = most - 1; size >= ceil_div(most, 2); size--) {
    const int rounds = ceil_div(ceil_div(units, size), threads) * size;
    if (rounds < best_rounds) best = size, best_rounds = rounds;
  }
  while (int64_t{ceil_div(units, best)} * row_chunks > kMaxChunks && best < units) best *= 2;
  return best * unit;
}

void Program::split(Op& op, int unit) {
  op.tiles_per_chunk = tiles_per_chunk(*op.w, unit, ceil_div(max_tokens_, kChunkRows));
  op.n_tile_chunks = ceil_div(op.w->n / kLanes, op.tiles_per_chunk);
}

void Program::embed(std::shared_ptr<Embedding> table, float scale) {
  Op& op = add(Kind::kEmbed);
  if (table->k != hidden_) refuse("embedding rows do not have the hidden size");
  embed_rows_ = table->n_rows;
  op.table = std::move(table);
  op.scale = scale;
}

std::shared_ptr<RopeTable> make_rope_table(const float* cos, const float* sin, int64_t n_positions, int dims,
                                           RopeStyle style) {
  if (n_positions < 1 || dims < 2 || dims % 2) refuse("the rope table is empty");
  auto table = std::make_shared<RopeTable>();
  table->style = style, table->dims = dims, table->n_positions = n_positions;
  table->rows.reset(new float[static_cast<size_t>(n_positions) * dims]);
  const int half = dims / 2;
  for (int64_t p = 0; p < n_positions; p++) {
    float* row = table->rows.get() + p * dims;
    for (int i = 0; i < half; i++) {
      row[style == kRopeInterleaved ? 2 * i : i] = cos[p * half + i];
      row[style == kRopeInterleaved ? 2 * i + 1 : half + i] = sin[p * half + i];
    }
  }
  return table;
}

void Program::norm_qkv_rope_write(const QkvOp& a) {
  const KvView& kv = kv_->view();
  if (a.layer < 0 || a.layer >= kv.n_layers) refuse("layer " + std::to_string(a.layer) + " is not in the KV cache");
  if (a.n_kv_heads != kv.n_kv_heads || a.head_dim != kv.head_dim) refuse("heads do not match the KV cache");
  if (a.n_heads < 1 || a.n_heads % a.n_kv_heads != 0 || a.n_heads / a.n_kv_heads > kMaxTileRows)
    refuse(std::to_string(a.n_heads) + " heads over " + std::to_string(a.n_kv_heads) + " KV heads are not supported");
  check_input(*a.w, hidden_);
  const int n = (a.n_heads + 2 * a.n_kv_heads) * a.head_dim;
  if (a.w->n_true != n) refuse("q, k and v rows do not match the heads");
  if (a.rope->dims > a.head_dim) refuse("more dimensions are rotated than a head has");
  if (!a.q_norm.data != !a.k_norm.data) refuse("q and k are normed together or not at all");
  Op& op = add(Kind::kQkv);
  op.norm = copy(a.norm, hidden_, "a norm weight");
  op.bias = copy(a.bias, n, "the bias of q, k and v");
  op.whole_norm = a.q_norm.data && a.q_norm.size != a.head_dim;
  op.q_norm = copy(a.q_norm, op.whole_norm ? a.n_heads * a.head_dim : a.head_dim, "the norm of q");
  op.k_norm = copy(a.k_norm, op.whole_norm ? a.n_kv_heads * a.head_dim : a.head_dim, "the norm of k");
  op.layer = a.layer;
  op.w = a.w;
  op.eps = a.eps;
  op.in_kind = a.w->act;
  op.rope = a.rope;
  group_ = a.n_heads / a.n_kv_heads;
  const int positions = static_cast<int>(std::min<int64_t>(a.rope->n_positions, std::numeric_limits<int>::max()));
  n_positions_ = n_positions_ ? std::min(n_positions_, positions) : positions;

  op.qkv.kv = kv;
  op.qkv.layer = a.layer;
  op.qkv.n_heads = a.n_heads, op.qkv.n_kv_heads = a.n_kv_heads, op.qkv.head_dim = a.head_dim;
  op.qkv.bias = op.bias.get();
  op.qkv.q_norm = op.whole_norm ? nullptr : op.q_norm.get();
  op.qkv.k_norm = op.whole_norm ? nullptr : op.k_norm.get();
  op.qkv.eps = a.eps;
  op.qkv.rope_style = a.rope->style, op.qkv.rope_dims = a.rope->dims, op.qkv.rope = a.rope->rows.get();
  op.tiles_per_chunk = a.head_dim / kLanes;  // one head: rotation and cache write need all of it
  op.n_tile_chunks = a.n_heads + 2 * a.n_kv_heads;
}

void Program::attention(int layer, float scale, int window, float softcap) {
  const Op* qkv = nullptr;
  for (const auto& op : ops_)
    if (op->kind == Kind::kQkv && op->layer == layer) qkv = op.get();
  if (!qkv) refuse("attention needs the layer's q, k and v first");
  if (window < 0) refuse("a window is negative");
  check_softcap(softcap);
  const QkvArgs args = qkv->qkv;
  Op& op = add(Kind::kAttention);
  op.layer = layer;
  op.attention = AttentionArgs{kv_->view(), layer,   args.n_heads, args.n_kv_heads, args.head_dim,
                               scale,       softcap, window,       nullptr,         nullptr};
}

void Program::add_residual(Kind kind, std::shared_ptr<PackedMatrix> w, Vector bias, Vector post_norm, float eps) {
  if (w->n_true != hidden_) refuse("a projection to the residual stream does not have the hidden size");
  Op& op = add(kind);
  op.w = std::move(w);
  op.bias = copy(bias, hidden_, "a bias");
  op.post_norm = copy(post_norm, hidden_, "a norm weight");
  op.eps = eps;
  op.in_kind = op.w->act;
  split(op, 1);
}

void Program::proj_residual(std::shared_ptr<PackedMatrix> w, Vector bias, Vector post_norm, float eps) {
  if (ops_.empty() || ops_.back()->kind != Kind::kAttention) refuse("proj_residual follows attention");
  const AttentionArgs& a = ops_.back()->attention;
  check_input(*w, a.n_heads * a.head_dim);
  add_residual(Kind::kProj, std::move(w), bias, post_norm, eps);
}

void Program::down_residual(std::shared_ptr<PackedMatrix> w, Vector post_norm, float eps) {
  if (ops_.empty() || ops_.back()->kind != Kind::kGateUp) refuse("down_residual follows norm_gateup_act");
  check_input(*w, ops_.back()->w->n_true / 2);
  add_residual(Kind::kDown, std::move(w), Vector{}, post_norm, eps);
}

void Program::norm_gateup_act(Vector norm, std::shared_ptr<PackedMatrix> w, Activation act, float eps) {
  check_input(*w, hidden_);
  if (w->n_true % (4 * kLanes) != 0) refuse("gate and up need a multiple of 32 rows each");
  Op& op = add(Kind::kGateUp);
  op.norm = copy(norm, hidden_, "a norm weight");
  op.w = std::move(w);
  op.act = act;
  op.eps = eps;
  op.in_kind = op.w->act;
  split(op, 4);  // 32 outputs of each: the block that is quantized together
}

void Program::norm_experts_residual(const ExpertsOp& a) {
  check_input(*a.router, hidden_);
  const int n_experts = static_cast<int>(a.experts.size());
  if (a.router->act != kActFloat) refuse("a router has float weights");
  if (!n_experts || a.router->n_true != n_experts) refuse("the router does not have one row for each expert");
  if (a.n_used < 1 || a.n_used > n_experts) refuse("more experts are used than there are");
  const PackedMatrix& gate_up = *a.experts[0].gate_up;
  const PackedMatrix& down = *a.experts[0].down;
  if (gate_up.n_true % (4 * kLanes) != 0) refuse("gate and up need a multiple of 32 rows each");
  for (const Expert& e : a.experts) {
    check_input(*e.gate_up, hidden_);
    check_input(*e.down, e.gate_up->n_true / 2);
    if (e.gate_up->n != gate_up.n || e.gate_up->act != gate_up.act || e.down->act != down.act ||
        e.down->n_true != hidden_)
      refuse("experts differ in shape or kind");
  }
  if (!a.norm.data) refuse("experts need a norm");
  Op& op = add(Kind::kExperts);
  op.norm = copy(a.norm, hidden_, "a norm weight");
  op.w = a.router;
  op.experts = a.experts;
  op.n_used = a.n_used;
  op.renormalize = a.renormalize;
  op.act = a.act;
  op.eps = a.eps;
  op.in_kind = gate_up.act;
  op.gated_kind = down.act;
  const int units = units_at_most(op, max_tokens_);
  op.tiles_per_chunk = tiles_per_chunk(gate_up, 4, units);
  op.n_tile_chunks = ceil_div(gate_up.n / kLanes, op.tiles_per_chunk);
  op.down_tiles_per_chunk = tiles_per_chunk(down, 1, units);
  op.n_down_chunks = ceil_div(down.n / kLanes, op.down_tiles_per_chunk);
  if (int64_t{units} * std::max(op.n_tile_chunks, op.n_down_chunks) > kMaxChunks ||
      groups_at_most(op, max_tokens_) > kMaxChunks)
    refuse("so many experts cannot be shared out over so many tokens");
}

// Every expert that is used has one unit that may be part-filled, and one for each kChunkRows pairs.
int Program::units_at_most(const Op& op, int tokens) const {
  const int pairs = tokens * op.n_used;
  return std::min(pairs, static_cast<int>(op.experts.size())) + pairs / kChunkRows;
}

int Program::groups_at_most(const Op& op, int tokens) const {
  const int pairs = tokens * op.n_used;
  return std::min(pairs, static_cast<int>(op.experts.size())) + pairs / kRowGroup;
}

// Pairs by expert, then token; units and activation groups of them.
void Program::sort_pairs(const Op& op) {
  const int n_experts = static_cast<int>(op.experts.size()), n_pairs = step_.n_tokens * op.n_used;
  expert_count_.assign(n_experts + 1, 0);
  for (int u = 0; u < n_pairs; u++) expert_count_[chosen_[u] + 1]++;
  units_.clear();
  group_unit_.clear();
  for (int e = 0; e < n_experts; e++) {
    const int first = expert_count_[e], end = first + expert_count_[e + 1];
    for (int pair = first; pair < end; pair += kChunkRows) {
      units_.push_back(Unit{e, pair, std::min(kChunkRows, end - pair), static_cast<int>(group_unit_.size())});
      for (int g = 0; g < ceil_div(units_.back().n_pairs, kRowGroup); g++)
        group_unit_.push_back(static_cast<int>(units_.size()) - 1);
    }
    expert_count_[e + 1] = end;
  }
  for (int u = 0; u < n_pairs; u++) {
    const int pair = expert_count_[chosen_[u]]++;
    pair_of_[u] = pair;
    pair_token_[pair] = u / op.n_used;
  }
}

void Program::final_norm_head(Vector norm, std::shared_ptr<PackedMatrix> w, float eps, float softcap) {
  check_input(*w, hidden_);
  check_softcap(softcap);
  Op& op = add(Kind::kHead);
  op.norm = copy(norm, hidden_, "a norm weight");
  if (!op.norm) refuse("the head needs a norm");
  op.w = std::move(w);
  op.eps = eps;
  op.softcap = softcap;
  op.in_kind = op.w->act;
  vocab_ = op.w->n_true;
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
  size_t q_elements = 0, gated = 0, input = 0, y_columns = 0, wide = 0, branch = 0;
  int head_dim = 0;
  for (const auto& op : ops_) {
    if (op->kind == Kind::kQkv) {
      q_elements = std::max<size_t>(q_elements, op->qkv.n_heads * op->qkv.head_dim);
      head_dim = std::max(head_dim, op->qkv.head_dim);
      if (op->whole_norm) wide = std::max<size_t>(wide, op->w->n);
    }
    if (op->post_norm) branch = hidden_;
    if (op->kind == Kind::kExperts) {
      input = std::max(input, act_group_bytes(kActFloat, hidden_));
      y_columns = std::max<size_t>(y_columns, op->w->n);
    } else if (op->kind == Kind::kDown) {
      gated = std::max(gated, act_group_bytes(op->in_kind, op->w->k));
    } else if (op->w) {
      input = std::max(input, act_group_bytes(op->in_kind, op->w->k));
    }
    if (op->w) y_columns = std::max<size_t>(y_columns, op->tiles_per_chunk * kLanes);
  }
  wide_ = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * max_tokens_ * wide));
  branch_ = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * max_tokens_ * branch));
  allocate_experts();
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

void Program::allocate_experts() {
  size_t pairs = 0, input = 0, gated = 0;
  for (const auto& op : ops_) {
    if (op->kind != Kind::kExperts) continue;
    const size_t groups = groups_at_most(*op, max_tokens_);
    pairs = std::max(pairs, static_cast<size_t>(max_tokens_) * op->n_used);
    input = std::max(input, groups * act_group_bytes(op->in_kind, hidden_));
    gated = std::max(gated, groups * act_group_bytes(op->gated_kind, op->experts[0].down->k));
  }
  if (!pairs) return;
  const auto numbers = [&] { return reinterpret_cast<int32_t*>(arena_.allocate(sizeof(int32_t) * pairs)); };
  chosen_ = numbers(), pair_of_ = numbers(), pair_token_ = numbers();
  shares_ = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * pairs));
  expert_out_ = reinterpret_cast<float*>(arena_.allocate(sizeof(float) * pairs * hidden_));
  expert_input_ = arena_.allocate(input);
  expert_gated_ = arena_.allocate(gated);
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

// A window leaves few segments to split by.
int Program::splits_of(const Op& op) const {
  if (!op.attention.window) return splits_;
  return std::min(splits_, op.attention.window / kSegmentKeys + 2);
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
        if (op.whole_norm) phases_.push_back({Chunks::qkv_finish, &op, groups});
        break;
      case Kind::kAttention:
        phases_.push_back(
            {Chunks::attention, &op, static_cast<int>(tiles_.size()) * op.attention.n_kv_heads * splits_of(op)});
        break;
      case Kind::kProj:
      case Kind::kDown:
        if (op.kind == Kind::kProj && tokens > kRowGroup) phases_.push_back({Chunks::inputs, &op, groups});
        phases_.push_back({Chunks::residual, &op, op.n_tile_chunks * row_chunks});
        if (op.post_norm) phases_.push_back({Chunks::post_norm, &op, groups});
        break;
      case Kind::kExperts: {
        const int units = units_at_most(op, tokens);
        phases_.push_back({Chunks::choose, &op, groups});
        phases_.push_back({Chunks::gather, &op, groups_at_most(op, tokens)});
        phases_.push_back({Chunks::expert_gate_up, &op, units * op.n_tile_chunks});
        phases_.push_back({Chunks::expert_down, &op, units * op.n_down_chunks});
        phases_.push_back({Chunks::add_experts, &op, groups});
        break;
      }
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
