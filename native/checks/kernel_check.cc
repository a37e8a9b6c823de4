// Compares a build of the kernels with the portable one, and rows with themselves in other steps.
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "kv_cache.h"
#include "pack.h"
#include "program.h"
#include "thread_pool.h"

namespace sixfold {
namespace {

struct Type {
  int ggml_type, block_bytes, block_values;
  std::vector<int> scales;  // offsets of float16 numbers in a block
  const char* name;
};

const Type kTypes[] = {
    {kGgmlQ4_0, 18, 32, {0}, "q4_0"},      {kGgmlQ4_1, 20, 32, {0, 2}, "q4_1"},  {kGgmlQ5_0, 22, 32, {0}, "q5_0"},
    {kGgmlQ5_1, 24, 32, {0, 2}, "q5_1"},   {kGgmlQ8_0, 34, 32, {0}, "q8_0"},     {kGgmlQ4_K, 144, 256, {0, 2}, "q4_k"},
    {kGgmlQ5_K, 176, 256, {0, 2}, "q5_k"}, {kGgmlQ6_K, 210, 256, {208}, "q6_k"}, {kGgmlF16, 2, 1, {0}, "f16"},
    {kGgmlBF16, 2, 1, {}, "bf16"},         {kGgmlF32, 4, 1, {}, "f32"},
};

std::mt19937 random_bits(1);

float random_float() { return std::normal_distribution<float>()(random_bits); }

std::vector<uint8_t> random_weights(const Type& type, int n, int k) {
  const size_t blocks = static_cast<size_t>(n) * k / type.block_values;
  std::vector<uint8_t> out(blocks * type.block_bytes);
  for (size_t b = 0; b < blocks; b++) {
    uint8_t* p = out.data() + b * type.block_bytes;
    for (int i = 0; i < type.block_bytes; i++) p[i] = static_cast<uint8_t>(random_bits());
    for (const int at : type.scales) {  // between 2^-7 and 2^-4, either sign
      const auto half = static_cast<uint16_t>((random_bits() & 0x8fff) % 0x0c00 | 0x2000 | (random_bits() & 0x8000));
      std::memcpy(p + at, &half, 2);
    }
    const float value = random_float() * 0.1f;
    if (type.ggml_type == kGgmlF32) std::memcpy(p, &value, 4);
    if (type.ggml_type == kGgmlBF16) std::memcpy(p, reinterpret_cast<const uint8_t*>(&value) + 2, 2);
  }
  return out;
}

std::vector<float> random_rows(size_t n) {
  std::vector<float> x(n);
  for (float& v : x) v = random_float();
  return x;
}

double error(const std::vector<float>& got, const std::vector<float>& want) {
  double worst = 0, top = 1e-30;
  for (size_t i = 0; i < got.size(); i++) {
    const double d = std::fabs(double{got[i]} - want[i]);
    worst = d > worst || d != d ? d : worst;
    top = std::fmax(top, std::fabs(want[i]));
  }
  return worst / top;
}

std::vector<float> product(const KernelTable& kernels, const PackedMatrix& w, const std::vector<float>& x, int begin,
                           int rows) {
  std::vector<uint8_t> act(act_group_bytes(w.act, w.k) + 64);
  uint8_t* aligned = act.data() + (64 - reinterpret_cast<uintptr_t>(act.data()) % 64);
  kernels.pack_group(x.data() + static_cast<size_t>(begin) * w.k, w.k, rows, w.k, w.act, aligned);
  std::vector<float> out(static_cast<size_t>(rows) * w.n);
  matmul(kernels, w, aligned, 0, rows, 0, w.n / kLanes, out.data(), w.n);
  return out;
}

void check_products(const KernelTable& kernels, ThreadPool& pool) {
  for (const Type& type : kTypes) {
    const int n = 48, k = 512;
    const std::vector<uint8_t> raw = random_weights(type, n, k);
    const auto w = pack_matrix({PackSource{type.ggml_type, raw.data(), raw.size(), n, k}}, false, false, pool,
                               std::make_shared<Arena>());
    const std::vector<float> x = random_rows(kRowGroup * k);
    const std::vector<float> want = product(*kernels_generic(), *w, x, 0, kRowGroup);
    for (int rows = 1; rows <= kRowGroup; rows++) {
      const std::vector<float> some = product(kernels, *w, x, 0, rows);
      for (int r = 0; r < rows; r++)
        expect(product(kernels, *w, x, r, 1) == std::vector<float>(some.begin() + static_cast<ptrdiff_t>(r) * n,
                                                                   some.begin() + static_cast<ptrdiff_t>(r + 1) * n),
               kernels.name, std::string(type.name) + ": a row depends on the rows beside it");
      if (rows == kRowGroup)
        expect(error(some, want) < 1e-5, kernels.name,
               std::string(type.name) + ": error " + std::to_string(error(some, want)));
    }
  }
}

struct Outputs {
  std::vector<float> rows;   // of the residual stream, and of logits
  std::vector<int32_t> ids;  // greedy

  bool operator==(const Outputs& o) const { return rows == o.rows && ids == o.ids; }
};

// A layer of everything and a head, over one sequence that is cut into steps.
Outputs layer(const KernelTable* kernels, std::shared_ptr<ThreadPool> pool, bool is_float, int window, int step) {
  random_bits.seed(7);
  const int hidden = 256, heads = 6, kv_heads = 2, d = 64, ffn = 256, tokens = 150, vocab = 40;
  const auto arena = std::make_shared<Arena>();
  std::vector<std::vector<uint8_t>> keep;
  const auto pack = [&](int type, int n, int k, bool pairs) {
    std::vector<PackSource> sources;
    for (int i = 0; i < (pairs ? 2 : 1); i++) {
      keep.push_back(random_weights(kTypes[type], n, k));
      sources.push_back({kTypes[type].ggml_type, keep.back().data(), keep.back().size(), n, k});
    }
    return pack_matrix(sources, pairs, false, *pool, arena);
  };
  const std::vector<float> norm(hidden, 0.05f), head_norm(d, 1.0f), bias = random_rows((heads + 2 * kv_heads) * d);
  std::vector<float> cos(tokens * d / 2), sin(cos.size());
  for (size_t i = 0; i < cos.size(); i++) cos[i] = std::cos(0.1f * i), sin[i] = std::sin(0.1f * i);
  const auto kv = std::make_shared<KVCache>(1, kv_heads, d, 24, is_float);
  Program p(pool, kernels, kv, tokens, hidden);
  keep.push_back(random_weights(kTypes[10], vocab, hidden));
  p.embed(
      std::make_shared<Embedding>(make_embedding({kGgmlF32, keep.back().data(), keep.back().size(), vocab, hidden})),
      3.0f);
  const Vector weight{norm.data(), hidden}, q_norm{head_norm.data(), d};
  p.norm_qkv_rope_write(QkvOp{0, weight, pack(2, (heads + 2 * kv_heads) * d, hidden, false), heads, kv_heads, d,
                              make_rope_table(cos.data(), sin.data(), tokens, d, kRopeHalves), 1e-6f,
                              Vector{bias.data(), static_cast<int64_t>(bias.size())}, q_norm, q_norm});
  p.attention(0, 0.125f, window, 20.0f);
  p.proj_residual(pack(10, hidden, heads * d, false), Vector{}, weight, 1e-6f);
  p.norm_gateup_act(weight, pack(5, ffn, hidden, true), kGelu, 1e-6f);
  p.down_residual(pack(7, hidden, ffn, false), weight, 1e-6f);
  std::vector<Expert> experts;
  for (int e = 0; e < 4; e++) experts.push_back({pack(4, ffn, hidden, true), pack(9, hidden, ffn, false)});
  p.norm_experts_residual(ExpertsOp{weight, pack(10, 4, hidden, false), experts, 2, true, kSilu, 1e-6f});
  p.final_norm_head(weight, pack(4, vocab, hidden, false), 1e-6f, 30.0f);
  p.finalize();

  Outputs out;
  std::vector<uint8_t> greedy(tokens), unusable(tokens);
  std::vector<float> logits(static_cast<size_t>(tokens) * vocab);
  std::vector<int32_t> best(tokens);
  std::vector<int32_t> ids(tokens), positions(tokens), row_of(tokens), wanted(tokens), slot{1}, table(2 * 12);
  for (int i = 0; i < tokens; i++) ids[i] = (i * 7 + i / 5) % vocab;
  for (size_t i = 0; i < table.size(); i++) table[i] = static_cast<int32_t>(table.size() - 1 - i);
  for (int begin = 0; begin < tokens; begin += step) {
    const int n = std::min(step, tokens - begin);
    for (int i = 0; i < n; i++) positions[i] = begin + i;
    Step s{};
    s.n_tokens = n, s.token_ids = ids.data() + begin, s.positions = positions.data(), s.row_of_token = row_of.data();
    s.n_rows = 1, s.slot_of_row = slot.data(), s.n_slots = 2, s.max_blocks = 12, s.block_tables = table.data();
    s.table_stride = 12;
    for (int i = 0; i < n; i++) greedy[i] = (begin + i) % 3 == 0;
    for (int i = 0; i < n; i++) wanted[i] = i;
    s.n_logits = n, s.logit_tokens = wanted.data(), s.greedy = greedy.data(), s.out_ids = best.data();
    s.out_nan = unusable.data(), s.logits = logits.data(), s.n_logit_rows = n;
    p.run(s);
    for (int i = 0, row = 0; i < n; i++) {
      const float *x = p.residual() + static_cast<size_t>(i) * hidden,
                  *y = logits.data() + static_cast<size_t>(row) * vocab;
      out.rows.insert(out.rows.end(), x, x + hidden);
      if (!greedy[i]) out.rows.insert(out.rows.end(), y, y + vocab), row++;
      out.ids.push_back(unusable[i] ? -1 : best[i]);
    }
  }
  return out;
}

void check_layer(const KernelTable& kernels) {
  const auto one = std::make_shared<ThreadPool>(1), three = std::make_shared<ThreadPool>(3);
  for (const bool is_float : {false, true})
    for (const int window : {0, 37}) {
      const std::string what =
          std::string(is_float ? "float32" : "bfloat16") + " cache, window " + std::to_string(window);
      const Outputs want = layer(kernels_generic(), three, is_float, window, 150);
      const Outputs got = layer(&kernels, three, is_float, window, 150);
      expect(error(got.rows, want.rows) < 0.02, kernels.name,
             what + ": error " + std::to_string(error(got.rows, want.rows)));
      expect(layer(&kernels, one, is_float, window, 1) == got, kernels.name, what + ": steps of 1 differ");
      expect(layer(&kernels, three, is_float, window, 13) == got, kernels.name, what + ": steps of 13 differ");
    }
}

}  // namespace

void check_kernels(const Build& build) {
  ThreadPool pool(2);
  check_products(*build.kernels, pool);
  check_layer(*build.kernels);
}

}  // namespace sixfold
