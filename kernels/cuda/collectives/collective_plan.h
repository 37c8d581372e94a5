// File: collective_plan.h
//
// A collective's arguments as one launch of a symmetric-memory kernel.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/device/collective.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

// True when a kernel takes what `args` has: its types and numbers, not its addresses.
bool TakesCollective(const CollectiveArgs& args);

// The kernel's parameters. INVALID_ARGUMENT for arguments that TakesCollective refuses, or views that are no
// runs.
Result<PhasesLaunch> MakePhasesLaunch(const CollectiveArgs& args);
Result<PacketsLaunch> MakePacketsLaunch(const CollectiveArgs& args);

// Enqueues the kernel.
Status EnqueueCollective(const CollectiveArgs& args, CUstream_st* stream);

}  // namespace tandem::cuda
