// What this machine can do, and what products make of it.
#pragma once

#include <memory>
#include <vector>

#include "kernel_table.h"
#include "pack.h"
#include "thread_pool.h"

namespace sixfold {

// With all threads of a pool; the best of a few rounds.
struct Limits {
  double bytes_read_per_s, int8_macs_per_s, bf16_macs_per_s;
};

// Memory is read over and over, `bytes` of it, with software prefetch.
Limits measure_limits(const KernelTable& kernels, ThreadPool& pool, size_t bytes);

// Seconds of each of `rounds` passes over all matrices, one after the other as a program has them, with as many rows of
// activations. The matrices have equal shapes and kinds.
std::vector<double> measure_products(const KernelTable& kernels, ThreadPool& pool,
                                     const std::vector<std::shared_ptr<PackedMatrix>>& matrices, int rows, int rounds);

}  // namespace sixfold
