// File: matmul.h
//
// The host backend's matrix product: any float types and strides, fp32 accumulation, one rounding to C's
// type.
#pragma once

#include "kernels/backend.h"
#include "kernels/host/task.h"
#include "tandem/status.h"

namespace tandem::host {

// INVALID_ARGUMENT unless extents fit ([..., M, K] x [K, N] -> [..., M, N]), types are floating, scales and
// bias have the sizes that plan::MatmulStep gives them.
Status CheckMatmul(const MatmulArgs& args);

// Runs a checked product. With chunk signals the rows of A are `chunks` equal runs, of which the last may be
// shorter. Run i is read once word i of chunk_signals is not 0. The order is pivot, pivot + 1, … modulo the
// number of chunks. Ends early only if the queue is abandoned.
void RunMatmul(const MatmulArgs& args, const TaskContext& context);

}  // namespace tandem::host
