#include "program.h"

#include <algorithm>
#include <limits>

#include "chunks.h"
#include "recording.h"

namespace sixfold {

Program::Program(std::shared_ptr<ThreadPool> pool, const KernelTable* kernels, std::shared_ptr<KVCache> kv,
                 int max_tokens, int hidden)
    : pool_(std::move(pool)), kernels_(kernels), kv_(std::move(kv)), max_tokens_(max_tokens), hidden_(hidden) {
  if (max_tokens < 1 || max_tokens > (1 << 16)) refuse("max_tokens must be in 1..65536");
  if (hidden < kQuantBlock || hidden % kQuantBlock != 0) refuse("the hidden size must be a multiple of 32");
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
  if (s.n_hidden < 0 || s.n_hidden > s.n_tokens) refuse("more hidden states wanted than the step has tokens");
  if (s.n_hidden && !vocab_) refuse("the program has no final norm");
  for (int i = 0; i < s.n_hidden; i++)
    if (s.hidden_tokens[i] < 0 || s.hidden_tokens[i] >= s.n_tokens)
      refuse("hidden states wanted of a token that is not in the step");
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
  items_at_once_ = static_cast<int>(tiles_.size()) < kTilesPerThread * pool_->size() ? 1 : kv_->view().n_kv_heads;
  if (parts_ && items < wanted) splits_ = std::min(ceil_div(wanted, items), tiles_[0].n_segments);
}

// In the order in which attention reads them: its chunks are dealt in turn. A sequence's last block is left out: a key
// or a value that another thread writes there would have to wait for it.
void Program::list_read_blocks() {
  for (Worker& worker : workers_)
    for (auto& blocks : worker.read_blocks) blocks.clear();
  if (step_.n_tokens < kAsideRows || items_at_once_ != kv_->view().n_kv_heads) return;
  const size_t most = kAsideBytes / kv_block_bytes(kv_->view()) / workers_.size();
  for (size_t i = 0; i < tiles_.size(); i++) {
    const Tile& tile = tiles_[i];
    const int next = tile.token + tile.n_tokens, last = tile.position + tile.n_tokens - 1;
    if (next < step_.n_tokens && step_.row_of_token[next] == step_.row_of_token[tile.token]) continue;
    for (int windowed = 0; windowed < 2; windowed++) {
      std::vector<int32_t>& blocks = workers_[i % workers_.size()].read_blocks[windowed];
      for (int b = first_key(last, windowed ? window_ : 0) / kBlockTokens; b < last / kBlockTokens; b++)
        if (blocks.size() < most) blocks.push_back(tile.table[b]);
    }
  }
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
    blocks_used_ = std::max(blocks_used_, write_blocks_[t] + 1);
  }
  int written = 0;
  for (int i = 0; i < step.n_logits; i++) logit_row_[i] = step.greedy[i] ? -1 : written++;
  cut_tiles();
  list_read_blocks();

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
        phases_.push_back(
            {op.kind == Kind::kQkv ? Chunks::qkv : Chunks::gate_up, &op,
             op.n_tile_chunks * (op.kind == Kind::kQkv ? ceil_div(tokens, head_chunk_rows(tokens)) : row_chunks)});
        if (op.whole_norm) phases_.push_back({Chunks::qkv_finish, &op, groups});
        break;
      case Kind::kAttention:
        phases_.push_back({Chunks::attention, &op,
                           static_cast<int>(tiles_.size()) * op.attention.n_kv_heads / items_at_once_ * splits_of(op),
                           /*longest_first=*/true});
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
        if (step.n_hidden) phases_.push_back({Chunks::hidden, &op, ceil_div(step.n_hidden, kRowGroup)});
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
  if (times_.first) {
    ends_.resize(phases_.size());
    const uint64_t started_ns = clock_ns();
    pool_->run(phases_, this, ends_.data());
    add_times(started_ns);
  } else {
    pool_->run(phases_, this);
  }
  if (step.n_logits) merge_best();
}

// A phase lasts from the end of the one before to its own.
void Program::add_times(uint64_t started_ns) {
  uint64_t spent[kKinds] = {}, last = started_ns;
  const uint64_t* end = ends_.data();
  for (const Phase& phase : phases_) {
    if (phase.n_chunks <= 0) continue;
    spent[static_cast<int>(static_cast<const Op*>(phase.op)->kind)] += *end - last;
    last = *end++;
  }
  for (int kind = 0; kind < kKinds; kind++) {
    if (!spent[kind]) continue;
    uint64_t* times = times_.first + kind * times_.stride;
    times[0]++;
    times[1] += spent[kind];
  }
}

}  // namespace sixfold
