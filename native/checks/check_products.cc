// Packing, activation groups and matrix products.
#include <cmath>
#include <cstring>

#include "cases.h"
#include "pack.h"
#include "truth.h"

using namespace sixfold;

namespace {

// Activation groups of one or more rows, aligned as the kernels expect.
class Groups {
 public:
  explicit Groups(size_t bytes) : bytes_(bytes + 64) {}
  uint8_t* data() { return bytes_.data() + (64 - reinterpret_cast<uintptr_t>(bytes_.data()) % 64); }

 private:
  std::vector<uint8_t> bytes_;
};

truth::Row row_of(const std::vector<float>& x, int r, int k) {
  return truth::Row(x.begin() + static_cast<ptrdiff_t>(r) * k, x.begin() + static_cast<ptrdiff_t>(r + 1) * k);
}

// Rows [begin, begin + rows) of x times the matrix.
std::vector<float> product(const KernelTable& kernels, const PackedMatrix& w, const std::vector<float>& x, int begin,
                           int rows) {
  Groups act(act_group_bytes(w.act, w.k));
  kernels.pack_group(x.data() + static_cast<size_t>(begin) * w.k, w.k, rows, w.k, w.act, act.data());
  std::vector<float> out(static_cast<size_t>(rows) * w.n);
  matmul(kernels, w, act.data(), 0, rows, 0, w.n / kLanes, out.data(), w.n);
  return out;
}

std::shared_ptr<PackedMatrix> packed(const truth::Tensor& t, ThreadPool& pool, bool float_activations = false) {
  return pack_matrix({PackSource{t.ggml_type, t.bytes.data(), t.bytes.size(), t.n, t.k}}, false, float_activations,
                     pool, std::make_shared<Arena>());
}

// Each row against the truth; and the same bits with any number of rows beside it.
void check_product(const KernelTable& kernels, ThreadPool& pool, const truth::Tensor& t, const std::vector<float>& x,
                   const std::string& what, Report& report) {
  const auto w = packed(t, pool);
  std::vector<float> unpacked(static_cast<size_t>(t.n) * t.k);
  unpack_matrix(*w, unpacked.data());
  report.expect_below(error(unpacked, truth::seen_values(t, w->act)), 1e-7, what + ": packing");
  const std::vector<float> all = product(kernels, *w, x, 0, kRowGroup);
  for (int r = 0; r < kRowGroup; r++) {
    const truth::Row want = truth::product(t, row_of(x, r, t.k), w->act, kernels.bf16_sums);
    const std::vector<float> got(all.begin() + static_cast<ptrdiff_t>(r) * w->n, all.begin() + (r + 1) * w->n);
    report.expect_below(error(got, want), 2e-6 * std::sqrt(t.k), what);
    report.expect(product(kernels, *w, x, r, 1) == got, what + ": a row depends on the rows beside it");
  }
  for (int rows = 2; rows < kRowGroup; rows++)
    report.expect(product(kernels, *w, x, 0, rows) ==
                      std::vector<float>(all.begin(), all.begin() + static_cast<ptrdiff_t>(rows) * w->n),
                  what + ": a row depends on the rows beside it");
}

// All codes at their ends, activations at theirs: sums of 16 bits would overflow or saturate.
truth::Tensor extreme(const truth::Type& type, uint8_t byte, int n, int k) {
  truth::Tensor t = truth::random_tensor(type, n, k);
  for (size_t i = 0; i < t.bytes.size(); i++) {
    const int at = static_cast<int>(i % type.block_bytes);
    bool is_scale = false;
    for (const int s : type.scales) is_scale |= at == s || at == s + 1;
    if (!is_scale) t.bytes[i] = byte;
  }
  return truth::tensor_of(type, n, k, std::move(t.bytes));
}

void check_types(const KernelTable& kernels, ThreadPool& pool, Report& report) {
  for (const truth::Type& type : truth::kTypes) {
    for (const int blocks : {1, 3}) {
      const int k = blocks * (type.block_values == 256 ? 256 : 32);
      check_product(kernels, pool, truth::random_tensor(type, 37, k), random_floats(kRowGroup * k), type.name, report);
    }
    if (type.block_values == 1) continue;
    std::vector<float> ends(kRowGroup * 256);
    for (size_t i = 0; i < ends.size(); i++) ends[i] = (i / 256 % 2 ? -1.0f : 1.0f) * (i % 256 < 128 || i % 2 ? 1 : -1);
    for (const int byte : {0x00, 0x7f, 0x80, 0xff})
      check_product(kernels, pool, extreme(type, static_cast<uint8_t>(byte), 16, 256), ends,
                    std::string(type.name) + " of bytes " + std::to_string(byte), report);
  }
}

// Every float16 there is, as a weight: its product with one.
void check_halves(const KernelTable& kernels, ThreadPool& pool, Report& report) {
  std::vector<uint8_t> bytes(1 << 17);
  for (int bits = 0; bits < 1 << 16; bits++) bytes[2 * bits] = bits & 255, bytes[2 * bits + 1] = bits >> 8;
  for (int bits = 0x7c00; bits < 0x8000; bits++)  // infinite and NaN: times zero they would spoil their neighbours
    bytes[2 * bits + 1] = bytes[2 * (bits + 0x8000) + 1] = 0;
  const truth::Tensor t = truth::tensor_of(truth::type_named("f16"), 2048, 32, bytes);
  for (const bool exact : {false, true}) {
    const auto w = packed(t, pool, exact);
    for (int column = 0; column < 32; column++) {
      std::vector<float> unit(32);
      unit[column] = 1;
      const std::vector<float> got = product(kernels, *w, unit, 0, 1);
      bool equal = true;
      for (int r = 0; r < t.n; r++) {
        const auto want = static_cast<float>(t.values[static_cast<size_t>(r) * 32 + column]);
        equal &= got[r] == (exact ? want : truth::bfloat16(want));
      }
      report.expect(equal, "float16 weights");
    }
  }
}

float number_of(float x) { return x; }
float number_of(uint16_t bf16) { return bf16_to_float(bf16); }

// Codes and numbers of one packed group, bit for bit; a last block's neighbour is zero.
template <int kRows, class Number>
void check_codes(const uint8_t* group, const std::vector<float>& x, int rows, int k, Report& report) {
  const auto* pairs = reinterpret_cast<const ActRows<kRows, Number>*>(group);
  for (int r = 0; r < rows; r++) {
    truth::Codes want = truth::int8_codes(row_of(x, r, k));
    if (want.scales.size() % 2) want.codes.resize(want.codes.size() + 32), want.scales.push_back(0);
    for (int b = 0; b < static_cast<int>(want.scales.size()); b++) {
      const ActRows<kRows, Number>& pair = pairs[b / 2];
      const float scale = number_of(pair.scale[r][b % 2]);
      int sums[2] = {0, 0};
      for (int i = 0; i < 32; i++) {
        const int code = pair.codes[i / 4][r][b % 2][i % 4];
        sums[i / 16] += code;
        report.expect(code == want.codes[b * 32 + i], "int8 codes");
      }
      const int sum = sums[0] + sums[1];
      float scaled_sum = scale * static_cast<float>(sum);
      if (sizeof(Number) == 2) scaled_sum = truth::bfloat16(scaled_sum);
      report.expect(scale == static_cast<float>(want.scales[b]), "scales of int8 codes");
      report.expect(pair.offset[r][b % 2] == -128 * sum && pair.small_offset[r][b % 2] == -8 * sum &&
                        pair.first_offset[r][b % 2] == -32 * sums[0] &&
                        number_of(pair.scaled_sum[r][b % 2]) == scaled_sum,
                    "sums of int8 codes");
    }
  }
}

template <class Number>
void check_group(const uint8_t* group, const std::vector<float>& x, int rows, int k, Report& report) {
  if (rows == 1)
    check_codes<1, Number>(group, x, rows, k, report);
  else
    check_codes<kRowGroup, Number>(group, x, rows, k, report);
}

// Rows of all magnitudes, of zeros, ties and numbers near the smallest and largest.
void check_quantization(const KernelTable& kernels, Report& report) {
  const int k = 96;
  std::vector<float> x(kRowGroup * k);
  for (int r = 0; r < kRowGroup; r++)
    for (int i = 0; i < k; i++) x[r * k + i] = random_float() * std::pow(10.0f, static_cast<float>(5 * (r - 4)));
  for (int i = 0; i < 32; i++) x[i] = 0, x[k + i] = static_cast<float>(i) - 15.5f, x[2 * k + i] = 3e38f;
  x[3 * k + 5] = 1e-44f;
  for (int rows = 1; rows <= kRowGroup; rows++) {
    Groups group(act_group_bytes(kActInt8, k));
    kernels.pack_group(x.data(), k, rows, k, kActInt8, group.data());
    (kernels.bf16_sums ? check_group<uint16_t> : check_group<float>)(group.data(), x, rows, k, report);
  }
}

// One activation that is not finite reaches all of its row and nothing else.
void check_not_finite(const KernelTable& kernels, ThreadPool& pool, Report& report) {
  for (const truth::Type& type : truth::kTypes)
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      const int k = 256;
      std::vector<float> x(3 * k, 1.0f);
      x[k + 40] = bad;
      const auto w = packed(truth::random_tensor(type, 16, k), pool);
      const std::vector<float> y = product(kernels, *w, x, 0, 3);
      for (int i = 0; i < 3 * w->n; i++)
        report.expect(std::isfinite(y[i]) == (i / w->n != 1),
                      std::string(type.name) + " with an activation of " + std::to_string(bad));
    }
}

}  // namespace

void check_products(const KernelTable& kernels, ThreadPool& pool, Report& report) {
  check_types(kernels, pool, report);
  check_halves(kernels, pool, report);
  check_quantization(kernels, report);
  check_not_finite(kernels, pool, report);
}
