// Random bytes, and texts of a small vocabulary, from several threads at once: what is encoded spells the text.
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../text/spm.h"
#include "cases.h"

using namespace sixfold;

namespace {

const std::string kBlank = "\xe2\x96\x81";  // U+2581

// Bytes first, then pieces.
std::vector<std::string> tokens() {
  std::vector<std::string> found;
  for (int b = 0; b < 256; b++) found.push_back("<" + std::to_string(b) + ">");
  for (const char* piece : {"a", "b", "c", "ab", "abc", "bc", "cab", "\xc3\xa4", "a\xc3\xa4"}) found.push_back(piece);
  for (const std::string& piece : {kBlank, kBlank + "a", kBlank + "abc", kBlank + kBlank, "c" + kBlank + "a"})
    found.push_back(piece);
  return found;
}

std::string with_blanks(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == ' ' ? kBlank : std::string(1, c);
  return out;
}

}  // namespace

void check_spm(Report& report) {
  const std::vector<std::string> texts = tokens();
  const std::vector<std::string_view> views(texts.begin(), texts.end());
  std::vector<float> scores;
  std::vector<uint8_t> ordinary;
  std::vector<int32_t> byte_ids;
  for (size_t i = 0; i < texts.size(); i++) {
    scores.push_back(-static_cast<float>(i * 7 % 11));
    ordinary.push_back(i >= 256);
    if (i < 256) byte_ids.push_back(static_cast<int32_t>(i));
  }
  const SpmVocabulary vocabulary(views, scores.data(), ordinary.data(), byte_ids.data(), -1);
  bool good[3];
  const auto work = [&](unsigned seed) {
    good[seed] = true;
    std::mt19937 random(seed);
    for (int trial = 0; trial < 300; trial++) {
      std::string text(random() % 60, 'a');
      for (char& c : text) c = trial % 3 ? "abc \xc3\xa4"[random() % 6] : static_cast<char>(random());
      std::vector<int32_t> ids;
      // Exactly as long as its memory, so that reading beyond it is seen.
      const std::vector<char> exact(text.begin(), text.end());
      vocabulary.encode({exact.data(), exact.size()}, false, ids);
      std::string spelled;
      for (const int32_t id : ids) spelled += id < 256 ? std::string(1, static_cast<char>(id)) : texts[id];
      good[seed] &= spelled == with_blanks(text);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; i++) threads.emplace_back(work, i);
  for (std::thread& t : threads) t.join();
  report.expect(good[0] && good[1] && good[2], "tokens do not spell the text");
}
