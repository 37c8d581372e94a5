// File: fused_plan.h
//
// From the parts of a fused matmul, as the executor hands them to a lane, to one launch of the native kernel.
#pragma once

#include <memory>

#include "kernels/backend.h"
#include "kernels/cuda/native/fused_kept.h"
#include "kernels/cuda/native/native_matmul.h"
#include "tandem/status.h"

namespace tandem::cuda {

// True when the native kernel computes `args.parts`; reads types, extents and strides, no addresses.
bool TakesFused(const CollectiveArgs& args);

// The kernel's work. UNIMPLEMENTED when addresses are not aligned as TMA needs them, or parts do not lie at
// equal distances: then the steps can be run one by one. `state`: see FusedMatmul.
Result<FusedMatmul> MakeFusedMatmul(const CollectiveArgs& args, void* state);

// Makes and enqueues it. `kept`: places for the tables of launches that come again, used on `stream` alone; null: none.
Status EnqueueFused(const CollectiveArgs& args, void* state, const std::shared_ptr<KeptTables>& kept, CUstream_st* stream);

}  // namespace tandem::cuda
