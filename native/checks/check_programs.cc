// Whole programs of one layer: every fused operation in its variants, over two sequences that share their steps.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cases.h"
#include "program.h"
#include "truth.h"

using namespace sixfold;

namespace {

enum HeadNorm { kNoHeadNorm, kEachHead, kWholeProjection };

// Of one layer; what is not said is left out or the plainest there is.
struct Case {
  std::string name;
  const char *qkv, *proj, *gate_up, *down, *head;  // types
  int tokens = 37, hidden = 64, ffn = 64, heads = 4, kv_heads = 2, d = 32;
  bool interleaved = false;
  int rope_dims = 32, window = 0;
  float softcap = 0;  // of scores and logits
  HeadNorm head_norm = kNoHeadNorm;
  bool bias = false, post_norm = false, gelu = false;
  int experts = 0, used = 0;
  bool renormalize = false;
};

constexpr int kVocab = 41, kOther = 21, kBlocks = 24;  // tokens of the second sequence; blocks of the cache
constexpr float kEps = 1e-5f, kEmbedScale = 3;

std::vector<Case> cases() {
  Case plain{"plain", "q4_1", "q4_1", "q4_1", "q4_1", "q8_0"};
  plain.tokens = 300, plain.interleaved = true;

  Case biased{"bias, a wide group", "q8_0", "q5_1", "q4_0", "q8_0", "q4_0"};
  biased.hidden = 96, biased.ffn = 32, biased.heads = 8, biased.kv_heads = 1, biased.bias = true;

  Case normed{"norms of heads", "q5_0", "q5_0", "q5_0", "q5_0", "q8_0"};
  normed.tokens = 300, normed.heads = 3, normed.kv_heads = 1, normed.d = normed.rope_dims = 64, normed.window = 33;
  normed.head_norm = kEachHead, normed.post_norm = normed.gelu = true;

  Case whole{"norms of projections", "q4_0", "q4_1", "q5_1", "q5_0", "q5_1"};
  whole.kv_heads = 4, whole.head_norm = kWholeProjection, whole.bias = whole.post_norm = true;

  Case super{"super-blocks, a cap", "q4_k", "q5_k", "q6_k", "q4_k", "q6_k"};
  super.hidden = super.ffn = 256, super.d = super.rope_dims = 64, super.softcap = 25, super.gelu = true;

  Case part{"a part of a head rotated", "q8_0", "q8_0", "q8_0", "q8_0", "q8_0"};
  part.tokens = 300, part.heads = 2, part.kv_heads = 1, part.d = 96, part.rope_dims = 72, part.window = 256;
  part.bias = true;

  Case pairs{"pairs of a part rotated", "q4_1", "q5_0", "q4_0", "q5_1", "q4_1"};
  pairs.tokens = 300, pairs.ffn = 32, pairs.heads = 2, pairs.d = 64, pairs.interleaved = true, pairs.rope_dims = 40;
  pairs.window = 1, pairs.softcap = 25;

  Case experts{"experts", "q8_0", "q8_0", "q4_1", "q8_0", "q8_0"};
  experts.window = 2, experts.head_norm = kEachHead, experts.experts = 5, experts.used = 2, experts.renormalize = true;

  Case shared{"experts with all their shares", "q4_k", "q5_0", "q5_k", "q6_k", "q6_k"};
  shared.hidden = shared.ffn = 256, shared.heads = 16, shared.kv_heads = 1, shared.interleaved = shared.gelu = true;
  shared.tokens = 310, shared.window = 300, shared.experts = shared.used = 3;

  Case half{"float16", "f16", "f16", "f16", "f16", "f16"};
  half.kv_heads = 1, half.d = half.rope_dims = 128, half.head_norm = kEachHead, half.bias = half.post_norm = true;
  half.experts = 2, half.used = 1;

  Case brain{"bfloat16", "bf16", "bf16", "bf16", "bf16", "bf16"};
  brain.heads = brain.kv_heads = 5, brain.interleaved = brain.gelu = true, brain.window = 3;
  return {plain, biased, normed, whole, super, part, pairs, experts, shared, half, brain};
}

struct FeedForward {
  truth::Tensor gate, up, down;
};

// The weights of a case.
struct Weights {
  explicit Weights(const Case& c);
  truth::Tensor embedding, q, k, v, proj, router, head;
  std::vector<FeedForward> parts;
  std::vector<float> norm, bias, q_norm, k_norm, proj_bias, post_norm, cos, sin;
  std::vector<int32_t> ids[2];
};

std::vector<float> near_one(int n) {
  std::vector<float> x = random_floats(n, 0.2f);
  for (float& v : x) v += 1;
  return x;
}

Weights::Weights(const Case& c) {
  const auto tensor = [](const char* type, int n, int k) {
    return truth::random_tensor(truth::type_named(type), n, k);
  };
  embedding = tensor("f32", kVocab, c.hidden);
  q = tensor(c.qkv, c.heads * c.d, c.hidden), k = tensor(c.qkv, c.kv_heads * c.d, c.hidden);
  v = tensor(c.qkv, c.kv_heads * c.d, c.hidden), proj = tensor(c.proj, c.hidden, c.heads * c.d);
  if (c.experts) router = tensor("f32", c.experts, c.hidden);
  for (int e = 0; e < std::max(1, c.experts); e++)
    parts.push_back(
        {tensor(c.gate_up, c.ffn, c.hidden), tensor(c.gate_up, c.ffn, c.hidden), tensor(c.down, c.hidden, c.ffn)});
  head = tensor(c.head, kVocab, c.hidden);
  norm = near_one(c.hidden);
  const int all = (c.heads + 2 * c.kv_heads) * c.d;
  if (c.bias) bias = random_floats(all, 0.3f), proj_bias = random_floats(c.hidden, 0.3f);
  const bool each = c.head_norm == kEachHead;
  if (c.head_norm) q_norm = near_one(each ? c.d : c.heads * c.d), k_norm = near_one(each ? c.d : c.kv_heads * c.d);
  if (c.post_norm) post_norm = near_one(c.hidden);
  for (int p = 0; p < c.tokens; p++)
    for (int i = 0; i < c.rope_dims / 2; i++) {
      const double angle = p * std::pow(0.5, i);
      cos.push_back(static_cast<float>(std::cos(angle))), sin.push_back(static_cast<float>(std::sin(angle)));
    }
  for (int s = 0; s < 2; s++)
    for (int i = 0; i < (s ? kOther : c.tokens); i++) ids[s].push_back(below(kVocab));
}

// --- the truth
// --------------------------------------------------------------------------------------------------------

struct Modes {
  bool int8, bf16, bf16_sums;  // activations, cache, KernelTable::bf16_sums
};

truth::Row times(const truth::Tensor& w, const truth::Row& x, Modes modes) {
  if (!modes.int8 || w.ggml_type == kGgmlF32) return truth::product(w, x, kActFloat, false);
  const bool sixteen = w.ggml_type == kGgmlF16 || w.ggml_type == kGgmlBF16;
  return truth::product(w, x, sixteen ? kActBF16 : kActInt8, modes.bf16_sums);
}

// One of q, k and v: [heads][d], as attention sees it. `norm` may be empty.
truth::Rows heads_of(const Case& c, const Weights& w, const truth::Tensor& matrix, const float* bias,
                     const std::vector<float>& norm, bool rotated, const truth::Row& x, int position, Modes modes) {
  truth::Row y = times(matrix, x, modes);
  for (size_t i = 0; i < y.size() && bias; i++) y[i] += bias[i];
  if (norm.size() == y.size() && c.head_norm == kWholeProjection) y = truth::rms_norm(y, norm.data(), kEps);
  truth::Rows heads;
  for (size_t at = 0; at < y.size(); at += c.d) {
    truth::Row h(y.begin() + at, y.begin() + at + c.d);
    if (!norm.empty() && c.head_norm == kEachHead) h = truth::rms_norm(h, norm.data(), kEps);
    const size_t table = static_cast<size_t>(position) * c.rope_dims / 2;
    if (rotated) truth::rotate(h.data(), &w.cos[table], &w.sin[table], c.rope_dims, c.interleaved);
    for (double& value : h)
      if (modes.bf16) value = truth::bfloat16(static_cast<float>(value));
    heads.push_back(h);
  }
  return heads;
}

truth::Row feed_forward(const Case& c, const FeedForward& part, const truth::Row& x, Modes modes) {
  const truth::Row gate = times(part.gate, x, modes), up = times(part.up, x, modes);
  truth::Row h(gate.size());
  for (size_t i = 0; i < h.size(); i++) h[i] = truth::gated(gate[i], up[i], c.gelu);
  return times(part.down, h, modes);
}

void add(truth::Row* x, const truth::Row& y, double share = 1) {
  for (size_t i = 0; i < y.size(); i++) (*x)[i] += share * y[i];
}

// Logits of the tokens of a sequence that are `wanted`; of the others only keys and values matter.
truth::Rows logits_of(const Case& c, const Weights& w, const std::vector<int32_t>& ids, const std::vector<int>& wanted,
                      Modes modes) {
  const float* bias = w.bias.empty() ? nullptr : w.bias.data();
  std::vector<truth::Rows> keys(c.kv_heads), values(c.kv_heads);
  truth::Rows out;
  for (int t = 0; t < static_cast<int>(ids.size()); t++) {
    const auto row = w.embedding.values.begin() + static_cast<ptrdiff_t>(ids[t]) * c.hidden;
    truth::Row x(row, row + c.hidden);
    for (double& value : x) value *= kEmbedScale;
    const truth::Row in = truth::rms_norm(x, w.norm.data(), kEps);
    const float* k_bias = bias ? bias + c.heads * c.d : nullptr;
    const truth::Rows k = heads_of(c, w, w.k, k_bias, w.k_norm, true, in, t, modes);
    const truth::Rows v = heads_of(c, w, w.v, bias ? k_bias + c.kv_heads * c.d : nullptr, {}, false, in, t, modes);
    for (int h = 0; h < c.kv_heads; h++) keys[h].push_back(k[h]), values[h].push_back(v[h]);
    if (!std::binary_search(wanted.begin(), wanted.end(), t)) continue;

    const truth::Rows q = heads_of(c, w, w.q, bias, w.q_norm, true, in, t, modes);
    truth::Row attended;
    for (int h = 0; h < c.heads; h++) {
      const int kv = h / (c.heads / c.kv_heads);
      const truth::Row a =
          truth::attend(q[h], keys[kv], values[kv], std::pow(c.d, -0.5), c.window, c.softcap, modes.bf16);
      attended.insert(attended.end(), a.begin(), a.end());
    }
    truth::Row y = times(w.proj, attended, modes);
    for (size_t i = 0; i < w.proj_bias.size(); i++) y[i] += w.proj_bias[i];
    add(&x, c.post_norm ? truth::rms_norm(y, w.post_norm.data(), kEps) : y);
    const truth::Row middle = truth::rms_norm(x, w.norm.data(), kEps);
    if (c.experts) {
      std::vector<int> chosen;
      truth::Row shares;
      truth::experts(truth::product(w.router, middle, kActFloat, false), c.used, c.renormalize, &chosen, &shares);
      for (int u = 0; u < c.used; u++) add(&x, feed_forward(c, w.parts[chosen[u]], middle, modes), shares[u]);
    } else {
      y = feed_forward(c, w.parts[0], middle, modes);
      add(&x, c.post_norm ? truth::rms_norm(y, w.post_norm.data(), kEps) : y);
    }
    const truth::Row hidden = truth::rms_norm(x, w.norm.data(), kEps);
    truth::Row logits = times(w.head, hidden, modes);
    for (double& value : logits) value = truth::capped(value, c.softcap);
    logits.insert(logits.end(), hidden.begin(), hidden.end());
    out.push_back(logits);
  }
  return out;
}

// --- the program
// ------------------------------------------------------------------------------------------------------

Vector vector(const std::vector<float>& x) {
  return x.empty() ? Vector{} : Vector{x.data(), static_cast<int64_t>(x.size())};
}

PackSource source(const truth::Tensor& t) { return {t.ggml_type, t.bytes.data(), t.bytes.size(), t.n, t.k}; }

std::unique_ptr<Program> program(const Case& c, const Weights& w, const KernelTable* kernels,
                                 const std::shared_ptr<ThreadPool>& pool, Modes modes) {
  const auto arena = std::make_shared<Arena>();
  const auto pack = [&](std::vector<PackSource> sources, bool interleave = false) {
    return pack_matrix(sources, interleave, !modes.int8, *pool, arena);
  };
  const auto kv = std::make_shared<KVCache>(1, c.kv_heads, c.d, kBlocks, !modes.bf16);
  for (int b = 0; b < kBlocks; b++) kv->fill_block(b, 0xff);  // what nobody has written is not a number
  auto p = std::make_unique<Program>(pool, kernels, kv, c.tokens + kOther, c.hidden);
  p->embed(std::make_shared<Embedding>(make_embedding(source(w.embedding))), kEmbedScale);
  p->norm_qkv_rope_write(QkvOp{0, vector(w.norm), pack({source(w.q), source(w.k), source(w.v)}), c.heads, c.kv_heads,
                               c.d,
                               make_rope_table(w.cos.data(), w.sin.data(), c.tokens, c.rope_dims,
                                               c.interleaved ? kRopeInterleaved : kRopeHalves),
                               kEps, vector(w.bias), vector(w.q_norm), vector(w.k_norm)});
  p->attention(0, std::pow(static_cast<float>(c.d), -0.5f), c.window, c.softcap);
  p->proj_residual(pack({source(w.proj)}), vector(w.proj_bias), vector(w.post_norm), kEps);
  const Activation act = c.gelu ? kGelu : kSilu;
  if (c.experts) {
    ExpertsOp op{vector(w.norm), pack({source(w.router)}), {}, c.used, c.renormalize, act, kEps};
    for (const FeedForward& f : w.parts)
      op.experts.push_back({pack({source(f.gate), source(f.up)}, true), pack({source(f.down)})});
    p->norm_experts_residual(op);
  } else {
    p->norm_gateup_act(vector(w.norm), pack({source(w.parts[0].gate), source(w.parts[0].up)}, true), act, kEps);
    p->down_residual(pack({source(w.parts[0].down)}), vector(w.post_norm), kEps);
  }
  p->final_norm_head(vector(w.norm), pack({source(w.head)}), kEps, c.softcap);
  p->finalize();
  return p;
}

// The next tokens of both sequences in one step, `n[s]` of sequence s; their logits, each followed by its hidden state,
// behind those that are there.
void step(Program& p, const Weights& w, const int* done, const int* n, std::vector<float>* logits, Report& report) {
  std::vector<int32_t> ids, positions, rows, wanted;
  for (int s = 0; s < 2; s++)
    for (int i = 0; i < n[s]; i++) {
      ids.push_back(w.ids[s][done[s] + i]), positions.push_back(done[s] + i);
      rows.push_back(s), wanted.push_back(static_cast<int32_t>(wanted.size()));
    }
  std::vector<int32_t> table(2 * kBlocks), slots{1, 0}, best(ids.size());  // sequence 0 from the end, 1 from the front
  for (int b = 0; b < kBlocks; b++) table[kBlocks + b] = kBlocks - 1 - b, table[b] = b;
  std::vector<uint8_t> greedy(ids.size(), 0), nan(ids.size());
  std::vector<float> out(ids.size() * kVocab);
  Step now{};
  now.n_tokens = static_cast<int>(ids.size()), now.token_ids = ids.data(), now.positions = positions.data();
  now.row_of_token = rows.data(), now.n_rows = 2, now.slot_of_row = slots.data(), now.n_slots = 2;
  now.max_blocks = kBlocks, now.block_tables = table.data(), now.table_stride = kBlocks;
  now.n_logits = now.n_logit_rows = now.n_tokens, now.logit_tokens = wanted.data(), now.greedy = greedy.data();
  now.out_ids = best.data(), now.out_nan = nan.data(), now.logits = out.data();
  std::vector<float> hidden(ids.size() * p.hidden());
  now.n_hidden = now.n_tokens, now.hidden_tokens = wanted.data(), now.hidden = hidden.data();
  p.run(now);
  for (size_t r = 0; r < ids.size(); r++) {
    const auto row = out.begin() + static_cast<ptrdiff_t>(r) * kVocab;
    report.expect(!nan[r] && best[r] == std::max_element(row, row + kVocab) - row, "the best token of a step");
    const auto state = hidden.begin() + static_cast<ptrdiff_t>(r) * p.hidden();
    logits[rows[r]].insert(logits[rows[r]].end(), row, row + kVocab);
    logits[rows[r]].insert(logits[rows[r]].end(), state, state + p.hidden());
  }
}

// Logits and hidden states of both sequences, `at_once` tokens of the first and fewer of the second in a step. What
// lies between the first borders and the last 60 tokens, behind which the long cases have theirs, is one step.
std::vector<float> logits_in_steps(Program& p, const Case& c, const Weights& w, int at_once, Report& report) {
  std::vector<float> logits[2];
  for (int done[2] = {0, 0}; done[0] < c.tokens || done[1] < kOther;) {
    const bool between = done[0] >= 39 && done[0] < c.tokens - 60;
    const int n[2] = {between ? c.tokens - 60 - done[0] : std::min(at_once, c.tokens - done[0]),
                      std::min(done[0] % 3 || at_once > 99 || done[0] == c.tokens ? at_once : 0, kOther - done[1])};
    step(p, w, done, n, logits, report);
    for (int s = 0; s < 2; s++) done[s] += n[s];
  }
  logits[0].insert(logits[0].end(), logits[1].begin(), logits[1].end());
  return logits[0];
}

// Tokens at the borders of blocks, segments, windows and sequences.
std::vector<int> places(int tokens) {
  std::vector<int> found;
  for (const int t : {0, 1, 2, 15, 16, 17, 20, 31, 32, 33, 34, 36, 254, 255, 256, 257, 258, 289, 299})
    if (t < tokens) found.push_back(t);
  return found;
}

void check_case(const Case& c, const KernelTable& kernels, Report& report) {
  static const auto one = std::make_shared<ThreadPool>(1), three = std::make_shared<ThreadPool>(3);
  random_bits.seed(7);
  const Weights w(c);
  for (const Modes modes : {Modes{false, false, false}, Modes{true, true, kernels.bf16_sums}}) {
    const std::string what = c.name + (modes.int8 ? ", int8 and bfloat16" : ", float32");
    const auto p = program(c, w, &kernels, three, modes);
    const std::vector<float> got = logits_in_steps(*p, c, w, 1000, report);
    report.expect(logits_in_steps(*p, c, w, 13, report) == got, what + ": steps of 13 differ");
    report.expect(logits_in_steps(*program(c, w, &kernels, one, modes), c, w, 1, report) == got,
                  what + ": steps of 1 differ");
    for (int s = 0; s < 2; s++) {
      const std::vector<int> wanted = places(s ? kOther : c.tokens);
      const truth::Rows want = logits_of(c, w, w.ids[s], wanted, modes);
      truth::Row all_got, all_want;
      for (size_t i = 0; i < wanted.size(); i++) {
        const float* row = &got[static_cast<size_t>((s ? c.tokens : 0) + wanted[i]) * want[i].size()];
        all_got.insert(all_got.end(), row, row + want[i].size());
        all_want.insert(all_want.end(), want[i].begin(), want[i].end());
      }
      // A sum in another order may round to the other code or bfloat16: steps of 1/127 and 1/256.
      report.expect_below(error(all_got, all_want), modes.int8 ? 0.03 : 2e-5, what);
    }
  }
}

}  // namespace

void check_programs(const KernelTable& kernels, Report& report) {
  for (const Case& c : cases()) check_case(c, kernels, report);
}
