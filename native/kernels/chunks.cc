#include "chunks.h"

#include <algorithm>

namespace sixfold {

namespace {

// Weight bytes of a product chunk that is worth handing out.
constexpr int kChunkBytes = 24 << 10;

// Tokens of a chunk from which their places in the cache are fetched before the product.
constexpr int kFetchRows = 9;

}  // namespace

ProductPart part_of(const PackedMatrix& w, int tiles_per_chunk, int chunk, int rows, int chunk_rows) {
  const int row_chunks = ceil_div(rows, chunk_rows);
  ProductPart p;
  p.tile = chunk / row_chunks * tiles_per_chunk;
  p.n_tiles = std::min(tiles_per_chunk, w.n / kLanes - p.tile);
  p.row = chunk % row_chunks * chunk_rows;
  p.n_rows = std::min(chunk_rows, rows - p.row);
  return p;
}

int head_chunk_rows(int rows) {
  return rows > kChunkRows ? kChunkRows : ceil_div(ceil_div(rows, 2), kRowGroup) * kRowGroup;
}

int tiles_per_chunk(const PackedMatrix& w, int unit, int row_chunks, int threads) {
  const int tiles = w.n / kLanes, units = ceil_div(tiles, unit);
  const int most = std::max(1, static_cast<int>(kChunkBytes / (w.bytes / tiles * unit)));
  int best = most, best_rounds = ceil_div(ceil_div(units, most), threads) * most;
  for (int size = most - 1; size >= ceil_div(most, 2); size--) {
    const int rounds = ceil_div(ceil_div(units, size), threads) * size;
    if (rounds < best_rounds) best = size, best_rounds = rounds;
  }
  while (int64_t{ceil_div(units, best)} * row_chunks > kMaxChunks && best < units) best *= 2;
  return best * unit;
}

// What a product of so many tiles with all its rows in full groups has time to ask for, in bytes.
size_t aside_bytes(const PackedMatrix& w, int tiles, int rows) {
  return static_cast<size_t>(tiles) * (rows / kRowGroup) * (w.k / kQuantBlock) * kAsideStep;
}

// The blocks that a part of a product is to ask for: of those that this thread's items of attention read, for the
// caches are its own. As late as there is time for all: other users of the last-level cache leave nothing in it for
// long.
Aside Chunks::aside_of(Program& self, const Program::Op& op, const Part& p, int thread) {
  Aside aside{};
  if (!op.next_attention || self.step_.n_tokens < kAsideRows) return aside;
  const AttentionArgs& a = op.next_attention->attention;
  Program::Worker& worker = self.workers_[thread];
  const std::vector<int32_t>& blocks = worker.read_blocks[a.window > 0];
  const uint64_t tag = self.step_number_ * self.ops_.size() + op.next_attention->index;
  if (worker.aside_tag != tag) worker.aside_tag = tag, worker.aside_spent = 0, worker.blocks_asked = 0;
  const size_t left = blocks.size() - worker.blocks_asked, bytes = aside_bytes(*op.w, p.n_tiles, p.n_rows);
  const size_t time = op.next_attention->aside_bytes * (self.step_.n_tokens / kRowGroup) / self.pool_->size();
  worker.aside_spent += bytes;
  aside.block_bytes = kv_block_bytes(a.kv);
  if (worker.aside_spent + left * aside.block_bytes * kAsideMargin < time) return aside;
  const size_t some = std::min(left, std::max<size_t>(1, (bytes + aside.block_bytes / 2) / aside.block_bytes));
  aside.base = kv_block(a.kv, a.layer, 0, 0);
  aside.block = blocks.data() + worker.blocks_asked, aside.end = aside.block + some;
  worker.blocks_asked += some;
  return aside;
}

// The product into the thread's scratch; leading dimension p.n_tiles * 16.
float* Chunks::product(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act) {
  float* y = self.workers_[thread].y;
  Aside aside = aside_of(self, op, p, thread);
  matmul(*self.kernels_, *op.w, act, p.row, p.n_rows, p.tile, p.n_tiles, y, p.n_tiles * kLanes, &aside);
  return y;
}

// The product into rows of all columns.
void Chunks::product_into(Program& self, const Program::Op& op, const Part& p, int thread, const uint8_t* act,
                          float* rows) {
  Aside aside = aside_of(self, op, p, thread);
  matmul(*self.kernels_, *op.w, act, p.row, p.n_rows, p.tile, p.n_tiles,
         rows + static_cast<size_t>(p.row) * op.w->n + p.tile * kLanes, op.w->n, &aside);
}

// Makes one activation group, rows [begin, begin + n): the operation's norm of the residual stream (the stream as it
// is where there is no norm), or attention's output.
void Chunks::make_group(Program& self, const Program::Op& op, int begin, int n, uint8_t* group) {
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
void Chunks::inputs(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int rows = op.kind == Program::Kind::kHead ? self.step_.n_logits : self.step_.n_tokens;
  make_group(self, op, chunk * kRowGroup, std::min(kRowGroup, rows - chunk * kRowGroup),
             self.input_ + chunk * act_group_bytes(op.in_kind, op.w->k));
}

// Few rows: each thread makes them for itself, which is cheaper than waiting for another to do it.
const uint8_t* Chunks::input_of(Program& self, const Program::Op& op, int rows, int thread) {
  if (rows > kRowGroup) return self.input_;
  Program::Worker& worker = self.workers_[thread];
  const uint64_t tag = self.step_number_ * self.ops_.size() + op.index;
  if (worker.input_tag != tag) {
    make_group(self, op, 0, rows, worker.input);
    worker.input_tag = tag;
  }
  return worker.input;
}

void Chunks::embed(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int end = std::min((chunk + 1) * kEmbedRows, self.step_.n_tokens);
  for (int t = chunk * kEmbedRows; t < end; t++)
    op.table->row(self.step_.token_ids[t], self.residual_ + static_cast<size_t>(t) * self.hidden_);
  if (op.scale == 1) return;
  float* x = self.residual_ + static_cast<size_t>(chunk) * kEmbedRows * self.hidden_;
  for (int64_t i = int64_t{end - chunk * kEmbedRows} * self.hidden_; i > 0; i--) *x++ *= op.scale;
}

// Asks for the cache lines that a key or value head will write: with many sequences each token's lie elsewhere, and a
// store waits for each.
void Chunks::fetch_destination(const Program& self, const QkvArgs& a, const Part& p) {
  const int head = p.tile * kLanes / a.head_dim - a.n_heads, kv_head = head % a.n_kv_heads;
  if (head < 0 || p.n_rows < kFetchRows) return;
  const size_t half = kv_half_bytes(a.kv), row = half / kBlockTokens * 2;  // values lie in pairs of tokens
  int32_t last = -1;
  for (int t = p.row; t < p.row + p.n_rows; t++) {
    const int32_t id = self.write_blocks_[t];
    if (id == last) continue;
    last = id;
    const uint8_t* block = kv_block(a.kv, a.layer, id, kv_head);
    const bool keys = head < a.n_kv_heads;
    const uint8_t* from = keys ? block : block + half + self.step_.positions[t] % kBlockTokens / 2 * row;
    for (size_t i = 0; i < (keys ? half : row); i += 64) __builtin_prefetch(from + i, 1, 3);
  }
}

void Chunks::qkv(void* arg, const void* o, int chunk, int thread) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int rows = self.step_.n_tokens;
  const Part p = sixfold::part_of(*op.w, op.tiles_per_chunk, chunk, rows, head_chunk_rows(rows));
  const uint8_t* act = input_of(self, op, rows, thread);
  if (op.whole_norm) return product_into(self, op, p, thread, act, self.wide_);
  fetch_destination(self, op.qkv, p);
  product(self, op, p, thread, act);
  QkvArgs args = op.qkv;
  args.positions = self.step_.positions;
  self.kernels_->qkv_rows(&args, p.tile * kLanes / args.head_dim, p.row, p.n_rows, self.workers_[thread].y,
                          p.n_tiles * kLanes);
}

// Norms of the whole q and k of a token, then what `qkv` does to each head.
void Chunks::qkv_finish(void* arg, const void* o, int chunk, int) {
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

void Chunks::attention(void* arg, const void* o, int chunk, int thread) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int splits = self.splits_of(op), items = self.items_at_once_;
  for (int i = 0; i < items; i++) attend(self, op, chunk / splits * items + i, chunk % splits, thread);
}

// One part of the `splits_of` an item, which is a tile and a head of keys and values.
void Chunks::attend(Program& self, const Program::Op& op, int item, int split, int thread) {
  const int splits = self.splits_of(op), heads = op.attention.n_kv_heads;
  const Program::Tile& tile = self.tiles_[item / heads];
  const int first = first_key(tile.position, op.attention.window) / kSegmentKeys, n = tile.n_segments - first;
  uint8_t* scratch = self.workers_[thread].attention;
  float* parts = splits > 1 ? self.parts_ + item * self.parts_per_item_ : nullptr;
  self.kernels_->attention(&op.attention, tile.token, tile.n_tokens, tile.position, tile.table, item % heads,
                           first + split * n / splits, first + (split + 1) * n / splits, parts, scratch);
  if (!parts || ++self.parts_done_[item] < splits) return;
  // The last to finish a part merges them all: no further barrier is needed.
  self.parts_done_[item] = 0;
  self.kernels_->attention_merge(&op.attention, tile.token, tile.n_tokens, tile.position, item % heads, parts, scratch);
}

void Chunks::residual(void* arg, const void* o, int chunk, int thread) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const Part p = part_of(op, chunk, self.step_.n_tokens);
  const uint8_t* act = op.in ? op.in : input_of(self, op, self.step_.n_tokens, thread);
  if (op.post_norm) return product_into(self, op, p, thread, act, self.branch_);
  const float* y = product(self, op, p, thread, act);
  const float* bias = op.bias ? op.bias.get() + p.tile * kLanes : nullptr;
  self.kernels_->add_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes, bias,
                          self.residual_ + static_cast<size_t>(p.row) * self.hidden_ + p.tile * kLanes, self.hidden_);
}

// The norm behind a product needs all of its row: a phase of its own.
void Chunks::post_norm(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int row = chunk * kRowGroup, n_rows = std::min(kRowGroup, self.step_.n_tokens - row), n = self.hidden_;
  float* y = self.branch_ + static_cast<size_t>(row) * n;
  self.kernels_->norm_rows(y, n, n_rows, n, op.bias.get(), op.post_norm.get(), op.eps);
  self.kernels_->add_rows(y, n, n_rows, n, nullptr, self.residual_ + static_cast<size_t>(row) * n, n);
}

void Chunks::gate_up(void* arg, const void* o, int chunk, int thread) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const Part p = part_of(op, chunk, self.step_.n_tokens);
  const float* y = product(self, op, p, thread, input_of(self, op, self.step_.n_tokens, thread));
  self.kernels_->gate_up_rows(y, p.n_tiles * kLanes, p.n_rows, p.n_tiles * kLanes / 2, op.act, op.out_kind, op.out,
                              op.w->n / 2, p.row, p.tile * kLanes / 2);
}

}  // namespace sixfold
