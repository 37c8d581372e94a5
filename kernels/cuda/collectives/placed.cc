// How the kernels of client-placed collectives are launched.
#include "kernels/cuda/collectives/placed.h"

#include <string>

#include "kernels/cuda/collectives/packet_grid.h"
#include "kernels/cuda/collectives/placed_kernels.h"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

const void* KernelOf(const PlacedPacketsLaunch& launch) {
  return launch.dense ? PlacedDenseKernel(launch) : PlacedPacketsKernel(launch);
}

Status CheckBlocks(int blocks) {
  return blocks >= 1 && blocks <= kLaunchCounters
             ? Status::Ok()
             : InvalidArgument("a client-placed kernel of " + std::to_string(blocks) + " blocks");
}

}  // namespace

Status LaunchPlacedPhases(const PlacedPhasesLaunch& launch, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(launch.phases.blocks));
  return LaunchDependent("RunPlacedPhases", PlacedPhasesKernel(launch),
                         static_cast<unsigned>(launch.phases.blocks), kCollectiveThreads, 0, &launch, stream);
}

Status LaunchPlacedPackets(const PlacedPacketsLaunch& launch, CUstream_st* stream) {
  const PacketsLaunch& packets = launch.packets;
  TANDEM_RETURN_IF_ERROR(CheckBlocks(packets.blocks));
  const PacketGrid grid = PacketGridOf(packets, launch.dense ? kDensePacketDataBytes : kPacketDataBytes);
  const unsigned idle = launch.dense ? kMeetingThreads : 0;
  return LaunchDependent("RunPlacedPackets", KernelOf(launch), grid.blocks, grid.threads + idle, 0, &launch,
                         stream);
}

Status LoadPlacedPhases(const PlacedPhasesLaunch& launch) {
  return LoadKernel("RunPlacedPhases", PlacedPhasesKernel(launch));
}

Status LoadPlacedPackets(const PlacedPacketsLaunch& launch) {
  if (launch.dense) return LoadPlacedDense(launch);
  return LoadKernel("RunPlacedPackets", KernelOf(launch));
}

}  // namespace tandem::cuda
