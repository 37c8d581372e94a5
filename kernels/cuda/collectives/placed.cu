// The kernels of collectives that are placed in the client, for every type, shape and world size.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/packets.cuh"
#include "kernels/cuda/collectives/placed.h"
#include "kernels/cuda/device/dependent_launch.h"

namespace tandem::cuda {
namespace {

using Phases = PhaseKernels<NoProbe, PlacedPhasesLaunch>;
using Packets = PacketKernels<NoProbe, PlacedPacketsLaunch>;

Phases::Kernel KernelOf(const PlacedPhasesLaunch& launch) {
  const PhasesLaunch& phases = launch.phases;
  return Phases::Of(static_cast<DType>(phases.type), phases.sums, MostSources(phases));
}

Packets::Kernel KernelOf(const PlacedPacketsLaunch& launch) {
  const PacketsLaunch& packets = launch.packets;
  return Packets::Of(static_cast<DType>(packets.type), packets.shape, packets.world);
}

Status CheckBlocks(int blocks) {
  return blocks >= 1 && blocks <= kLaunchCounters
             ? Status::Ok()
             : InvalidArgument("a client-placed kernel of " + std::to_string(blocks) + " blocks");
}

}  // namespace

Status LaunchPlacedPhases(const PlacedPhasesLaunch& launch, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(launch.phases.blocks));
  return LaunchDependent("RunPlacedPhases", reinterpret_cast<const void*>(KernelOf(launch)),
                         static_cast<unsigned>(launch.phases.blocks), kCollectiveThreads, 0, &launch, stream);
}

Status LaunchPlacedPackets(const PlacedPacketsLaunch& launch, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(launch.packets.blocks));
  return LaunchDependent("RunPlacedPackets", reinterpret_cast<const void*>(KernelOf(launch)),
                         static_cast<unsigned>(launch.packets.blocks), PacketThreads(launch.packets), 0,
                         &launch, stream);
}

Status LoadPlacedPhases(const PlacedPhasesLaunch& launch) {
  return LoadKernel("RunPlacedPhases", reinterpret_cast<const void*>(KernelOf(launch)));
}

Status LoadPlacedPackets(const PlacedPacketsLaunch& launch) {
  return LoadKernel("RunPlacedPackets", reinterpret_cast<const void*>(KernelOf(launch)));
}

}  // namespace tandem::cuda
