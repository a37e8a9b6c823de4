// The head of a program, fused with the choice of the likeliest token: greedy rows write no logits.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "chunks.h"
#include "recording.h"

namespace sixfold {

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

// The input of the head as plain floats, for whoever wants hidden states and no token.
void Chunks::hidden(void* arg, const void* o, int chunk, int) {
  Program& self = program(arg);
  const Program::Op& op = operation(o);
  const int row = chunk * kRowGroup, n_rows = std::min(kRowGroup, self.step_.n_hidden - row), n = self.hidden_;
  float* out = self.step_.hidden + static_cast<size_t>(row) * n;
  for (int r = 0; r < n_rows; r++)
    std::memcpy(out + static_cast<size_t>(r) * n,
                self.residual_ + static_cast<size_t>(self.step_.hidden_tokens[row + r]) * n, sizeof(float) * n);
  self.kernels_->norm_rows(out, n, n_rows, n, nullptr, op.norm.get(), op.eps);
}

void Chunks::head(void* arg, const void* o, int chunk, int thread) {
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
    float best = worker.best[row];
    int32_t id = worker.best_id[row];
    // A chunk taken from another thread's share may lie before what was found: there an equal value wins.
    if (column < id) best = std::nextafter(best, -std::numeric_limits<float>::infinity()), id = -1;
    worker.nan[row] |= self.kernels_->argmax(y, n, column, &best, &id);
    if (id >= 0) worker.best[row] = best, worker.best_id[row] = id;
    const int out = self.logit_row_[row];
    if (out >= 0) std::memcpy(step.logits + static_cast<size_t>(out) * self.vocab_ + column, y, sizeof(float) * n);
  }
}

// Of what each thread found in its chunks; ties to the lowest id.
void Program::merge_best() {
  for (int i = 0; i < step_.n_logits; i++) {
    float best = -std::numeric_limits<float>::infinity();
    int32_t id = -1;
    uint8_t nan = 0;
    for (const Worker& w : workers_) {
      if (w.best_tag != step_number_) continue;
      nan |= w.nan[i];
      if (w.best[i] > best || (w.best[i] == best && w.best_id[i] >= 0 && (id < 0 || w.best_id[i] < id)))
        best = w.best[i], id = w.best_id[i];
    }
    step_.out_ids[i] = id;
    step_.out_nan[i] = nan || id < 0 || best == std::numeric_limits<float>::infinity();
  }
}

}  // namespace sixfold
