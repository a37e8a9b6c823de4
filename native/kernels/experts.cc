// Feed-forward layers of which each token uses a few parts: recording them, and their phases: choose, gather, gate and
// up, down, add.
#include <algorithm>

#include "chunks.h"
#include "recording.h"

namespace sixfold {

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
  op.tiles_per_chunk = tiles_per_chunk(gate_up, 4, units, pool_->size());
  op.n_tile_chunks = ceil_div(gate_up.n / kLanes, op.tiles_per_chunk);
  op.down_tiles_per_chunk = tiles_per_chunk(down, 1, units, pool_->size());
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

// The experts of 8 tokens. Who finishes last sorts the pairs.
void Chunks::choose(void* arg, const void* o, int chunk, int thread) {
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

void Chunks::gather(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  if (chunk >= static_cast<int>(self.group_unit_.size())) return;
  const Program::Unit& unit = self.units_[self.group_unit_[chunk]];
  const int row = (chunk - unit.group) * kRowGroup, n_rows = std::min(kRowGroup, unit.n_pairs - row);
  self.kernels_->norm_group(self.residual_, self.hidden_, self.pair_token_ + unit.pair + row, n_rows, self.hidden_,
                            op.norm.get(), op.eps, op.in_kind,
                            self.expert_input_ + chunk * act_group_bytes(op.in_kind, self.hidden_));
}

void Chunks::expert_gate_up(void* arg, const void* o, int chunk, int thread) {
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

void Chunks::expert_down(void* arg, const void* o, int chunk, int) {
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
void Chunks::add_experts(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int end = std::min((chunk + 1) * kRowGroup, self.step_.n_tokens);
  for (int t = chunk * kRowGroup; t < end; t++)
    for (int u = t * op.n_used; u < (t + 1) * op.n_used; u++)
      self.kernels_->add_scaled(self.expert_out_ + static_cast<size_t>(self.pair_of_[u]) * self.hidden_,
                                self.shares_[u], self.hidden_, self.residual_ + static_cast<size_t>(t) * self.hidden_);
}

}  // namespace sixfold
