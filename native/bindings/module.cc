// The only file that knows Python. Checks every argument (type, shape, contiguity), releases the GIL, calls.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "builds.h"
#include "kernel_table.h"
#include "kv_cache.h"
#include "measure.h"
#include "pack.h"
#include "pool.h"
#include "program.h"
#include "rows_bindings.h"
#include "sample_bindings.h"
#include "text_bindings.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace sixfold;

namespace {

template <typename T, int kDims>
using Array = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
template <typename T, int kDims>
using Out = nb::ndarray<T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

Build build_named(const std::string& name) {
  std::string names;
  for (const Build& build : builds()) {
    if (name.empty() || name == build.kernels->name) return build;
    names += (names.empty() ? "" : ", ") + std::string(build.kernels->name);
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here; there is: " + names);
}

Build default_build{};

std::shared_ptr<Pool> make_pool(int n_threads, const std::string& isa) {
  if (n_threads < 1 || n_threads > 1024) throw std::invalid_argument("the number of threads must be in 1..1024");
  auto pool = std::make_shared<Pool>();
  pool->kernels = (isa.empty() ? default_build : build_named(isa)).kernels;
  pool->threads = std::make_shared<ThreadPool>(n_threads);
  pool->arena = std::make_shared<Arena>();
  return pool;
}

PackSource to_source(const std::string& name, int type, const Array<uint8_t, 1>& data, int64_t n_rows, int64_t k) {
  return PackSource{type, data.data(), data.size(), n_rows, k, name};
}

std::string kind_name(WeightKind kind) {
  const char* names[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "bf16", "f32"};
  return names[kind];
}

using Source = std::tuple<std::string, int, Array<uint8_t, 1>, int64_t, int64_t>;

std::shared_ptr<PackedMatrix> pack(Pool& pool, const std::vector<Source>& sources, bool interleave,
                                   bool float_activations) {
  std::vector<PackSource> list;
  for (const auto& [name, type, data, n_rows, k] : sources) list.push_back(to_source(name, type, data, n_rows, k));
  const nb::gil_scoped_release release;
  return pack_matrix(list, interleave, float_activations, *pool.threads, pool.arena);
}

template <typename T>
nb::ndarray<nb::numpy, T> own_array(std::unique_ptr<T[]> data, std::initializer_list<size_t> shape) {
  T* p = data.release();
  nb::capsule owner(p, [](void* q) noexcept { delete[] static_cast<T*>(q); });
  return nb::ndarray<nb::numpy, T>(p, shape, owner);
}

nb::ndarray<nb::numpy, float> unpack(const PackedMatrix& m) {
  const size_t n = m.n_true, k = m.k;
  std::unique_ptr<float[]> out(new float[n * k]);
  unpack_matrix(m, out.get());
  return own_array(std::move(out), {n, k});
}

// x [rows, k] times the matrix, through the same kernels that programs use: for tests and measurements.
struct MatmulJob {
  const KernelTable* kernels;
  const PackedMatrix* w;
  const uint8_t* act;
  int rows;
  float* out;
};

void matmul_chunk(void* arg, const void*, int chunk, int) {
  const MatmulJob& job = *static_cast<const MatmulJob*>(arg);
  matmul(*job.kernels, *job.w, job.act, 0, job.rows, chunk, 1, job.out + chunk * kLanes, job.w->n);
}

nb::ndarray<nb::numpy, float> product(Pool& pool, const PackedMatrix& m, const Array<float, 2>& x) {
  const size_t rows = x.shape(0), k = m.k, n = m.n_true;
  if (x.shape(1) != k) throw std::invalid_argument("x has the wrong number of columns");
  std::unique_ptr<float[]> out(new float[rows * n]);
  {
    const nb::gil_scoped_release release;
    const ActKind kind = m.act;
    const size_t group_bytes = act_group_bytes(kind, static_cast<int>(k));
    Pages act((rows + kRowGroup - 1) / kRowGroup * group_bytes), padded(rows * m.n * sizeof(float));
    for (size_t r = 0; r < rows; r += kRowGroup)
      pool.kernels->pack_group(x.data() + r * k, static_cast<int>(k),
                               static_cast<int>(std::min<size_t>(kRowGroup, rows - r)), static_cast<int>(k), kind,
                               act.data() + r / kRowGroup * group_bytes);
    MatmulJob job{pool.kernels, &m, act.data(), static_cast<int>(rows), reinterpret_cast<float*>(padded.data())};
    if (rows) pool.threads->run({Phase{matmul_chunk, nullptr, m.n / kLanes}}, &job);
    for (size_t r = 0; r < rows; r++) std::memcpy(out.get() + r * n, job.out + r * m.n, n * sizeof(float));
  }
  return own_array(std::move(out), {rows, n});
}

float scale_of(float scale) { return scale; }
float scale_of(uint16_t bf16) { return bf16_to_float(bf16); }

// One row as the integer kernels see it: codes [k], scales [k / 32].
template <class Number>
void quantize_row(const KernelTable& kernels, const float* x, int k, int8_t* codes, float* scales) {
  std::vector<ActRows<1, Number>> group(tiles_of(kWeightQ8_0, k));
  kernels.pack_group(x, k, 1, k, kActInt8, reinterpret_cast<uint8_t*>(group.data()));
  for (int i = 0; i < k; i += 4)
    std::memcpy(codes + i, group[i / kBlockPair].codes[i / 4 % 8][0][i / kQuantBlock % 2], 4);
  for (int b = 0; b < k / kQuantBlock; b++) scales[b] = scale_of(group[b / 2].scale[0][b % 2]);
}

// (codes int8 [rows, k], scales float32 [rows, k / 32]) as the integer kernels see activations: for tests.
nb::tuple quantize(Pool& pool, const Array<float, 2>& x) {
  const size_t rows = x.shape(0), k = x.shape(1), blocks = k / kQuantBlock;
  if (k % kQuantBlock != 0) throw std::invalid_argument("the number of columns must be a multiple of 32");
  std::unique_ptr<int8_t[]> codes(new int8_t[rows * k]);
  std::unique_ptr<float[]> scales(new float[rows * blocks]);
  const auto quantize_one = pool.kernels->bf16_sums ? quantize_row<uint16_t> : quantize_row<float>;
  for (size_t r = 0; r < rows; r++)
    quantize_one(*pool.kernels, x.data() + r * k, static_cast<int>(k), codes.get() + r * k, scales.get() + r * blocks);
  return nb::make_tuple(own_array(std::move(codes), {rows, k}), own_array(std::move(scales), {rows, blocks}));
}

nb::tuple read_block(const KVCache& kv, int layer, int block, int head) {
  const size_t d = kv.view().head_dim;
  std::unique_ptr<float[]> keys(new float[kBlockTokens * d]), values(new float[kBlockTokens * d]);
  kv.read_block(layer, block, head, keys.get(), values.get());
  return nb::make_tuple(own_array(std::move(keys), {kBlockTokens, d}), own_array(std::move(values), {kBlockTokens, d}));
}

std::shared_ptr<Program> make_program(Pool& pool, std::shared_ptr<KVCache> kv, int max_tokens, int hidden) {
  return std::make_shared<Program>(pool.threads, pool.kernels, std::move(kv), max_tokens, hidden);
}

RopeStyle rope_style(const std::string& name) {
  if (name == "interleaved") return kRopeInterleaved;
  if (name == "half") return kRopeHalves;
  throw std::invalid_argument("rope style '" + name + "' is not 'interleaved' or 'half'");
}

Activation activation(const std::string& name) {
  if (name == "silu") return kSilu;
  if (name == "gelu") return kGelu;
  throw std::invalid_argument("activation '" + name + "' is not 'silu' or 'gelu'");
}

// Optional vectors: float32 [n] or None.
using Floats = std::optional<Array<float, 1>>;

Vector vector(const Floats& a) { return a ? Vector{a->data(), static_cast<int64_t>(a->size())} : Vector{}; }

std::shared_ptr<RopeTable> rope_table(const Array<float, 2>& cos, const Array<float, 2>& sin,
                                      const std::string& style) {
  if (cos.shape(0) != sin.shape(0) || cos.shape(1) != sin.shape(1) || cos.shape(1) > 4096)
    throw std::invalid_argument("cos and sin must be [positions, rotated dimensions / 2]");
  return make_rope_table(cos.data(), sin.data(), static_cast<int64_t>(cos.shape(0)), 2 * static_cast<int>(cos.shape(1)),
                         rope_style(style));
}

using BlockTables = nb::ndarray<const int32_t, nb::ndim<2>, nb::device::cpu>;
using Logits = std::optional<Out<float, 2>>;
using HiddenTokens = std::optional<Array<int32_t, 1>>;
using Hidden = std::optional<Out<float, 2>>;

// The parts of a step that come as tables: block tables, the rows of logits and of hidden states to write.
Step with_tables(const Program& program, const BlockTables& block_tables, const Logits& logits,
                 const HiddenTokens& hidden_tokens, const Hidden& hidden) {
  if (block_tables.shape(1) > 1 && block_tables.stride(1) != 1)
    throw std::invalid_argument("rows of block_tables must be contiguous");
  if (logits && logits->shape(0) > 0 && logits->shape(1) != static_cast<size_t>(program.vocab()))
    throw std::invalid_argument("logits must have one column per vocabulary entry");
  const size_t n_hidden = hidden_tokens ? hidden_tokens->size() : 0;
  if ((hidden ? hidden->shape(0) : 0) != n_hidden)
    throw std::invalid_argument("hidden_tokens and hidden differ in length");
  if (n_hidden && hidden->shape(1) != static_cast<size_t>(program.hidden()))
    throw std::invalid_argument("hidden must have one column per value of a hidden state");
  Step step{};
  step.n_slots = static_cast<int>(block_tables.shape(0));
  step.max_blocks = static_cast<int>(block_tables.shape(1));
  step.block_tables = block_tables.data();
  step.table_stride = block_tables.stride(0);
  step.logits = logits ? logits->data() : nullptr;
  step.n_logit_rows = logits ? static_cast<int>(logits->shape(0)) : 0;
  step.n_hidden = static_cast<int>(std::min<size_t>(n_hidden, 1 << 20));
  step.hidden_tokens = n_hidden ? hidden_tokens->data() : nullptr;
  step.hidden = n_hidden ? hidden->data() : nullptr;
  return step;
}

void run_program(Program& program, const Array<int32_t, 1>& token_ids, const Array<int32_t, 1>& positions,
                 const Array<int32_t, 1>& row_of_token, const Array<int32_t, 1>& slot_of_row,
                 const BlockTables& block_tables, const Array<int32_t, 1>& logit_tokens,
                 const Array<uint8_t, 1>& greedy, const Out<int32_t, 1>& out_ids, const Out<uint8_t, 1>& out_nan,
                 const Logits& logits, const HiddenTokens& hidden_tokens, const Hidden& hidden) {
  const size_t tokens = token_ids.size(), rows = logit_tokens.size();
  if (positions.size() != tokens || row_of_token.size() != tokens)
    throw std::invalid_argument("token_ids, positions and row_of_token differ in length");
  if (greedy.size() != rows || out_ids.size() != rows || out_nan.size() != rows)
    throw std::invalid_argument("logit_tokens, greedy, out_ids and out_nan differ in length");
  Step step = with_tables(program, block_tables, logits, hidden_tokens, hidden);
  step.n_tokens = static_cast<int>(std::min<size_t>(tokens, 1 << 20));
  step.token_ids = token_ids.data();
  step.positions = positions.data();
  step.row_of_token = row_of_token.data();
  step.n_rows = static_cast<int>(slot_of_row.size());
  step.slot_of_row = slot_of_row.data();
  step.n_logits = static_cast<int>(std::min<size_t>(rows, 1 << 20));
  step.logit_tokens = logit_tokens.data();
  step.greedy = greedy.data();
  step.out_ids = out_ids.data();
  step.out_nan = out_nan.data();
  const nb::gil_scoped_release release;
  program.run(step);
}

void run_rows(Program& program, const rows_bindings::Columns& columns, const rows_bindings::Table& state,
              const rows_bindings::Table& tokens, const BlockTables& block_tables,
              const Array<uint8_t, 1>& needs_logits, const Array<int32_t, 1>& scored, const Out<int32_t, 1>& out_ids,
              const Out<int32_t, 1>& out_nan, const Logits& logits, const HiddenTokens& hidden_tokens,
              const Hidden& hidden) {
  const StepRows rows = rows_bindings::rows_of(columns);
  const SlotTable slots = rows_bindings::slots_of(state, tokens);
  const auto n = static_cast<size_t>(rows.n);
  if (out_ids.size() != n || out_nan.size() != n) throw std::invalid_argument("out_ids and out_nan must be [rows]");
  if (needs_logits.size() != static_cast<size_t>(slots.n)) throw std::invalid_argument("needs_logits must be [slots]");
  Step step = with_tables(program, block_tables, logits, hidden_tokens, hidden);
  thread_local SpreadRows spread;  // keeps its memory from step to step
  thread_local std::vector<int32_t> ids;
  thread_local std::vector<uint8_t> nan;
  const nb::gil_scoped_release release;
  spread.spread(rows, slots, needs_logits.data(), scored.data(),
                static_cast<int>(std::min<size_t>(scored.size(), 1 << 20)));
  ids.resize(spread.logit_tokens.size()), nan.resize(spread.logit_tokens.size());
  step.n_tokens = static_cast<int>(std::min<size_t>(spread.token_ids.size(), 1 << 20));
  step.token_ids = spread.token_ids.data();
  step.positions = spread.positions.data();
  step.row_of_token = spread.row_of_token.data();
  step.n_rows = rows.n;
  step.slot_of_row = rows.slots;
  step.n_logits = static_cast<int>(spread.logit_tokens.size());
  step.logit_tokens = spread.logit_tokens.data();
  step.greedy = spread.greedy.data();
  step.out_ids = ids.data();
  step.out_nan = nan.data();
  program.run(step);
  std::fill_n(out_ids.data(), n, -1);
  std::fill_n(out_nan.data(), n, 0);
  for (size_t i = 0; i < ids.size(); i++) {
    if (spread.logit_rows[i] < 0) continue;
    out_ids.data()[spread.logit_rows[i]] = ids[i];
    out_nan.data()[spread.logit_rows[i]] = nan[i];
  }
}

void count_times(Program& program, const std::optional<Out<uint64_t, 2>>& times) {
  if (!times) return program.count_times(KindTimes{});
  if (times->shape(0) != kKinds || times->shape(1) < 2)
    throw std::invalid_argument("times must have a row of at least two numbers for each kind of operation");
  program.count_times(KindTimes{times->data(), static_cast<int64_t>(times->shape(1))});
}

nb::ndarray<nb::numpy, float> residual(const Program& program, int n) {
  if (n < 0 || n > program.max_tokens()) throw std::invalid_argument("more rows than the program has");
  const size_t size = static_cast<size_t>(n) * program.hidden();
  std::unique_ptr<float[]> out(new float[size]);
  if (size) std::memcpy(out.get(), program.residual(), size * sizeof(float));
  return own_array(std::move(out), {static_cast<size_t>(n), static_cast<size_t>(program.hidden())});
}

nb::tuple limits(Pool& pool, size_t bytes) {
  Limits found;
  {
    const nb::gil_scoped_release release;
    found = measure_limits(*pool.kernels, *pool.threads, bytes);
  }
  return nb::make_tuple(found.bytes_read_per_s, found.int8_macs_per_s, found.bf16_macs_per_s);
}

std::vector<double> products(Pool& pool, const std::vector<std::shared_ptr<PackedMatrix>>& matrices, int rows,
                             int rounds) {
  if (matrices.empty() || rows < 1 || rows > (1 << 16) || rounds < 1)
    throw std::invalid_argument("products are measured with at least one matrix, row and round");
  for (const auto& m : matrices)
    if (m->n != matrices[0]->n || m->k != matrices[0]->k || m->act != matrices[0]->act ||
        m->bytes != matrices[0]->bytes)
      throw std::invalid_argument("the matrices differ in shape or kind");
  const nb::gil_scoped_release release;
  return measure_products(*pool.kernels, *pool.threads, matrices, rows, rounds);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Kernels of the native executor. `sixfold.executor.native.kernels` is the face to use.";
  const char* forced = std::getenv("SIXFOLD_ISA");
  try {
    default_build = build_named(forced ? forced : "");
  } catch (const std::invalid_argument& e) {
    throw nb::import_error(("SIXFOLD_ISA: " + std::string(e.what())).c_str());
  }

  m.attr("interface") = SF_INTERFACE;
  m.def("operation_kinds", [] { return std::vector<std::string>(std::begin(kKindNames), std::end(kKindNames)); });
  m.def("isas", [] {
    std::vector<std::string> names;
    for (const Build& build : builds()) names.emplace_back(build.kernels->name);
    return names;
  });
  m.def("default_isa", [] { return std::string(default_build.kernels->name); });

  nb::class_<Pool>(m, "ThreadPool")
      .def(nb::new_(&make_pool), nb::arg("n_threads"), nb::arg("isa") = "")
      .def_prop_ro("n_threads", [](const Pool& p) { return p.threads->size(); })
      .def_prop_ro("isa", [](const Pool& p) { return std::string(p.kernels->name); })
      .def_prop_ro("bf16_sums", [](const Pool& p) { return p.kernels->bf16_sums; })
      .def_prop_ro("bytes_packed", [](const Pool& p) { return p.arena->bytes(); });

  nb::class_<PackedMatrix>(m, "PackedMatrix")
      .def_prop_ro("n", [](const PackedMatrix& p) { return p.n_true; })
      .def_prop_ro("k", [](const PackedMatrix& p) { return p.k; })
      .def_prop_ro("kind",
                   [](const PackedMatrix& p) {
                     std::string names;
                     for (const MatrixView& part : p.parts) names += (names.empty() ? "" : "+") + kind_name(part.kind);
                     return names;
                   })
      .def_prop_ro("n_bytes", [](const PackedMatrix& p) { return p.bytes; })
      .def("unpack", &unpack);

  nb::class_<Embedding>(m, "Embedding")
      .def(nb::new_(
               [](const std::string& name, int type, Array<uint8_t, 1> data, int64_t n_rows, int64_t k, bool finite) {
                 const nb::gil_scoped_release release;
                 return std::make_shared<Embedding>(make_embedding(to_source(name, type, data, n_rows, k), finite));
               }),
           nb::arg("name"), nb::arg("ggml_type"), nb::arg("data").noconvert(), nb::arg("n_rows"), nb::arg("k"),
           nb::arg("finite"), nb::keep_alive<0, 4>())
      .def_prop_ro("n_rows", [](const Embedding& e) { return e.n_rows; })
      .def_prop_ro("k", [](const Embedding& e) { return e.k; });

  nb::class_<KVCache>(m, "KVCache")
      .def(nb::new_([](int n_layers, int n_kv_heads, int head_dim, int n_blocks, bool is_float) {
             return std::make_shared<KVCache>(n_layers, n_kv_heads, head_dim, n_blocks, is_float);
           }),
           nb::arg("n_layers"), nb::arg("n_kv_heads"), nb::arg("head_dim"), nb::arg("n_blocks"), nb::arg("is_float"))
      .def_prop_ro("n_blocks", [](const KVCache& kv) { return kv.view().n_blocks; })
      .def_prop_ro("n_bytes", &KVCache::bytes)
      .def(
          "copy_blocks",
          [](KVCache& kv, const Array<int32_t, 2>& pairs) {
            if (pairs.shape(1) != 2) throw std::invalid_argument("pairs must be [n, 2]");
            const nb::gil_scoped_release release;
            kv.copy_blocks(pairs.data(), static_cast<int>(pairs.shape(0)));
          },
          nb::arg("pairs").noconvert())
      .def(
          "give_memory",
          [](KVCache& kv, int n_used) {
            const nb::gil_scoped_release release;
            return kv.give_memory(n_used);
          },
          nb::arg("n_used"))
      .def("read_block", &read_block)
      .def("fill_block", [](KVCache& kv, int block, int byte) { kv.fill_block(block, static_cast<uint8_t>(byte)); });

  m.def("pack_matrix", &pack, nb::arg("pool"), nb::arg("sources"), nb::arg("interleave"), nb::arg("float_activations"));
  m.def("matmul", &product, nb::arg("pool"), nb::arg("matrix"), nb::arg("x").noconvert());
  m.def("quantize", &quantize, nb::arg("pool"), nb::arg("x").noconvert());
  m.def("measure_limits", &limits, nb::arg("pool"), nb::arg("n_bytes"));
  m.def("measure_products", &products, nb::arg("pool"), nb::arg("matrices"), nb::arg("rows"), nb::arg("rounds"));

  nb::class_<RopeTable>(m, "RopeTable")
      .def(nb::new_(&rope_table), nb::arg("cos").noconvert(), nb::arg("sin").noconvert(), nb::arg("style"))
      .def_prop_ro("n_positions", [](const RopeTable& t) { return t.n_positions; })
      .def_prop_ro("dims", [](const RopeTable& t) { return t.dims; });

  nb::class_<Program>(m, "Program")
      .def(nb::new_(&make_program), nb::arg("pool"), nb::arg("kv"), nb::arg("max_tokens"), nb::arg("hidden"))
      .def_prop_ro("max_tokens", &Program::max_tokens)
      .def_prop_ro("hidden", &Program::hidden)
      .def_prop_ro("vocab", &Program::vocab)
      .def_prop_ro("bytes_scratch", &Program::scratch_bytes)
      .def("embed", &Program::embed, nb::arg("table"), nb::arg("scale") = 1.0f)
      .def(
          "norm_qkv_rope_write",
          [](Program& p, int layer, const Floats& norm, std::shared_ptr<PackedMatrix> w, int n_heads, int n_kv_heads,
             int head_dim, std::shared_ptr<RopeTable> rope, float eps, const Floats& bias, const Floats& q_norm,
             const Floats& k_norm) {
            p.norm_qkv_rope_write(QkvOp{layer, vector(norm), std::move(w), n_heads, n_kv_heads, head_dim,
                                        std::move(rope), eps, vector(bias), vector(q_norm), vector(k_norm)});
          },
          nb::arg("layer"), nb::arg("norm").noconvert().none(), nb::arg("w"), nb::arg("n_heads"), nb::arg("n_kv_heads"),
          nb::arg("head_dim"), nb::arg("rope"), nb::arg("eps"), nb::kw_only(),
          nb::arg("bias").noconvert().none() = nb::none(), nb::arg("q_norm").noconvert().none() = nb::none(),
          nb::arg("k_norm").noconvert().none() = nb::none())
      .def("attention", &Program::attention, nb::arg("layer"), nb::arg("scale"), nb::kw_only(), nb::arg("window") = 0,
           nb::arg("softcap") = 0.0f)
      .def(
          "proj_residual",
          [](Program& p, std::shared_ptr<PackedMatrix> w, const Floats& bias, const Floats& post_norm, float eps) {
            p.proj_residual(std::move(w), vector(bias), vector(post_norm), eps);
          },
          nb::arg("w"), nb::kw_only(), nb::arg("bias").noconvert().none() = nb::none(),
          nb::arg("post_norm").noconvert().none() = nb::none(), nb::arg("eps") = 0.0f)
      .def(
          "norm_gateup_act",
          [](Program& p, const Floats& norm, std::shared_ptr<PackedMatrix> w, const std::string& act, float eps) {
            p.norm_gateup_act(vector(norm), std::move(w), activation(act), eps);
          },
          nb::arg("norm").noconvert().none(), nb::arg("w"), nb::arg("act"), nb::arg("eps"))
      .def(
          "down_residual",
          [](Program& p, std::shared_ptr<PackedMatrix> w, const Floats& post_norm, float eps) {
            p.down_residual(std::move(w), vector(post_norm), eps);
          },
          nb::arg("w"), nb::kw_only(), nb::arg("post_norm").noconvert().none() = nb::none(), nb::arg("eps") = 0.0f)
      .def(
          "norm_experts_residual",
          [](Program& p, const Floats& norm, std::shared_ptr<PackedMatrix> router,
             const std::vector<std::tuple<std::shared_ptr<PackedMatrix>, std::shared_ptr<PackedMatrix>>>& experts,
             int n_used, bool renormalize, const std::string& act, float eps) {
            ExpertsOp op{vector(norm), std::move(router), {}, n_used, renormalize, activation(act), eps};
            for (const auto& [gate_up, down] : experts) op.experts.push_back(Expert{gate_up, down});
            p.norm_experts_residual(op);
          },
          nb::arg("norm").noconvert(), nb::arg("router"), nb::arg("experts"), nb::arg("n_used"), nb::arg("renormalize"),
          nb::arg("act"), nb::arg("eps"))
      .def(
          "final_norm_head",
          [](Program& p, const Floats& norm, std::shared_ptr<PackedMatrix> w, float eps, float softcap) {
            p.final_norm_head(vector(norm), std::move(w), eps, softcap);
          },
          nb::arg("norm").noconvert(), nb::arg("w"), nb::arg("eps"), nb::kw_only(), nb::arg("softcap") = 0.0f)
      .def("finalize", &Program::finalize)
      .def("run", &run_program, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(),
           nb::arg("row_of_token").noconvert(), nb::arg("slot_of_row").noconvert(), nb::arg("block_tables").noconvert(),
           nb::arg("logit_tokens").noconvert(), nb::arg("greedy").noconvert(), nb::arg("out_ids").noconvert(),
           nb::arg("out_nan").noconvert(), nb::arg("logits").noconvert().none() = nb::none(),
           nb::arg("hidden_tokens").noconvert().none() = nb::none(), nb::arg("hidden").noconvert().none() = nb::none())
      .def("run_rows", &run_rows, nb::arg("columns").noconvert(), nb::arg("state").noconvert(),
           nb::arg("tokens").noconvert(), nb::arg("block_tables").noconvert(), nb::arg("needs_logits").noconvert(),
           nb::arg("scored").noconvert(), nb::arg("out_ids").noconvert(), nb::arg("out_nan").noconvert(),
           nb::arg("logits").noconvert().none() = nb::none(), nb::arg("hidden_tokens").noconvert().none() = nb::none(),
           nb::arg("hidden").noconvert().none() = nb::none())
      .def("count_times", &count_times, nb::arg("times").noconvert().none(), nb::keep_alive<1, 2>())
      .def_prop_ro("blocks_used", &Program::blocks_used)
      .def("residual", &residual, nb::arg("n"));

  rows_bindings::bind_rows(m);

  bind_sampler(m, default_build.sampler);
  text_bindings::bind_text(m);
}
