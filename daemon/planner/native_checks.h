// File: native_checks.h
//
// Which requests the native kernels take (kernels/cuda/native): what TMA and their tiles need of shapes, strides and
// types.
#pragma once

#include <string>

#include "daemon/planner/problem.h"

namespace tandem::plan {

// Empty when the native algorithm can run the request, else why not. `problem`'s operation is one that has it.
std::string WhyNotNative(const Problem& problem);

}  // namespace tandem::plan
