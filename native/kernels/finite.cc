#include "finite.h"

#include <cstring>

#include "layout.h"
#include "pack.h"

namespace sixfold {
namespace {

// A number is not finite if all bits of its exponent are set: then adding the lowest of them carries into the sign's.
constexpr uint32_t kLowestF32 = 0x00800000;
constexpr uint16_t kLowestF16 = 0x0400, kLowestBF16 = 0x0080;

template <typename Bits>
Bits carry(const uint8_t* p, Bits lowest) {
  constexpr Bits kMagnitude = static_cast<Bits>(-1) >> 1;
  Bits bits;
  std::memcpy(&bits, p, sizeof bits);
  return static_cast<Bits>((bits & kMagnitude) + lowest);
}

// The loops have no exit on the way: they are to cost little, and a fault is rare.
template <typename Bits>
bool values_finite(const uint8_t* p, int64_t n, Bits lowest) {
  Bits all = 0;
  for (int64_t i = 0; i < n; i++) all = static_cast<Bits>(all | carry(p + i * sizeof(Bits), lowest));
  return !(all >> (8 * sizeof(Bits) - 1));
}

// n blocks of kBytes with one float16 number, or two.
template <int kBytes, int kFirst, int kSecond = kFirst>
bool scales_finite(const uint8_t* p, int64_t n) {
  uint16_t all = 0;
  for (int64_t i = 0; i < n; i++, p += kBytes) {
    all = static_cast<uint16_t>(all | carry(p + kFirst, kLowestF16));
    if (kSecond != kFirst) all = static_cast<uint16_t>(all | carry(p + kSecond, kLowestF16));
  }
  return !(all >> 15);
}

// Of n values in whole blocks.
bool is_finite(int ggml_type, const uint8_t* p, int64_t n) {
  switch (ggml_type) {
    case kGgmlF32:
      return values_finite(p, n, kLowestF32);
    case kGgmlF16:
      return values_finite(p, n, kLowestF16);
    case kGgmlBF16:
      return values_finite(p, n, kLowestBF16);
    case kGgmlQ4_0:
      return scales_finite<18, 0>(p, n / kQuantBlock);
    case kGgmlQ4_1:
      return scales_finite<20, 0, 2>(p, n / kQuantBlock);
    case kGgmlQ5_0:
      return scales_finite<22, 0>(p, n / kQuantBlock);
    case kGgmlQ5_1:
      return scales_finite<24, 0, 2>(p, n / kQuantBlock);
    case kGgmlQ8_0:
      return scales_finite<34, 0>(p, n / kQuantBlock);
    case kGgmlQ4_K:
      return scales_finite<144, 0, 2>(p, n / kSuperBlock);
    case kGgmlQ5_K:
      return scales_finite<176, 0, 2>(p, n / kSuperBlock);
    case kGgmlQ6_K:
      return scales_finite<210, 208>(p, n / kSuperBlock);
    default:
      return false;
  }
}

}  // namespace

int64_t first_not_finite(int ggml_type, const uint8_t* row, int64_t k) {
  if (is_finite(ggml_type, row, k)) return -1;
  const bool super = ggml_type == kGgmlQ4_K || ggml_type == kGgmlQ5_K || ggml_type == kGgmlQ6_K;
  int64_t at = 0;
  while (is_finite(ggml_type, row + row_bytes(ggml_type, at), super ? kSuperBlock : kQuantBlock))
    at += super ? kSuperBlock : kQuantBlock;
  return at;
}

}  // namespace sixfold
