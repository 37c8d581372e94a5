// File: skinny_plan.h
//
// Turns a skinny product, as the executor hands it to a lane, into one launch of the kernel.
#pragma once

#include <span>

#include "kernels/backend.h"
#include "kernels/cuda/fused/fused_prepared.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "tandem/status.h"

namespace tandem::cuda {

// True when there is a kernel for `args`, of `variants` or of those that engines launch. Reads types, extents
// and strides, no addresses.
bool TakesSkinny(const SkinnyArgs& args, std::span<const SkinnyVariant> variants);
bool TakesSkinny(const SkinnyArgs& args);

// The kernel's work. `args` has a skinny product. `state`: see SkinnyMatmul. UNIMPLEMENTED: no kernel takes
// such a product.
Result<SkinnyMatmul> MakeSkinnyMatmul(const CollectiveArgs& args, void* state);

using PreparedSkinny = PreparedKernel<SkinnyParams, SkinnyVariant>;

// Makes and enqueues it; with CollectiveArgs::prepared what was made is kept for launches with the same
// addresses. One stream for one `state`.
Status EnqueueSkinny(const CollectiveArgs& args, void* state, CUstream_st* stream,
                     PreparedSkinny::Launch launch = &LaunchSkinny);

}  // namespace tandem::cuda
