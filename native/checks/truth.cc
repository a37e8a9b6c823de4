#include "truth.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "cases.h"
#include "layout.h"

namespace truth {

using namespace sixfold;

const std::vector<Type> kTypes = {
    {kGgmlQ4_0, 18, 32, {0}, -6, "q4_0"},
    {kGgmlQ4_1, 20, 32, {0, 2}, -6, "q4_1"},
    {kGgmlQ5_0, 22, 32, {0}, -7, "q5_0"},
    {kGgmlQ5_1, 24, 32, {0, 2}, -7, "q5_1"},
    {kGgmlQ8_0, 34, 32, {0}, -10, "q8_0"},
    {kGgmlQ4_K, 144, 256, {0, 2}, -11, "q4_k"},
    {kGgmlQ5_K, 176, 256, {0, 2}, -12, "q5_k"},
    {kGgmlQ6_K, 210, 256, {208}, -14, "q6_k"},
    {kGgmlF16, 2, 1, {0}, -4, "f16"},
    {kGgmlBF16, 2, 1, {}, 0, "bf16"},
    {kGgmlF32, 4, 1, {}, 0, "f32"},
};

const Type& type_named(const std::string& name) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.name == name; });
}

namespace {

const Type& type_of(const Tensor& w) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& t) { return t.ggml_type == w.ggml_type; });
}

}  // namespace

// --- bytes to values
// --------------------------------------------------------------------------------------------------

double half(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

float bfloat16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return NAN;
  const uint32_t rest = bits & 0xffff;
  bits -= rest;
  if (rest > 0x8000 || (rest == 0x8000 && bits & 0x10000)) bits += 0x10000;
  std::memcpy(&x, &bits, 4);
  return x;
}

namespace {

double half_at(const uint8_t* p) { return half(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Low nibbles are the first 16 values of 32, high ones the others; fifth bits are a number of 32 bits.
int code_of_32(const uint8_t* nibbles, const uint8_t* fifth, int i) {
  const int low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
  return low | (fifth ? (fifth[i / 8] >> i % 8 & 1) << 4 : 0);
}

// The scale and the minimum of part j of 8: six bits each.
void part_scales(const uint8_t* p, int j, int* scale, int* minimum) {
  if (j < 4) {
    *scale = p[j] & 63, *minimum = p[4 + j] & 63;
  } else {
    *scale = (p[4 + j] & 15) | p[j - 4] >> 6 << 4, *minimum = p[4 + j] >> 4 | p[j] >> 6 << 4;
  }
}

Number k_number(const uint8_t* block, const uint8_t* fifth, const uint8_t* nibbles, int i) {
  const int part = i / 32, at = i % 32;
  int scale, minimum;
  part_scales(block + 4, part, &scale, &minimum);
  const uint8_t both = nibbles[part / 2 * 32 + at];
  const int code = (part % 2 ? both >> 4 : both & 15) | (fifth ? (fifth[at] >> part & 1) << 4 : 0);
  const int middle = fifth ? 16 : 8;
  const double d = half_at(block) * scale;
  return {d, code - middle, middle * d - half_at(block + 2) * minimum};
}

Number q6_k_number(const uint8_t* block, int i) {
  const int side = i / 128, quarter = i % 128 / 32, at = i % 32;
  const uint8_t both = block[64 * side + quarter % 2 * 32 + at];
  const int high = block[128 + 32 * side + at] >> 2 * quarter & 3;
  const int code = (quarter / 2 ? both >> 4 : both & 15) | high << 4;
  return {half_at(block + 208) * static_cast<int8_t>(block[192 + i / 16]), code - 32, 0};
}

}  // namespace

Number number(const Type& type, const uint8_t* p, int i) {
  switch (type.ggml_type) {
    case kGgmlQ4_0:
      return {half_at(p), code_of_32(p + 2, nullptr, i) - 8, 0};
    case kGgmlQ4_1:
      return {half_at(p), code_of_32(p + 4, nullptr, i) - 8, half_at(p + 2) + 8 * half_at(p)};
    case kGgmlQ5_0:
      return {half_at(p), code_of_32(p + 6, p + 2, i) - 16, 0};
    case kGgmlQ5_1:
      return {half_at(p), code_of_32(p + 8, p + 4, i) - 16, half_at(p + 2) + 16 * half_at(p)};
    case kGgmlQ8_0:
      return {half_at(p), static_cast<int8_t>(p[2 + i]), 0};
    case kGgmlQ4_K:
      return k_number(p, nullptr, p + 16, i);
    case kGgmlQ5_K:
      return k_number(p, p + 16, p + 48, i);
    default:
      return q6_k_number(p, i);
  }
}

double value(const Type& type, const uint8_t* p, int i) {
  float single;
  switch (type.ggml_type) {
    case kGgmlF16:
      return half_at(p);
    case kGgmlBF16: {
      const uint32_t bits = static_cast<uint32_t>(p[0] | p[1] << 8) << 16;
      std::memcpy(&single, &bits, 4);
      return single;
    }
    case kGgmlF32:
      std::memcpy(&single, p, 4);
      return single;
    default: {
      const Number n = number(type, p, i);
      return n.d * n.code + n.m;
    }
  }
}

Tensor tensor_of(const Type& type, int n, int k, std::vector<uint8_t> bytes) {
  Tensor t{type.ggml_type, n, k, std::move(bytes), Row(static_cast<size_t>(n) * k)};
  for (size_t i = 0; i < t.values.size(); i++) {
    const int place = static_cast<int>(i % type.block_values);
    t.values[i] = value(type, t.bytes.data() + i / type.block_values * type.block_bytes, place);
  }
  return t;
}

Tensor random_tensor(const Type& type, int n, int k) {
  const size_t blocks = static_cast<size_t>(n) * k / type.block_values;
  std::vector<uint8_t> bytes(blocks * type.block_bytes);
  for (size_t b = 0; b < blocks; b++) {
    uint8_t* p = bytes.data() + b * type.block_bytes;
    for (int i = 0; i < type.block_bytes; i++) p[i] = static_cast<uint8_t>(random_bits());
    for (const int at : type.scales) {
      const auto bits = static_cast<uint16_t>((15 + type.exponent) << 10 | (random_bits() & 0x83ff));
      std::memcpy(p + at, &bits, 2);
    }
    const float single = random_float() / 16;
    if (type.ggml_type == kGgmlF32) std::memcpy(p, &single, 4);
    if (type.ggml_type == kGgmlBF16) std::memcpy(p, reinterpret_cast<const uint8_t*>(&single) + 2, 2);
  }
  return tensor_of(type, n, k, std::move(bytes));
}

// --- one layer
// --------------------------------------------------------------------------------------------------------

Codes int8_codes(const Row& x) {
  Codes out{std::vector<int>(x.size()), Row(x.size() / 32)};
  for (size_t b = 0; b < out.scales.size(); b++) {
    float top = 0;
    for (size_t i = 32 * b; i < 32 * (b + 1); i++) top = std::max(top, std::fabs(static_cast<float>(x[i])));
    const float exact = top / 127.0f, scale = exact < std::numeric_limits<float>::min() ? 0 : bfloat16(exact);
    const float inverse = scale != 0 ? 1.0f / scale : 0;
    for (size_t i = 32 * b; i < 32 * (b + 1); i++)
      out.codes[i] = static_cast<int>(std::nearbyint(static_cast<float>(x[i]) * inverse));
    out.scales[b] = scale;
  }
  return out;
}

namespace {

// Of one output: sums of blocks of 32, or of 16 where these have a scale of their own.
double int8_product(const Type& type, const uint8_t* row, const Codes& a, bool bf16_sums) {
  const auto rounded = [](double x) { return double{bfloat16(static_cast<float>(x))}; };
  const int width = type.ggml_type == kGgmlQ6_K ? 16 : 32;
  const bool stored_middle = type.ggml_type == kGgmlQ4_1 || type.ggml_type == kGgmlQ5_1;
  double sum = 0;
  for (size_t at = 0; at < a.codes.size(); at += width) {
    const uint8_t* block = row + at / type.block_values * type.block_bytes;
    Number n{};
    int products = 0, codes = 0;
    for (int i = 0; i < width; i++) {
      n = number(type, block, static_cast<int>(at % type.block_values) + i);
      products += n.code * a.codes[at + i], codes += a.codes[at + i];
    }
    const double scale = a.scales[at / 32], m = stored_middle || bf16_sums ? rounded(n.m) : n.m;
    const double scaled_sum = scale * codes;
    sum += (bf16_sums ? rounded(products * n.d) : products * n.d) * scale;
    sum += m * (bf16_sums ? rounded(scaled_sum) : scaled_sum);
  }
  return sum;
}

}  // namespace

Row seen_values(const Tensor& w, ActKind seen) {
  Row values = w.values;
  const Type& type = type_of(w);
  const bool stored_middle = w.ggml_type == kGgmlQ4_1 || w.ggml_type == kGgmlQ5_1;
  for (size_t i = 0; i < values.size(); i++) {
    if (seen == kActBF16) values[i] = bfloat16(static_cast<float>(values[i]));
    if (seen != kActInt8 || !stored_middle) continue;
    const Number n = number(type, w.bytes.data() + i / 32 * type.block_bytes, static_cast<int>(i % 32));
    values[i] = n.d * n.code + bfloat16(static_cast<float>(n.m));
  }
  return values;
}

Row product(const Tensor& w, const Row& x, ActKind seen, bool bf16_sums) {
  Row out(w.n);
  if (seen == kActInt8) {
    const Type& type = type_of(w);
    const Codes a = int8_codes(x);
    const size_t row_bytes = w.bytes.size() / w.n;
    for (int r = 0; r < w.n; r++) out[r] = int8_product(type, w.bytes.data() + r * row_bytes, a, bf16_sums);
    return out;
  }
  Row a = x;
  const Row values = seen_values(w, seen);
  if (seen == kActBF16)
    for (double& v : a) v = bfloat16(static_cast<float>(v));
  for (int r = 0; r < w.n; r++)
    out[r] = std::inner_product(a.begin(), a.end(), values.begin() + static_cast<ptrdiff_t>(r) * w.k, 0.0);
  return out;
}

Row rms_norm(const Row& x, const float* weight, double eps) {
  const double mean = std::inner_product(x.begin(), x.end(), x.begin(), 0.0) / static_cast<double>(x.size());
  Row out(x.size());
  for (size_t i = 0; i < x.size(); i++) out[i] = x[i] / std::sqrt(mean + eps) * weight[i];
  return out;
}

double gated(double gate, double up, bool gelu) {
  if (!gelu) return gate / (1 + std::exp(-gate)) * up;
  return 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * gate * gate * gate))) * up;
}

double capped(double x, double cap) { return cap > 0 ? cap * std::tanh(x / cap) : x; }

void rotate(double* y, const float* cos, const float* sin, int dims, bool interleaved) {
  const int half_dims = dims / 2;
  for (int i = 0; i < half_dims; i++) {
    double& a = y[interleaved ? 2 * i : i];
    double& b = y[interleaved ? 2 * i + 1 : i + half_dims];
    const double first = a * cos[i] - b * sin[i];
    b = b * cos[i] + a * sin[i];
    a = first;
  }
}

Row attend(const Row& q, const Rows& keys, const Rows& values, double scale, int window, double cap, bool bf16) {
  const int n = static_cast<int>(keys.size()), first = window ? std::max(0, n - window) : 0;
  Row scores(n), out(q.size(), 0.0);
  for (int i = first; i < n; i++)
    scores[i] = capped(std::inner_product(q.begin(), q.end(), keys[i].begin(), 0.0) * scale, cap);
  const double top = *std::max_element(scores.begin() + first, scores.end());
  double sum = 0;
  for (int begin = first; begin < n;) {
    const int end = std::min(n, (begin / 256 + 1) * 256);
    const double highest = *std::max_element(scores.begin() + begin, scores.begin() + end);
    for (int i = begin; i < end; i++) {
      const double p = std::exp(scores[i] - highest), share = std::exp(highest - top);
      sum += p * share;
      for (size_t c = 0; c < q.size(); c++)
        out[c] += (bf16 ? bfloat16(static_cast<float>(p)) : p) * share * values[i][c];
    }
    begin = end;
  }
  for (double& x : out) x /= sum;
  return out;
}

void experts(const Row& scores, int used, bool renormalize, std::vector<int>* ids, Row* shares) {
  ids->resize(scores.size());
  std::iota(ids->begin(), ids->end(), 0);
  std::stable_sort(ids->begin(), ids->end(), [&](int a, int b) { return scores[a] > scores[b]; });
  ids->resize(used);
  const double top = scores[ids->front()];
  double all = 0, chosen = 0;
  for (const double s : scores) all += std::exp(s - top);
  for (const int id : *ids) chosen += std::exp(scores[id] - top);
  shares->clear();
  for (const int id : *ids) shares->push_back(std::exp(scores[id] - top) / (renormalize ? chosen : all));
}

// --- sampling
// ---------------------------------------------------------------------------------------------------------

namespace {

// Philox4x32-10. Source: Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
uint64_t random64(uint64_t seed, uint32_t choice, uint64_t position) {
  uint32_t c[4] = {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; round++, key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u) {
    const uint64_t a = uint64_t{0xD2511F53u} * c[0], b = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    std::memcpy(c, next, sizeof c);
  }
  return uint64_t{c[1]} << 32 | c[0];
}

// round(2^40 * 2^x), each float32 operation rounded once; the constants of src/sixfold/sampler/weights.py.
uint64_t weight(float x) {
  x = std::max(x, -42.0f);
  const float n = std::nearbyint(x), f = x - n;
  float e = 0.0013264727f * f;
  for (const float c : {0.009671513f, 0.055507336f, 0.24022242f, 0.693147f}) e = (e + c) * f;
  return static_cast<uint64_t>(std::nearbyint(std::ldexp(static_cast<double>(e + 1.0f), static_cast<int>(n) + 40)));
}

}  // namespace

int draw(const std::vector<float>& row, const RowParams& p, int64_t position) {
  float highest = -INFINITY;
  for (const float x : row)
    if (x != x)
      return -1;
    else
      highest = std::max(highest, x);
  if (std::isinf(highest)) return -1;
  std::vector<int> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
  if (p.scale == 0) return order[0];
  if (p.top_k > 0 && order.size() > static_cast<size_t>(p.top_k)) order.resize(p.top_k);
  std::vector<uint64_t> weights(row.size(), 0);
  uint64_t total = 0, reached = 0;
  for (const int id : order) total += weights[id] = weight((row[id] - highest) * p.scale);
  const uint64_t needed = std::max<uint64_t>(1, static_cast<uint64_t>(p.top_p * static_cast<double>(total)));
  for (const int id : order) {
    if (p.top_p < 1 && reached >= needed) weights[id] = 0;
    reached += weights[id];
    if ((row[id] - highest) * p.scale < p.min_x) weights[id] = 0;
  }
  total = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  const auto random = random64(p.seed, p.choice, static_cast<uint64_t>(position));
  uint64_t left = static_cast<uint64_t>(static_cast<unsigned __int128>(random) * total >> 64);
  int id = 0;
  while (weights[id] <= left) left -= weights[id++];
  return id;
}

}  // namespace truth
