#include "recording.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "chunks.h"

namespace sixfold {

void refuse(const std::string& message) { throw std::invalid_argument(message); }

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

void Program::split(Op& op, int unit) {
  op.tiles_per_chunk = tiles_per_chunk(*op.w, unit, ceil_div(max_tokens_, kChunkRows), pool_->size());
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
  window_ = std::max(window_, window);
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
  Op* next_attention = nullptr;
  for (size_t i = ops_.size(); i-- > 0;) {
    Op& op = *ops_[i];
    if (op.kind == Kind::kAttention) next_attention = &op;
    if (!next_attention || !op.w || op.kind == Kind::kExperts) continue;
    op.next_attention = next_attention;
    next_attention->aside_bytes += aside_bytes(*op.w, op.w->n / kLanes, kRowGroup);
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

}  // namespace sixfold
