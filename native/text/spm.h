// SentencePiece's merging tokenizer over a vocabulary of texts with scores.
//
// A text begins as its characters. Of all neighbours that together are a token, the pair with the highest score becomes
// one piece (of equal scores the leftmost), until no two neighbours are a token. Pieces that are no token are spelled
// with byte tokens. Blanks are written as U+2581.
//
// No pair is ever listed: a candidate is looked up by its text, so that a vocabulary is ready as soon as its tokens are
// in a hash table (262,144 tokens: 0.03 s).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace sixfold {

class SpmVocabulary {
 public:
  // `tokens[i]` is the text of token i; only those with `ordinary[i]` can be found in a text. `byte_ids[b]` is the
  // token that spells byte b, or -1. `unknown_id` stands for what cannot be spelled at all, or is -1: then it is left
  // out. The texts are copied. Throws std::invalid_argument: two ordinary tokens have the same text, or one is empty.
  SpmVocabulary(const std::vector<std::string_view>& tokens, const float* scores, const uint8_t* ordinary,
                const int32_t* byte_ids, int32_t unknown_id);

  // Appends the ids of `text`: UTF-8, blanks not yet written as U+2581. `prefix`: one more blank in front.
  // Any thread may call; the work is n log n in the length.
  void encode(std::string_view text, bool prefix, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint32_t tag;  // upper half of the hash
    int32_t id;    // -1: free
  };
  struct Scratch;

  std::string_view text_of(int32_t id) const { return {bytes_.data() + start_[id], start_[id + 1] - start_[id]}; }
  int32_t find(std::string_view text) const;  // -1: no ordinary token
  void merge(std::string_view text, Scratch& scratch, std::vector<int32_t>& ids) const;
  void spell(std::string_view text, std::vector<int32_t>& ids) const;
  bool may_cross(const char* before, const char* begin) const;

  std::vector<char> bytes_;
  std::vector<size_t> start_;
  std::vector<float> score_;
  std::vector<Slot> slots_;
  size_t mask_ = 0;
  size_t longest_ = 0;
  int32_t byte_ids_[256];
  int32_t unknown_id_;
  // Characters that stand in front of a U+2581 inside some token, sorted. Nowhere else does a merge cross the place in
  // front of a blank, so words can be merged one by one.
  std::vector<std::string_view> before_blank_;
};

}  // namespace sixfold
