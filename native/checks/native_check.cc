// Every build of the kernels against double-precision scalar code, threads and tokenizer, without Python: for CPUs that
// are only emulated where the tests run, for encodings that this one lacks, and for sanitizers.
//
//   native_check [BUILD]...     of those that this CPU has, default all; exit status 1 on a fault, 2: not available
#include <cstdio>

#include "cases.h"

namespace sixfold {
#if defined(SF_EVEX_CHECK)
const KernelTable* kernels_avxvnni_evex();
const SamplerTable* sampler_avxvnni_evex();
#endif
}  // namespace sixfold

using namespace sixfold;

void Report::expect(bool good, const std::string& what) {
  if (good) return;
  if (++faults_ <= 20) std::printf("%s: %s\n", build_, what.c_str());
}

void Report::expect_below(double found, double bound, const std::string& what) {
  expect(found < bound, what + ": error " + std::to_string(found * 1e6) + "e-6");
}

namespace {

std::vector<Build> available() {
  std::vector<Build> found = builds();
#if defined(SF_EVEX_CHECK)
  if (__builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found.push_back({kernels_avxvnni_evex(), sampler_avxvnni_evex()});
#endif
  return found;
}

int check(const Build& build) {
  ThreadPool pool(2);
  Report report(build.kernels->name);
  check_products(*build.kernels, pool, report);
  check_rows(*build.kernels, report);
  check_programs(*build.kernels, report);
  check_sampler(*build.sampler, report);
  if (report.faults()) std::printf("%s: %d faults\n", build.kernels->name, report.faults());
  if (!report.faults()) std::printf("%s: good\n", build.kernels->name);
  std::fflush(stdout);
  return report.faults() != 0;
}

int check_shared() {
  Report report("threads and text");
  check_pool(report);
  check_spm(report);
  if (!report.faults()) std::printf("threads and text: good\n");
  return report.faults() != 0;
}

}  // namespace

int main(int argc, char** argv) {
  int status = argc == 1 ? check_shared() : 0;
  if (argc == 1)
    for (const Build& build : available()) status |= check(build);
  for (int i = 1; i < argc; i++) {
    bool found = false;
    for (const Build& build : available())
      if (std::string(argv[i]) == build.kernels->name) found = true, status |= check(build);
    if (!found) {
      std::printf("%s: not available on this CPU\n", argv[i]);
      return 2;
    }
  }
  return status;
}
