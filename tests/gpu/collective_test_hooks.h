// File: collective_test_hooks.h
//
// Collective kernels with delays and planted faults, and kernels that make and check data that is new in each
// launch.
#pragma once

#include <cstdint>

#include "kernels/cuda/client_launch/client_plan.h"
#include "kernels/cuda/device/collective.h"

namespace tandem::cuda {

enum class Fault { kNone, kFlagBeforeData, kStaleLaunchNumber };
// The data of a client-placed kernel. Dense packets carry fp32 sums and gathers.
enum class Moved { kSumOfU32, kSumOfF32, kGathered };

// The launch with random pauses before its signals, of up to 20 us, on some blocks; u32 sums.
Status LaunchPhasesWithDelays(const PhasesLaunch& launch, Fault fault, CUstream_st* stream);
Status LaunchPacketsWithDelays(const PacketsLaunch& launch, Fault fault, CUstream_st* stream);

// The same for client-placed kernels.
Status LaunchClientWithDelays(const ClientKernelLaunch& launch, Fault fault, CUstream_st* stream);

// data[i] = a hash of rank, launch number and i.
Status LaunchFill(uint32_t* data, int64_t count, int rank, uint64_t launch_number, CUstream_st* stream);
// The same for launch `*counter` + 1, so that a graph makes new data at each replay. kSumOfF32: whole
// numbers, whose sums are exact, as fp32; some are the NaN of all ones.
Status LaunchFillNext(uint32_t* data, int64_t count, int rank, const uint64_t* counter, Moved moved,
                      CUstream_st* stream);
// Adds to *errors the i for which data[i] is not the sum of all ranks' fills; `first` is added to i.
Status LaunchCheckSum(const uint32_t* data, int64_t count, int64_t first, int world, uint64_t launch_number,
                      uint64_t* errors, CUstream_st* stream);
// The same for launch `*counter`, which has just ended. kGathered: `count` elements of each rank, by rank.
Status LaunchCheckLast(const uint32_t* data, int64_t count, int world, const uint64_t* counter, Moved moved,
                       uint64_t* errors, CUstream_st* stream);

// Loads them all: the first launch of a kernel may wait for the whole context.
Status LoadTestHooks();

}  // namespace tandem::cuda
