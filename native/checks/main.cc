// Prints one line for each part; exit status 1 on a fault.
#include <cstdio>

#include "check.h"

namespace {
int faults = 0;
}

void sixfold::expect(bool good, const std::string& where, const std::string& what) {
  if (good) return;
  std::printf("%s: %s\n", where.c_str(), what.c_str());
  faults++;
}

int main() {
  auto report = [before = 0](const char* part) mutable {
    std::printf("%s: %s\n", part, faults == before ? "good" : "FAULTY");
    before = faults;
  };
  sixfold::check_pool();
  report("threads");
  sixfold::check_spm();
  report("text");
  for (const sixfold::Build& build : sixfold::builds()) {
    sixfold::check_kernels(build);
    sixfold::check_sampler(build);
    report(build.kernels->name);
  }
  return faults != 0;
}
