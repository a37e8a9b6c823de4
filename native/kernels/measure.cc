#include "measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "chunks.h"
#include "memory.h"

namespace sixfold {
namespace {

constexpr int kPeakRounds = 200000, kReadChunks = 256, kRounds = 5;

double seconds_of(ThreadPool& pool, const std::vector<Phase>& phases, void* arg) {
  const auto begin = std::chrono::steady_clock::now();
  pool.run(phases, arg);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct LimitsJob {
  const KernelTable* kernels;
  const uint8_t* data;
  size_t bytes_per_chunk;
  std::atomic<uint64_t> sink;  // keeps the work alive
};

void read_chunk(void* arg, const void*, int chunk, int) {
  LimitsJob& job = *static_cast<LimitsJob*>(arg);
  job.sink += job.kernels->read_memory(job.data + chunk * job.bytes_per_chunk, job.bytes_per_chunk);
}

void int8_chunk(void* arg, const void*, int, int) {
  LimitsJob& job = *static_cast<LimitsJob*>(arg);
  int32_t sink;
  job.kernels->int8_peak(kPeakRounds, &sink);
  job.sink += static_cast<uint32_t>(sink);
}

void bf16_chunk(void* arg, const void*, int, int) {
  LimitsJob& job = *static_cast<LimitsJob*>(arg);
  float sink;
  job.kernels->bf16_peak(kPeakRounds, &sink);
  job.sink += sink > 0;
}

struct ProductsJob {
  const KernelTable* kernels;
  const uint8_t* act;
  int rows, tiles_per_chunk;
  std::vector<float> y;  // of each thread
  size_t y_size;
};

void product_chunk(void* arg, const void* op, int chunk, int thread) {
  ProductsJob& job = *static_cast<ProductsJob*>(arg);
  const PackedMatrix& w = *static_cast<const PackedMatrix*>(op);
  const ProductPart p = part_of(w, job.tiles_per_chunk, chunk, job.rows);
  matmul(*job.kernels, w, job.act, p.row, p.n_rows, p.tile, p.n_tiles, job.y.data() + thread * job.y_size,
         p.n_tiles * kLanes);
}

}  // namespace

Limits measure_limits(const KernelTable& kernels, ThreadPool& pool, size_t bytes) {
  const size_t per_chunk = std::max<size_t>(bytes, kReadChunks * 4096) / kReadChunks / 256 * 256;
  Pages memory(per_chunk * kReadChunks + kPrefetchSlack);
  std::memset(memory.data(), 1, per_chunk * kReadChunks);
  LimitsJob job{&kernels, memory.data(), per_chunk, {0}};
  const int chunks = 4 * pool.size();
  int32_t sink;
  float float_sink;
  const double int8_macs = kernels.int8_peak(1, &sink) * kPeakRounds * chunks;
  const double bf16_macs = kernels.bf16_peak(1, &float_sink) * kPeakRounds * chunks;
  Limits best{};
  for (int round = 0; round < kRounds; round++) {
    const double read = static_cast<double>(per_chunk) * kReadChunks;
    best.bytes_read_per_s =
        std::max(best.bytes_read_per_s, read / seconds_of(pool, {{read_chunk, nullptr, kReadChunks}}, &job));
    best.int8_macs_per_s =
        std::max(best.int8_macs_per_s, int8_macs / seconds_of(pool, {{int8_chunk, nullptr, chunks}}, &job));
    best.bf16_macs_per_s =
        std::max(best.bf16_macs_per_s, bf16_macs / seconds_of(pool, {{bf16_chunk, nullptr, chunks}}, &job));
  }
  return best;
}

std::vector<double> measure_products(const KernelTable& kernels, ThreadPool& pool,
                                     const std::vector<std::shared_ptr<PackedMatrix>>& matrices, int rows, int rounds) {
  const PackedMatrix& w = *matrices[0];
  const int groups = ceil_div(rows, kRowGroup), row_chunks = ceil_div(rows, kChunkRows);
  const size_t group_bytes = act_group_bytes(w.act, w.k);
  Pages act(groups * group_bytes);
  std::vector<float> x(static_cast<size_t>(kRowGroup) * w.k);
  for (size_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i * 37 % 255) / 127.0f - 1.0f;
  for (int g = 0; g < groups; g++)
    kernels.pack_group(x.data(), w.k, std::min(kRowGroup, rows - g * kRowGroup), w.k, w.act,
                       act.data() + g * group_bytes);

  ProductsJob job{&kernels, act.data(), rows, tiles_per_chunk(w, 1, row_chunks, pool.size()), {}, 0};
  job.y_size = static_cast<size_t>(kChunkRows) * job.tiles_per_chunk * kLanes;
  job.y.resize(job.y_size * pool.size());
  std::vector<Phase> phases;
  for (const auto& m : matrices)
    phases.push_back({product_chunk, m.get(), ceil_div(w.n / kLanes, job.tiles_per_chunk) * row_chunks});
  std::vector<double> seconds;
  for (int round = 0; round < rounds; round++) seconds.push_back(seconds_of(pool, phases, &job));
  return seconds;
}

}  // namespace sixfold
