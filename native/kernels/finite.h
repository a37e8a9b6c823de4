// Whether the numbers of a model file are numbers.
#pragma once

#include <cstdint>

namespace sixfold {

// The index of the first value of a row whose block has a scale or minimum that is NaN or infinite (for float types: of
// 32 values with such a one among them), or -1. `k` is the row's length, whole blocks.
int64_t first_not_finite(int ggml_type, const uint8_t* row, int64_t k);

}  // namespace sixfold
