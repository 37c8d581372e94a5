// How the kernels of client-placed collectives are launched.
#include "kernels/cuda/collectives/client_launch.h"

#include <string>

#include "kernels/cuda/collectives/client_kernels.h"
#include "kernels/cuda/collectives/packet_grid.h"
#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

const void* KernelOf(const ClientPacketsLaunch& launch) {
  return launch.dense ? ClientDenseKernel(launch) : ClientPacketsKernel(launch);
}

Status CheckBlocks(int blocks) {
  return blocks >= 1 && blocks <= kLaunchCounters
             ? Status::Ok()
             : InvalidArgument("a client-placed kernel of " + std::to_string(blocks) + " blocks");
}

}  // namespace

Status LaunchClientPhases(const ClientPhasesLaunch& launch, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(CheckBlocks(launch.phases.blocks));
  return LaunchDependent("RunClientPhases", ClientPhasesKernel(launch),
                         static_cast<unsigned>(launch.phases.blocks), kCollectiveThreads, 0, &launch, stream);
}

Status LaunchClientPackets(const ClientPacketsLaunch& launch, CUstream_st* stream) {
  const PacketsLaunch& packets = launch.packets;
  TANDEM_RETURN_IF_ERROR(CheckBlocks(packets.blocks));
  const PacketGrid grid = PacketGridOf(packets, launch.dense ? kDensePacketDataBytes : kPacketDataBytes);
  const unsigned idle = launch.dense ? kHandshakeThreads : 0;
  return LaunchDependent("RunClientPackets", KernelOf(launch), grid.blocks, grid.threads + idle, 0, &launch,
                         stream);
}

Status LoadClientPhases(const ClientPhasesLaunch& launch) {
  return LoadKernel("RunClientPhases", ClientPhasesKernel(launch));
}

Status LoadClientPackets(const ClientPacketsLaunch& launch) {
  if (launch.dense) return LoadClientDense(launch);
  return LoadKernel("RunClientPackets", KernelOf(launch));
}

}  // namespace tandem::cuda
