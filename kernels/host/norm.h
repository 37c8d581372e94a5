// File: norm.h
//
// The host backend's RMSNorm with a residual.
#pragma once

#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::host {

// INVALID_ARGUMENT: views that are not contiguous, or of different shapes and dtypes, or no floats of 16 or
// 32 bits.
Status CheckNorm(const NormArgs& args);

// Runs the norm of arguments that have been checked. `out` may be `sum`, and `residual_out` may be
// `residual`.
void RunNorm(const NormArgs& args);

}  // namespace tandem::host
