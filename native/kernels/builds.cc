#include "builds.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace sixfold {

std::vector<Build> builds() {
  std::vector<Build> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16"))
    found.push_back({kernels_avx512(), sampler_avx512()});
  if (avx2 && __builtin_cpu_supports("avxvnni")) found.push_back({kernels_avxvnni(), sampler_avxvnni()});
  if (avx2) found.push_back({kernels_avx2(), sampler_avx2()});
#endif
#if defined(__aarch64__)
  if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) found.push_back({kernels_neon(), sampler_neon()});
#endif
  found.push_back({kernels_generic(), sampler_generic()});
  return found;
}

}  // namespace sixfold
