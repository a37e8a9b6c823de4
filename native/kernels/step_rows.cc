#include "step_rows.h"

#include <algorithm>
#include <stdexcept>

namespace sixfold {

RowFault check_rows(const StepRows& rows, const SlotTable& slots) {
  for (int r = 0; r < rows.n; r++) {
    const int32_t slot = rows.slots[r];
    if (slot < 0 || slot >= slots.n) return kNoSuchSlot;
    if (slots.generations[slot] != rows.generations[r] || slots.incarnations[slot] != rows.incarnations[r])
      return kOtherLife;
    if (rows.counts[r] < 1 || rows.starts[r] < 0 ||
        int64_t{rows.starts[r]} + rows.counts[r] > std::min(slots.lengths[slot], slots.width))
      return kBeyondTokens;
  }
  return kRowsFit;
}

void append_drawn(const StepRows& rows, const int32_t* drawn, const SlotTable& slots) {
  for (int r = 0; r < rows.n; r++) {
    if (!(rows.flags[r] & kRowSamples)) continue;
    const int32_t slot = rows.slots[r];
    if (slots.lengths[slot] >= slots.width) throw std::invalid_argument("a slot is full");
    slots.tokens[int64_t{slot} * slots.width + slots.lengths[slot]++] = std::max(drawn[r], 0);
  }
}

void SpreadRows::spread(const StepRows& rows, const SlotTable& slots, const uint8_t* needs_logits,
                        const int32_t* scored, int n_scored) {
  token_ids.clear(), positions.clear(), row_of_token.clear();
  logit_tokens.clear(), logit_rows.clear(), greedy.clear();
  for (int r = 0; r < rows.n; r++) {
    const int32_t slot = rows.slots[r], start = rows.starts[r], count = rows.counts[r];
    if (slot < 0 || slot >= slots.n || count < 1 || start < 0 || int64_t{start} + count > slots.width)
      throw std::invalid_argument("a row is not within its slot's tokens");
    const int32_t* tokens = slots.tokens + int64_t{slot} * slots.width + start;
    token_ids.insert(token_ids.end(), tokens, tokens + count);
    for (int32_t i = 0; i < count; i++) positions.push_back(start + i);
    row_of_token.insert(row_of_token.end(), count, r);
    if (!(rows.flags[r] & kRowSamples)) continue;
    logit_tokens.push_back(static_cast<int32_t>(token_ids.size()) - 1);
    logit_rows.push_back(r);
    greedy.push_back(!needs_logits[slot]);
  }
  logit_tokens.insert(logit_tokens.end(), scored, scored + n_scored);
  logit_rows.insert(logit_rows.end(), n_scored, -1);
  greedy.insert(greedy.end(), n_scored, 0);
}

}  // namespace sixfold
