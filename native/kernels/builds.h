// The instruction sets that kernels were compiled for, and which of them this CPU has.
#pragma once

#include <vector>

#include "kernel_table.h"
#include "sample.h"

namespace sixfold {

struct Build {
  const KernelTable* kernels;
  const SamplerTable* sampler;
};

// What runs on this CPU, the fastest first.
std::vector<Build> builds();

}  // namespace sixfold
