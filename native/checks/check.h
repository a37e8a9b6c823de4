// The checks of the compiled parts without Python: for processors that are only emulated where the tests run, and for
// sanitizers.
#pragma once

#include <random>
#include <string>

#include "builds.h"

namespace sixfold {

// Counts a fault, and prints it, unless `good`.
void expect(bool good, const std::string& where, const std::string& what);

void check_kernels(const Build& build);
void check_sampler(const Build& build);
void check_pool();
void check_spm();

}  // namespace sixfold
