// `_native.sampler`: the row kernels of the sampler. src/sixfold/sampler/kernels.py is their only caller.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <stdexcept>

#include "../kernels/sample.h"
#include "pool.h"

namespace sixfold::sample_bindings {

namespace nb = nanobind;

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// [n_rows, n_vocab]; a row is contiguous, rows may be apart.
using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;

constexpr size_t kMaxVocab = size_t{1} << 22;  // above it, sums of weights could overflow

struct Rows {
  const float* data;
  size_t n_rows, n_vocab;
  int64_t stride;  // floats between rows

  const float* operator[](size_t i) const { return data + (int64_t)i * stride; }
};

inline Rows rows_of(const Logits& logits) {
  const Rows rows{logits.data(), logits.shape(0), logits.shape(1), logits.stride(0)};
  if (rows.n_vocab == 0 || rows.n_vocab >= kMaxVocab) throw std::invalid_argument("logits: the width is out of range");
  if (rows.n_rows > 0 && rows.n_vocab > 1 && logits.stride(1) != 1) {
    throw std::invalid_argument("logits: each row must be contiguous");
  }
  return rows;
}

inline void expect(size_t have, size_t want, const char* message) {
  if (have != want) throw std::invalid_argument(message);
}

// For each of n_threads; grown to the most that was asked for. The caller's, who waits while other threads use it.
inline uint8_t* scratch_for(size_t bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  thread_local std::unique_ptr<void, Free> memory;
  thread_local size_t size = 0;
  if (bytes > size) {
    memory.reset(std::aligned_alloc(64, bytes));
    size = memory ? bytes : 0;
    if (!memory) throw std::bad_alloc();
  }
  return static_cast<uint8_t*>(memory.get());
}

// Calls f(row, scratch) for every row, with the threads of the pool where there is one.
template <class F>
void for_rows(const Pool* pool, const Rows& rows, const F& f) {
  struct Job {
    const F& f;
    size_t n_rows, n_chunks, scratch_bytes;
    uint8_t* scratch;
  };
  const int n_threads = pool && rows.n_rows > 1 ? pool->threads->size() : 1;
  const size_t bytes = sampler_scratch_bytes(rows.n_vocab), n_chunks = std::min<size_t>(rows.n_rows, kMaxChunks);
  Job job{f, rows.n_rows, n_chunks, bytes, scratch_for(bytes * n_threads)};
  const auto chunk = [](void* arg, const void*, int c, int thread) {
    const Job& j = *static_cast<const Job*>(arg);
    for (size_t i = c; i < j.n_rows; i += j.n_chunks) j.f(i, j.scratch + thread * j.scratch_bytes);
  };
  if (n_threads > 1)
    pool->threads->run({Phase{chunk, nullptr, static_cast<int>(n_chunks)}}, &job);
  else
    for (size_t c = 0; c < n_chunks; c++) chunk(&job, nullptr, static_cast<int>(c), 0);
}

inline void bind(nb::module_& m, const SamplerTable* table) {
  m.def(
      "usable_rows",
      [table](const Pool* pool, const Logits& logits, Vector<uint8_t> out) {
        const Rows rows = rows_of(logits);
        expect(out.shape(0), rows.n_rows, "out: one entry per row is wanted");
        uint8_t* usable = out.data();
        nb::gil_scoped_release release;
        for_rows(pool, rows, [=](size_t i, void*) { usable[i] = (uint8_t)table->usable(rows[i], rows.n_vocab); });
      },
      nb::arg("pool").none(), nb::arg("logits").noconvert(), nb::arg("out").noconvert());
  m.def(
      "draw_rows",
      [table](const Pool* pool, const Logits& logits, Matrix<const uint8_t> params, Vector<const int64_t> positions,
              Vector<int32_t> out) {
        const Rows rows = rows_of(logits);
        expect(params.shape(0), rows.n_rows, "params: one record per row is wanted");
        expect(params.shape(1), sizeof(RowParams), "params: a record has 32 bytes");
        expect(positions.shape(0), rows.n_rows, "positions: one entry per row is wanted");
        expect(out.shape(0), rows.n_rows, "out: one entry per row is wanted");
        const auto* row_params = reinterpret_cast<const RowParams*>(params.data());
        const int64_t* position = positions.data();
        int32_t* token = out.data();
        nb::gil_scoped_release release;
        for_rows(pool, rows, [=](size_t i, void* scratch) {
          token[i] = table->draw(rows[i], rows.n_vocab, &row_params[i], position[i], scratch);
        });
      },
      nb::arg("pool").none(), nb::arg("logits").noconvert(), nb::arg("params").noconvert(),
      nb::arg("positions").noconvert(), nb::arg("out").noconvert());
  m.def(
      "draw_allowed_rows",
      [table](const Pool* pool, const Logits& logits, Matrix<const uint8_t> params, Vector<const int64_t> positions,
              Matrix<const int32_t> masks, Vector<const int32_t> mask_of_row, Vector<int32_t> out) {
        const Rows rows = rows_of(logits);
        expect(params.shape(0), rows.n_rows, "params: one record per row is wanted");
        expect(params.shape(1), sizeof(RowParams), "params: a record has 32 bytes");
        expect(positions.shape(0), rows.n_rows, "positions: one entry per row is wanted");
        expect(out.shape(0), rows.n_rows, "out: one entry per row is wanted");
        expect(mask_of_row.shape(0), rows.n_rows, "mask_of_row: one entry per row is wanted");
        expect(masks.shape(1), (rows.n_vocab + 31) / 32, "masks: one bit per token is wanted");
        for (size_t i = 0; i < rows.n_rows; i++) {
          if (mask_of_row.data()[i] >= (int64_t)masks.shape(0)) {
            throw std::invalid_argument("mask_of_row: there is no such mask");
          }
        }
        const auto* row_params = reinterpret_cast<const RowParams*>(params.data());
        const int64_t* position = positions.data();
        const int32_t* mask_row = mask_of_row.data();
        const auto* words = reinterpret_cast<const uint32_t*>(masks.data());
        const size_t n_words = masks.shape(1);
        int32_t* token = out.data();
        nb::gil_scoped_release release;
        for_rows(pool, rows, [=](size_t i, void* scratch) {
          token[i] = mask_row[i] < 0 ? table->draw(rows[i], rows.n_vocab, &row_params[i], position[i], scratch)
                                     : table->draw_allowed(rows[i], rows.n_vocab, words + (size_t)mask_row[i] * n_words,
                                                           &row_params[i], position[i], scratch);
        });
      },
      nb::arg("pool").none(), nb::arg("logits").noconvert(), nb::arg("params").noconvert(),
      nb::arg("positions").noconvert(), nb::arg("masks").noconvert(), nb::arg("mask_of_row").noconvert(),
      nb::arg("out").noconvert());
  m.def(
      "score_rows",
      [table](const Pool* pool, const Logits& logits, Vector<const int32_t> targets, Vector<double> logprobs,
              Vector<int32_t> ranks, Matrix<int32_t> top_ids, Matrix<double> top_logprobs) {
        const Rows rows = rows_of(logits);
        const size_t n_top = top_ids.shape(1);
        expect(targets.shape(0), rows.n_rows, "targets: one entry per row is wanted");
        expect(logprobs.shape(0), rows.n_rows, "logprobs: one entry per row is wanted");
        expect(ranks.shape(0), rows.n_rows, "ranks: one entry per row is wanted");
        expect(top_ids.shape(0), rows.n_rows, "top_ids: one row per row is wanted");
        expect(top_logprobs.shape(0), rows.n_rows, "top_logprobs: one row per row is wanted");
        expect(top_logprobs.shape(1), n_top, "top_logprobs: as wide as top_ids is wanted");
        if (n_top > rows.n_vocab) throw std::invalid_argument("top_ids: wider than the vocabulary");
        for (size_t i = 0; i < rows.n_rows; i++) {
          if (targets.data()[i] < 0 || (size_t)targets.data()[i] >= rows.n_vocab) {
            throw std::invalid_argument("targets: an id is outside the vocabulary");
          }
        }
        nb::gil_scoped_release release;
        const int32_t* target = targets.data();
        double *logprob = logprobs.data(), *top_logprob = top_logprobs.data();
        int32_t *rank = ranks.data(), *top_id = top_ids.data();
        for_rows(pool, rows, [=](size_t i, void* scratch) {
          rank[i] = table->score(rows[i], rows.n_vocab, target[i], n_top, logprob + i, top_id + i * n_top,
                                 top_logprob + i * n_top, scratch);
        });
      },
      nb::arg("pool").none(), nb::arg("logits").noconvert(), nb::arg("targets").noconvert(),
      nb::arg("logprobs").noconvert(), nb::arg("ranks").noconvert(), nb::arg("top_ids").noconvert(),
      nb::arg("top_logprobs").noconvert());
}

}  // namespace sixfold::sample_bindings

// Adds the submodule `sampler`, over the kernels of the chosen instruction set.
inline void bind_sampler(nanobind::module_& m, const sixfold::SamplerTable* table) {
  nanobind::module_ sampler = m.def_submodule("sampler", "Row kernels of the sampler.");
  sixfold::sample_bindings::bind(sampler, table);
}
