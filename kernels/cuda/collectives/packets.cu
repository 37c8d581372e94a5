// The kernels of packets for every type, shape and world size.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/packet_grid.h"
#include "kernels/cuda/collectives/packets.cuh"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {

Status PhaseKernelsLoad();

Status LaunchPackets(const PacketsLaunch& launch, CUstream_st* stream) {
  PacketKernels<NoTestHooks>::Kernel kernel =
      PacketKernels<NoTestHooks>::Of(static_cast<DType>(launch.type), launch.shape, launch.world);
  const PacketGrid grid = PacketGridOf(launch, kPacketDataBytes);
  kernel<<<grid.blocks, grid.threads, 0, stream>>>(launch);
  return LaunchStatus("RunPackets");
}

Status CollectiveKernelsLoad() {
  TANDEM_RETURN_IF_ERROR(PhaseKernelsLoad());
  for (PacketShape shape : {PacketShape::kSum, PacketShape::kGather, PacketShape::kTwoShot}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kU8,
                       DType::kI32, DType::kI64}) {
      for (int world : {2, 4, 8}) {
        TANDEM_RETURN_IF_ERROR(LoadKernel(
            "RunPackets", reinterpret_cast<const void*>(PacketKernels<NoTestHooks>::Of(type, shape, world))));
      }
    }
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
