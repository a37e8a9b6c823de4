#include "builds.h"

namespace sixfold {

std::vector<Build> builds() {
  std::vector<Build> found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("avx512bf16"))
    found.push_back({kernels_avx512(), sampler_avx512()});
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    if (__builtin_cpu_supports("avxvnni")) found.push_back({kernels_avxvnni(), sampler_avxvnni()});
    found.push_back({kernels_avx2(), sampler_avx2()});
  }
#endif
  found.push_back({kernels_generic(), sampler_generic()});
  return found;
}

}  // namespace sixfold
