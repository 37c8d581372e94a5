// File: fused_plan.h
//
// From the parts of a fused matmul, as the executor hands them to a lane, to one launch of the fused kernel.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/fused/fused_prepared.h"
#include "tandem/status.h"

namespace tandem::cuda {

// True when `args` has a fused matmul that a kernel of `variants` computes. Reads types, extents and strides,
// no addresses.
bool TakesFused(const CollectiveArgs& args, std::span<const FusedVariant> variants = FusedVariants());

// The kernel's work. UNIMPLEMENTED when addresses are not aligned as TMA needs them, or parts do not lie at
// equal distances: then the steps can be run one by one. `memory`: see FusedMemory. `sms`: for the kernel.
Result<FusedMatmul> MakeFusedMatmul(const CollectiveArgs& args, const FusedMemory& memory,
                                    std::span<const FusedVariant> variants = FusedVariants(),
                                    int sms = SmCount());

// Makes and enqueues it; with CollectiveArgs::prepared what was made is kept for launches with the same
// addresses. One stream for one `memory`.
Status EnqueueFused(const CollectiveArgs& args, const FusedMemory& memory, CUstream_st* stream,
                    PreparedFused::Launch launch = &LaunchFused);

}  // namespace tandem::cuda
