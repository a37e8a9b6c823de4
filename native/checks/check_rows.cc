// The kernels that work on rows, one by one: norms, gates, caps, sums, experts, argmax, and what the cache rounds.
#include <cmath>
#include <cstring>
#include <limits>

#include "cases.h"
#include "kv_cache.h"
#include "truth.h"

using namespace sixfold;

namespace {

const float kInfinity = std::numeric_limits<float>::infinity();

// From the sizes that matter to those that only a fault would produce.
std::vector<float> steep_floats(int n) {
  std::vector<float> x = random_floats(n, 4);
  const float ends[] = {0.0f, -0.0f, 1e-20f, 30, -30, 87, -87, 89, -89, 1e4f, -1e4f};
  for (int i = 0; i < n && i < 11; i++) x[i] = ends[i];
  return x;
}

void check_norms(const KernelTable& kernels, Report& report) {
  const std::vector<float> weight = random_floats(288), bias = random_floats(288);
  for (const int n : {32, 64, 96, 288}) {
    const int ld = n + 16;
    const std::vector<float> x = random_floats(9 * ld);
    std::vector<float> normed = x;
    kernels.norm_rows(normed.data(), ld, 9, n, bias.data(), weight.data(), 1e-5f);
    std::vector<float> biased = x;
    kernels.norm_rows(biased.data(), ld, 9, n, bias.data(), nullptr, 0);
    const int32_t rows[] = {8, 0, 3};
    std::vector<float> group(kRowGroup * n + 16), plain(group.size());
    float* aligned = group.data() + (64 - reinterpret_cast<uintptr_t>(group.data()) % 64) % 64 / 4;
    kernels.norm_group(x.data(), ld, rows, 3, n, weight.data(), 1e-5f, kActFloat, reinterpret_cast<uint8_t*>(aligned));
    for (int r = 0; r < 9; r++) {
      truth::Row row(x.begin() + r * ld, x.begin() + r * ld + n);
      for (int g = 0; g < 3; g++) {
        if (rows[g] != r) continue;
        const truth::Row want = truth::rms_norm(row, weight.data(), 1e-5f);
        std::vector<float> got(n);
        for (int i = 0; i < n; i++) got[i] = aligned[i * kRowGroup + g];
        report.expect_below(error(got, want), 1e-6, "a norm into a group");
      }
      for (int i = 0; i < n; i++) row[i] = static_cast<float>(row[i]) + bias[i];
      report.expect_below(error(truth::Row(biased.begin() + r * ld, biased.end()), row), 1e-7, "a bias");
      const truth::Row want = truth::rms_norm(row, weight.data(), 1e-5f);
      report.expect_below(error(truth::Row(normed.begin() + r * ld, normed.end()), want), 1e-6, "a norm of rows");
      report.expect(std::memcmp(&normed[r * ld + n], &x[r * ld + n], 64) == 0, "a norm writes beside its row");
    }
  }
}

void check_gates(const KernelTable& kernels, Report& report) {
  const int k = 96, column = 32, n_out = 64;
  for (const Activation act : {kSilu, kGelu})
    for (int n_rows = 1; n_rows <= 17; n_rows++) {
      std::vector<float> y = random_floats(n_rows * 2 * n_out, 3);
      const std::vector<float> steep = steep_floats(16);
      std::memcpy(y.data(), steep.data(), 64);  // gates; the next 16 are their factors
      y[15] = NAN;
      std::vector<float> out(4 * kRowGroup * k + 16);
      float* groups = out.data() + (64 - reinterpret_cast<uintptr_t>(out.data()) % 64) % 64 / 4;
      kernels.gate_up_rows(y.data(), 2 * n_out, n_rows, n_out, act, kActFloat, reinterpret_cast<uint8_t*>(groups), k, 8,
                           column);
      for (int r = 0; r < n_rows; r++) {
        const int side_by_side = is_single(r, n_rows) ? 1 : kRowGroup;
        for (int i = 0; i < n_out; i++) {
          const float* pair = &y[r * 2 * n_out + i / 16 * 32 + i % 16];
          const double want = truth::gated(pair[0], pair[16], act == kGelu);
          const double got = groups[(1 + r / 8) * kRowGroup * k + (column + i) * side_by_side + r % 8];
          if (pair[0] != pair[0]) {
            report.expect(got != got, "a gate that is no number");
            continue;
          }
          // Far to the left both are as good as zero.
          report.expect_below(std::fabs(got - want) / (std::fabs(want) + 1e-3 * std::fabs(pair[16])), 2e-6,
                              std::string(act == kGelu ? "gelu" : "silu") + " of " + std::to_string(pair[0]));
        }
      }
    }
}

void check_sums(const KernelTable& kernels, Report& report) {
  for (const int n : {16, 48, 160}) {
    const std::vector<float> y = random_floats(5 * (n + 16)), x = random_floats(5 * (n + 32)), bias = random_floats(n);
    for (const bool with_bias : {false, true}) {
      std::vector<float> sum = x;
      kernels.add_rows(y.data(), n + 16, 5, n, with_bias ? bias.data() : nullptr, sum.data(), n + 32);
      for (int i = 0; i < 5 * (n + 32); i++) {
        const int r = i / (n + 32), c = i % (n + 32);
        const float branch = c < n ? with_bias ? y[r * (n + 16) + c] + bias[c] : y[r * (n + 16) + c] : 0;
        report.expect(sum[i] == x[i] + branch, "rows added");
      }
    }
    std::vector<float> scaled = x;
    kernels.add_scaled(y.data(), 0.3f, n, scaled.data());
    truth::Row want(x.begin(), x.end());
    for (int i = 0; i < n; i++) want[i] += 0.3f * double{y[i]};
    report.expect_below(error(scaled, want), 1e-6, "a scaled row added");
    std::vector<float> unknown(n, NAN);
    kernels.softcap(unknown.data(), n, 30.0f);
    for (const float v : unknown) report.expect(v != v, "a soft cap of what is no number");
    std::vector<float> capped = steep_floats(n);
    for (float& v : capped) v *= 10;
    for (int i = 0; i < n; i++) want[i] = truth::capped(capped[i], 30.0);
    kernels.softcap(capped.data(), n, 30.0f);
    want.resize(n);
    report.expect_below(error(capped, want), 1e-6, "a soft cap");
  }
}

void check_experts(const KernelTable& kernels, Report& report) {
  for (const int n : {1, 2, 15, 16, 17, 60})
    for (const int used : {1, 2, 8})
      for (const bool renormalize : {false, true}) {
        if (used > n) continue;
        std::vector<float> scores = random_floats(64, 2);
        if (n > 2) scores[n - 1] = scores[0];  // the lower index first
        const truth::Row row(scores.begin(), scores.begin() + n);
        std::vector<int> want_ids;
        truth::Row want;
        truth::experts(row, used, renormalize, &want_ids, &want);
        std::vector<int32_t> ids(used);
        std::vector<float> shares(used), spoiled = scores;
        kernels.choose_experts(scores.data(), n, used, renormalize, ids.data(), shares.data());
        report.expect(ids == want_ids, "the choice of experts");
        report.expect_below(error(shares, want), 1e-6, "the shares of experts");
        spoiled[n / 2] = NAN;
        kernels.choose_experts(spoiled.data(), n, used, renormalize, ids.data(), shares.data());
        for (const float share : shares) report.expect(share != share, "experts of a score that is no number");
      }
}

void check_argmax(const KernelTable& kernels, Report& report) {
  for (const int n : {1, 15, 16, 17, 33, 64})
    for (int at = 0; at < n; at++) {
      std::vector<float> y = random_floats(80);
      for (int i = n; i < 80; i++) y[i] = NAN;  // not part of the row
      y[at] = 9;
      if (at + 3 < n) y[at + 3] = 9;
      float best = -kInfinity;
      int32_t id = -1;
      report.expect(kernels.argmax(y.data(), n, 100, &best, &id) == 0 && id == 100 + at && best == 9, "argmax");
      report.expect(kernels.argmax(y.data(), n, 500, &best, &id) == 0 && id == 100 + at, "argmax of equals");
      y[at] = NAN;
      report.expect(kernels.argmax(y.data(), n, 0, &best, &id) == 1, "argmax of what is no number");
    }
  std::vector<float> nothing(16, -kInfinity);
  float best = -kInfinity;
  int32_t id = -1;
  report.expect(kernels.argmax(nothing.data(), 16, 0, &best, &id) == 0 && id == -1, "argmax of nothing");
}

// Values, and keys that are not rotated, bit for bit as they lie in the cache.
void check_cache(const KernelTable& kernels, Report& report) {
  const int d = 64, tokens = 40;
  const std::vector<float> still = [&] {
    std::vector<float> rope(tokens * d);
    for (int i = 0; i < tokens * d; i++) rope[i] = i % d < d / 2;
    return rope;
  }();
  for (const bool is_float : {false, true}) {
    KVCache kv(1, 1, d, 3, is_float);
    std::vector<int32_t> positions(tokens), blocks(tokens);
    for (int t = 0; t < tokens; t++) positions[t] = t, blocks[t] = 2 - t / kBlockTokens;
    std::vector<float> q(tokens * d);
    QkvArgs args{
        kv.view(),     0,       1, 1, d, nullptr, nullptr, nullptr, 0, kRopeHalves, d, still.data(), positions.data(),
        blocks.data(), q.data()};
    std::vector<float> y = random_floats(tokens * d);
    for (float& v : y) {
      uint32_t bits;
      std::memcpy(&bits, &v, 4);
      if (below(2)) bits = (bits & 0xffff0000) | 0x8000;  // halfway between two bfloat16
      std::memcpy(&v, &bits, 4);
    }
    y[7] = NAN, y[8] = kInfinity, y[9] = 3.4e38f, y[10] = 2e-38f;  // below 2^-126 avx512 writes zero
    const uint32_t nans[] = {0x7f800001, 0x7fffffff, 0xffffffff};  // rounded like numbers they would become others
    std::memcpy(&y[11], nans, sizeof nans);
    for (int begin = 0, n = 1; begin < tokens; begin += n, n = std::min(n + 1, tokens - begin))
      for (const int head : {1, 2}) {
        std::vector<float> some(y.begin() + begin * d, y.begin() + (begin + n) * d);
        if (head == 1)
          for (float& v : some) v = std::isfinite(v) ? v : 1;  // zero times infinity is no number
        kernels.qkv_rows(&args, head, begin, n, some.data(), d);
      }
    for (int t = 0; t < tokens; t++) {
      std::vector<float> keys(kBlockTokens * d), values(keys.size());
      kv.read_block(0, blocks[t], 0, keys.data(), values.data());
      for (int i = 0; i < d; i++) {
        const float x = y[t * d + i], want = is_float ? x : truth::bfloat16(x);
        const float key = std::isfinite(x) ? want : 1, got = values[t % kBlockTokens * d + i];
        report.expect(got == want || (got != got && want != want), "a value in the cache");
        report.expect(keys[t % kBlockTokens * d + i] == key, "a key in the cache");
      }
    }
  }
}

}  // namespace

void check_rows(const KernelTable& kernels, Report& report) {
  check_norms(kernels, report);
  check_gates(kernels, report);
  check_sums(kernels, report);
  check_experts(kernels, report);
  check_argmax(kernels, report);
  check_cache(kernels, report);
}
