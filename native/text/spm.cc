#include "spm.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sixfold {
namespace {

constexpr std::string_view kBlank = "\xe2\x96\x81";  // U+2581

uint64_t hash_of(std::string_view text) {
  constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15u;
  uint64_t hash = text.size() * kMultiplier;
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    hash = (hash ^ word) * kMultiplier;
    hash ^= hash >> 29;
  }
  uint64_t word = 0;
  if (i < text.size()) std::memcpy(&word, text.data() + i, text.size() - i);
  hash = (hash ^ word) * kMultiplier;
  hash ^= hash >> 32;
  hash *= kMultiplier;
  return hash ^ (hash >> 29);
}

size_t char_length(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0xc0 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

// The whole character that ends at `end`; text begins at `begin`.
std::string_view last_char(const char* begin, const char* end) {
  const char* p = end - 1;
  while (p > begin && end - p < 4 && (static_cast<uint8_t>(*p) & 0xc0) == 0x80) --p;
  return {p, static_cast<size_t>(end - p)};
}

struct Symbol {
  const char* text;
  uint32_t size;  // 0: merged into its left neighbour
  int32_t prev, next;
  int32_t id;  // -1: not looked up yet
};

struct Candidate {
  float score;
  int32_t left, right;
  uint32_t size;
  int32_t id;
};

// For a heap with the best on top: the highest score, then the leftmost.
bool worse(const Candidate& a, const Candidate& b) {
  return a.score < b.score || (a.score == b.score && a.left > b.left);
}

}  // namespace

struct SpmVocabulary::Scratch {
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

SpmVocabulary::SpmVocabulary(const std::vector<std::string_view>& tokens, const float* scores, const uint8_t* ordinary,
                             const int32_t* byte_ids, int32_t unknown_id)
    : score_(scores, scores + tokens.size()), unknown_id_(unknown_id) {
  std::copy(byte_ids, byte_ids + 256, byte_ids_);
  size_t n_bytes = 0;
  for (const std::string_view token : tokens) n_bytes += token.size();
  bytes_.reserve(n_bytes);
  start_.reserve(tokens.size() + 1);
  start_.push_back(0);
  for (const std::string_view token : tokens) {
    bytes_.insert(bytes_.end(), token.begin(), token.end());
    start_.push_back(bytes_.size());
  }
  size_t n_slots = 16;
  while (n_slots < 2 * tokens.size()) n_slots *= 2;
  mask_ = n_slots - 1;
  slots_.assign(n_slots, Slot{0, -1});
  for (int32_t id = 0; id < static_cast<int32_t>(tokens.size()); ++id) {
    if (!ordinary[id]) continue;
    const std::string_view text = text_of(id);
    if (text.empty()) throw std::invalid_argument("token " + std::to_string(id) + " is empty");
    longest_ = std::max(longest_, text.size());
    const uint64_t hash = hash_of(text);
    const auto tag = static_cast<uint32_t>(hash >> 32);
    size_t i = hash & mask_;
    for (; slots_[i].id >= 0; i = (i + 1) & mask_) {
      if (slots_[i].tag == tag && text_of(slots_[i].id) == text) {
        throw std::invalid_argument("tokens " + std::to_string(slots_[i].id) + " and " + std::to_string(id) +
                                    " have the same text");
      }
    }
    slots_[i] = Slot{tag, id};
    for (size_t at = text.find(kBlank, 1); at != std::string_view::npos; at = text.find(kBlank, at + 1)) {
      const std::string_view before = last_char(text.data(), text.data() + at);
      if (before != kBlank) before_blank_.push_back(before);
    }
  }
  std::sort(before_blank_.begin(), before_blank_.end());
  before_blank_.erase(std::unique(before_blank_.begin(), before_blank_.end()), before_blank_.end());
}

int32_t SpmVocabulary::find(std::string_view text) const {
  if (text.size() > longest_) return -1;
  const uint64_t hash = hash_of(text);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t i = hash & mask_; slots_[i].id >= 0; i = (i + 1) & mask_) {
    if (slots_[i].tag == tag && text_of(slots_[i].id) == text) return slots_[i].id;
  }
  return -1;
}

// Whether a merge may cross the place in front of the blank at `blank`.
bool SpmVocabulary::may_cross(const char* begin, const char* blank) const {
  const std::string_view before = last_char(begin, blank);
  return before == kBlank || std::binary_search(before_blank_.begin(), before_blank_.end(), before);
}

void SpmVocabulary::encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const {
  std::vector<char> written;
  written.reserve(text.size() + text.size() / 2 + kBlank.size());
  if (prefix) written.insert(written.end(), kBlank.begin(), kBlank.end());
  for (const char c : text) {
    if (c == ' ') {
      written.insert(written.end(), kBlank.begin(), kBlank.end());
    } else {
      written.push_back(c);
    }
  }
  Scratch scratch;
  const char* const end = written.data() + written.size();
  for (const char* begin = written.data(); begin < end;) {
    const char* stop = begin + std::min<size_t>(char_length(*begin), end - begin);
    while (stop < end &&
           (std::string_view(stop, std::min<size_t>(kBlank.size(), end - stop)) != kBlank || may_cross(begin, stop))) {
      stop += std::min<size_t>(char_length(*stop), end - stop);
    }
    merge({begin, static_cast<size_t>(stop - begin)}, scratch, ids);
    begin = stop;
  }
}

void SpmVocabulary::merge(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  std::vector<Candidate>& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (size_t at = 0; at < text.size();) {
    const size_t size = std::min(char_length(text[at]), text.size() - at);
    const auto i = static_cast<int32_t>(symbols.size());
    at += size;
    symbols.push_back({text.data() + at - size, static_cast<uint32_t>(size), i - 1, at < text.size() ? i + 1 : -1, -1});
  }
  const auto propose = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const uint32_t size = symbols[left].size + symbols[right].size;
    const int32_t id = find({symbols[left].text, size});
    if (id < 0) return;
    heap.push_back({score_[id], left, right, size, id});
    std::push_heap(heap.begin(), heap.end(), worse);
  };
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) propose(i - 1, i);
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end(), worse);
    heap.pop_back();
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    // One of them was merged with somebody else meanwhile.
    if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) continue;
    left.size = best.size;
    left.id = best.id;
    right.size = 0;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].prev = best.left;
    propose(left.prev, best.left);
    propose(best.left, left.next);
  }
  for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[i].next) {
    const std::string_view piece(symbols[i].text, symbols[i].size);
    const int32_t id = symbols[i].id >= 0 ? symbols[i].id : find(piece);
    if (id >= 0) {
      ids.push_back(id);
    } else {
      spell(piece, ids);
    }
  }
}

void SpmVocabulary::spell(std::string_view text, std::vector<int32_t>& ids) const {
  for (const char c : text) {
    if (byte_ids_[static_cast<uint8_t>(c)] < 0) {  // then the character is unknown as a whole
      if (unknown_id_ >= 0) ids.push_back(unknown_id_);
      return;
    }
  }
  for (const char c : text) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
}

}  // namespace sixfold
