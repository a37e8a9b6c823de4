// Drawing and scoring of rows of every shape.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "cases.h"
#include "truth.h"

using namespace sixfold;

namespace {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

std::vector<float> row_of_kind(int kind, int n) {
  std::vector<float> x = random_floats(n, std::pow(10.0f, static_cast<float>(below(3) - 1)));
  for (int i = 0; i < n; i++) {
    if (kind == 1) x[i] = 3.5f;
    if (kind == 2) x[i] = std::nearbyint(x[i]);
    if (kind == 3 && below(10) < 7) x[i] = -INFINITY;
    if (kind == 4) x[i] *= 1e37f;
    if (kind == 5 && i % 7 == 0) x[i] += 30;
    if (kind == 6) x[i] = below(2) ? 0.0f : -0.0f;
  }
  if (kind == 3) x[below(n)] = 1;
  if (kind == 7) x[below(n)] = below(2) ? NAN : INFINITY;
  if (kind == 8) std::fill(x.begin(), x.end(), -INFINITY);
  return x;
}

template <typename T>
T any_of(std::initializer_list<T> values) {
  return values.begin()[below(static_cast<int>(values.size()))];
}

RowParams random_params() {
  RowParams p;
  p.seed = uint64_t{random_bits()} << 32 | random_bits();
  p.top_p = any_of({1.0, 1.0, 0.9, 0.5, 0.01, 0.999, 1e-12});
  p.scale = any_of({0.0f, 1.442695f, 1.442695f / 0.7f, 0.7f, 2.0f, 10.0f, 1e6f});
  p.min_x = any_of({-INFINITY, -INFINITY, std::log2(0.05f), -1.0f, 0.0f});
  p.top_k = any_of({0, 0, 1, 2, 5, 50, 1000, INT32_MAX});
  p.choice = static_cast<uint32_t>(below(64));
  return p;
}

void check_score(const SamplerTable& sampler, const std::vector<float>& row, bool usable, void* scratch,
                 Report& report) {
  const int n = static_cast<int>(row.size()), target = below(n), n_top = std::min(n, any_of({0, 1, 5, 20}));
  std::vector<int32_t> ids(n_top + 1);
  std::vector<double> logprobs(n_top + 1);
  double logprob = 0;
  const int rank = sampler.score(row.data(), n, target, n_top, &logprob, ids.data(), logprobs.data(), scratch);
  if (!usable) return report.expect(rank == kUnusable, "the rank in an unusable row");
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  report.expect(order[rank] == target, "a rank");
  const double top = row[order[0]];
  double sum = 0;
  for (const float x : row) sum += std::exp(x - top);
  const auto near = [&](double got, int id) {
    const double want = std::max(row[id] - top - std::log(sum), kLogprobFloor);
    report.expect_below(std::fabs(got - want), 1e-6, "a logprob");
  };
  near(logprob, target);
  for (int i = 0; i < n_top; i++) {
    report.expect(ids[i] == order[i], "the likeliest tokens");
    near(logprobs[i], order[i]);
  }
}

// What a mask leaves is drawn from as if everything else were at -inf.
void check_allowed(const SamplerTable& sampler, const std::vector<float>& row, const RowParams& params,
                   int64_t position, void* scratch, Report& report) {
  const int n = static_cast<int>(row.size()), kind = below(4);
  std::vector<uint32_t> mask((n + 31) / 32);
  for (uint32_t& word : mask) word = kind == 0 ? 0 : kind == 1 ? ~0u : kind == 2 ? 1u << below(32) : random_bits();
  std::vector<float> masked = row;
  for (int i = 0; i < n; i++) {
    if (!(mask[i / 32] >> (i % 32) & 1)) masked[i] = -INFINITY;
  }
  const bool usable = sampler.usable(row.data(), n) != 0;
  const int left = truth::draw(masked, params, position), want = !usable    ? kUnusable
                                                                 : left < 0 ? kNothingAllowed
                                                                            : left;
  report.expect(sampler.draw_allowed(row.data(), n, mask.data(), &params, position, scratch) == want,
                "a draw from what a mask leaves of " + std::to_string(n));
}

}  // namespace

void check_sampler(const SamplerTable& sampler, Report& report) {
  random_bits.seed(11);
  const int widths[] = {1, 2, 15, 16, 17, 31, 33, 255, 256, 1023, 1025, 3001};
  for (int i = 0; i < 9 * 12 * 4; i++) {
    const int n = widths[i % 12];
    const std::vector<float> row = row_of_kind(i / 12 % 9, n);
    const std::unique_ptr<void, Free> scratch(std::aligned_alloc(64, (sampler_scratch_bytes(n) + 63) / 64 * 64));
    for (int draws = 0; draws < 4; draws++) {
      const RowParams params = random_params();
      const auto position = static_cast<int64_t>(random_bits()) << 8;
      const int want = truth::draw(row, params, position);
      report.expect(sampler.draw(row.data(), n, &params, position, scratch.get()) == want,
                    "a draw from " + std::to_string(n) + " of kind " + std::to_string(i / 12 % 9));
      check_allowed(sampler, row, params, position, scratch.get(), report);
      report.expect(sampler.usable(row.data(), n) == (want >= 0), "whether a row is usable");
      if (draws == 0) check_score(sampler, row, want >= 0, scratch.get(), report);
    }
  }
}
