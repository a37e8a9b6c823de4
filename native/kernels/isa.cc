// All kernels, compiled once per instruction set: SF_ISA names the build. Only pointers, sizes and internal linkage
// here: a standard template or an inline function with external linkage would leave a weak copy, made for this
// instruction set, that the linker may pick for everybody.
#if defined(SF_AVX512) || defined(SF_AVX2)
#include <immintrin.h>
#elif defined(SF_NEON)
#include <arm_neon.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernel_table.h"

#define SF_JOIN2(a, b) a##b
#define SF_JOIN(a, b) SF_JOIN2(a, b)
#define SF_STRING2(a) #a
#define SF_STRING(a) SF_STRING2(a)

// Before a loop of few iterations over registers: they must be known by name, not by index.
#if defined(__GNUC__) && !defined(__clang__)
#define SF_UNROLL _Pragma("GCC unroll 32")
#else
#define SF_UNROLL _Pragma("unroll")
#endif

namespace sixfold {
namespace {

// clang-format off: in the order of use
#include "act_numbers.h"
#if defined(SF_AVX512)
#include "simd_avx512.h"
#elif defined(SF_AVX2)
#include "simd_avx2.h"
#elif defined(SF_NEON)
#include "simd_neon.h"
#else
#include "simd_generic.h"
#endif
#if !defined(SF_BF16_SUMS)
#include "bf16_pairs.h"
#endif
#include "translation.h"
#include "activations.h"
#include "gemm.h"
#include "attention.h"
// clang-format on

}  // namespace

const KernelTable* SF_JOIN(kernels_, SF_ISA)() {
  static const KernelTable table = {SF_STRING(SF_ISA), kHalves == 2, matmul,     norm_group,      pack_group,
                                    qkv_rows,          norm_rows,    attention,  attention_merge, gate_up_rows,
                                    add_rows,          add_scaled,   softcap,    choose_experts,  argmax,
                                    int8_peak,         bf16_peak,    read_memory};
  return &table;
}

}  // namespace sixfold
