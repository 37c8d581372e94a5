// File: gpu_sharing.h
//
// The cost of running a group's kernels in engines and not in the clients' processes, as text for plans
// and joins. Kernels of two processes run side by side on a GPU only under one MPS server; without, the GPU's
// time slices pass from one to the other (figures: bench/figures/launches.md). Copy engines are never
// sliced. Pure.
#pragma once

#include <string>
#include <vector>

#include "common/mps_endpoint.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

namespace tandem::daemon {

// How one rank's client and engine are placed.
struct RankSharing {
  std::string name;    // "rank 2"
  MpsEndpoint client;  // as the client gave it when it attached
  MpsEndpoint engine;  // that the engine's process was started with
};

struct GpuSharing {
  std::string text = "daemon";
  bool slow = false;  // some rank's client and engine take turns
};

// For the ranks of a group. Engines that are not on a GPU run on the CPU's own terms: never slow.
GpuSharing DescribeGpuSharing(bool on_gpu, const std::vector<RankSharing>& ranks);

// OK, or FAILED_PRECONDITION with reason SLOW_PLACEMENT where `strictness` refuses this placement.
Status CheckGpuSharing(const GpuSharing& placement, OnSlowPlacement strictness);

}  // namespace tandem::daemon
