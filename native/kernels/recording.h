// What the recording of operations shares: refusals, and copies of small weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "program.h"

namespace sixfold {

[[noreturn]] void refuse(const std::string& message);  // throws std::invalid_argument

// Null when there is no such vector.
std::shared_ptr<float> copy(const Vector& from, int64_t size, const char* what);

void check_softcap(float cap);

}  // namespace sixfold
