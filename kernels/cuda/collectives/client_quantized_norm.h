// File: client_quantized_norm.h
//
// The kernels of a sum by dense packets with an RMSNorm behind it whose rows are quantised as well.
#pragma once

#include "kernels/cuda/collectives/client_norm.h"

namespace tandem::cuda {

// The kernel for a launch with a quantization, by whole rows; null where there is none: of rows of f32, and of
// those that have none without a quantization.
const void* QuantizedNormKernel(const ClientNormLaunch& launch);
// The same for rows that the blocks of a cluster share.
const void* QuantizedSplitNormKernel(const ClientNormLaunch& launch);

}  // namespace tandem::cuda
