// A step's rows and the worker's slots, as Python's arrays hold them: checked, spread into tokens, advanced. A few
// loops over a few numbers, but between two steps at batch 1 every cache is full of weights, and the same written with
// array operations costs as much as a twelfth of the step.
#pragma once

#include <cstdint>
#include <vector>

namespace sixfold {

constexpr int32_t kRowSamples = 1;  // flag: the row's last token draws the next one

// Columns of a step plan, one entry per row.
struct StepRows {
  int n;
  const int32_t *slots, *generations, *incarnations, *starts, *counts, *flags;
};

// The worker's permanent rows, one entry per slot.
struct SlotTable {
  int n, width;                               // slots; tokens that each has room for
  int32_t* tokens;                            // [n][width]
  const int32_t *generations, *incarnations;  // [n]
  int32_t* lengths;                           // [n] known tokens
};

enum RowFault { kRowsFit, kNoSuchSlot, kOtherLife, kBeyondTokens };

// Whether every row matches its slot's key and computes known tokens only.
RowFault check_rows(const StepRows& rows, const SlotTable& slots);

// Adds its drawn token, or 0 where it is negative, to the slot of every row that samples. The rows have
// been checked. Throws std::invalid_argument: a slot has no room for it.
void append_drawn(const StepRows& rows, const int32_t* drawn, const SlotTable& slots);

// The rows' tokens, one row after another, and whose logits are wanted.
struct SpreadRows {
  std::vector<int32_t> token_ids, positions, row_of_token;
  std::vector<int32_t> logit_tokens, logit_rows;  // of the rows that sample; then of `scored`, whose row is -1
  std::vector<uint8_t> greedy;                    // as Step::greedy

  // needs_logits: [slots] 0 where the argmax is enough. scored: further tokens of the step whose logits are wanted.
  // Throws std::invalid_argument: a row without tokens, or beyond its slot's room.
  void spread(const StepRows& rows, const SlotTable& slots, const uint8_t* needs_logits, const int32_t* scored,
              int n_scored);
};

}  // namespace sixfold
