// File: fused_test_hooks.h
//
// The fused matmul kernel with pauses at random places, and with faults planted in its order; a kernel that
// holds SMs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/skinny/skinny.h"
#include "tandem/status.h"

struct CUstream_st;

namespace tandem::cuda {

enum class FusedFault { kNone, kFlagBeforeData, kMissingWait, kStaleLaunchNumber };

// bf16, B by columns, tiles of 128×256, no cluster, with sums: the product's kernel, with pauses before it
// writes a word and after it has waited for one.
FusedVariant HookedVariant(FusedFault fault);
// The same of the skinny kernel: bf16, B by columns, tiles of 64 columns.
SkinnyVariant HookedSkinny(FusedFault fault);
// The same for the kernel's form in client placement (client_skinny_test_hooks.cu). Not loaded by
// LoadFusedTestHooks.
SkinnyVariant HookedClientSkinny(FusedFault fault);

// Holds `blocks` SMs until *release is not 0; adds 1 to *holding for each that it has. Both words in memory
// of the host.
Status LaunchSquatter(int blocks, uint32_t* holding, const uint32_t* release, CUstream_st* stream);

// Adds to *count, in device memory, the words of 4 bytes in which the two differ.
Status LaunchCountDifferent(const void* have, const void* wanted, size_t bytes, uint64_t* count,
                            CUstream_st* stream);
Status LoadCountDifferent();

// Loads all of them into the current context.
Status LoadFusedTestHooks();

}  // namespace tandem::cuda
