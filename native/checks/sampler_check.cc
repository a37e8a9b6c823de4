// Draws and scores of a build are those of the portable one, bit for bit; rows and scratch lie exactly in their memory.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "check.h"
#include "sample.h"

namespace sixfold {
namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

struct Score {
  int32_t rank;
  double logprob;
  std::vector<int32_t> ids;
  std::vector<double> logprobs;

  bool operator==(const Score& o) const {
    return rank == o.rank && logprob == o.logprob && ids == o.ids && logprobs == o.logprobs;
  }
};

Score score(const SamplerTable& table, const std::vector<float>& row, int32_t target, size_t n_top, void* scratch) {
  Score s{0, 0, std::vector<int32_t>(n_top), std::vector<double>(n_top)};
  s.rank = table.score(row.data(), row.size(), target, n_top, &s.logprob, s.ids.data(), s.logprobs.data(), scratch);
  return s;
}

}  // namespace

void check_sampler(const Build& build) {
  std::mt19937 random(3);
  const std::string name = std::string(build.kernels->name) + " sampler";
  const SamplerTable &here = *build.sampler, &plain = *sampler_generic();
  for (const size_t n : {1, 2, 15, 16, 17, 255, 1023, 1025, 5000}) {
    const std::unique_ptr<void, Free> scratch(std::aligned_alloc(64, sampler_scratch_bytes(n)));
    for (int trial = 0; trial < 30; trial++) {
      std::vector<float> row(n);
      const float spread = std::ldexp(1.0f, static_cast<int>(random() % 9) - 4);
      for (float& x : row) x = std::normal_distribution<float>(0, spread)(random);
      if (trial % 5 == 0)
        for (float& x : row) x = std::round(x);  // ties
      if (trial == 6) row[n / 2] = NAN;
      if (trial == 7) row[n / 2] = INFINITY;
      if (trial == 8) row.assign(n, -INFINITY);
      if (trial == 9 && n > 1) row[0] = -INFINITY;
      RowParams p{random(), 1.0, 1.4f, -INFINITY, 0, 0};
      if (trial % 2) p.top_k = static_cast<int32_t>(1 + random() % n);
      if (trial % 3 == 1) p.top_p = static_cast<double>(random() % 1000) / 1000;
      if (trial % 4 == 3) p.min_x = -3.0f;
      if (trial % 10 == 4) p.scale = 0;
      expect(here.usable(row.data(), n) == plain.usable(row.data(), n), name, "usable rows differ");
      const int32_t token = here.draw(row.data(), n, &p, trial, scratch.get());
      expect(token == plain.draw(row.data(), n, &p, trial, scratch.get()), name, "draws differ");
      expect(token < static_cast<int32_t>(n) && (token < 0) == !here.usable(row.data(), n), name, "not a token");
      if (token < 0) continue;
      const size_t n_top = std::min<size_t>(n, random() % 20);
      expect(score(here, row, token, n_top, scratch.get()) == score(plain, row, token, n_top, scratch.get()), name,
             "scores differ");
    }
  }
}

}  // namespace sixfold
