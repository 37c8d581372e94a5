// The kernels of packets for every type, shape and world size, and the wait for a word of the user's own.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/packets.cuh"

namespace tandem::cuda {

Status PhaseKernelsLoad();

namespace {

__global__ void AwaitWord32(const uint32_t* word, const WaitLimits limits) {
  Patience patience(limits);
  while (LoadAcquire(word) == 0 && patience.Continue()) __nanosleep(50);
}

}  // namespace

Status LaunchPackets(const PacketsLaunch& launch, CUstream_st* stream) {
  PacketKernels<NoProbe>::Kernel kernel =
      PacketKernels<NoProbe>::Of(static_cast<DType>(launch.type), launch.shape, launch.world);
  kernel<<<static_cast<unsigned>(launch.blocks), PacketThreads(launch), 0, stream>>>(launch);
  return LaunchStatus("RunPackets");
}

Status LaunchAwaitWord32(const uint32_t* word, const WaitLimits& limits, CUstream_st* stream) {
  AwaitWord32<<<1, 1, 0, stream>>>(word, limits);
  return LaunchStatus("AwaitWord32");
}

Status CollectiveKernelsLoad() {
  TANDEM_RETURN_IF_ERROR(PhaseKernelsLoad());
  for (PacketShape shape : {PacketShape::kSum, PacketShape::kGather, PacketShape::kTwoShot}) {
    for (DType type : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kU8,
                       DType::kI32, DType::kI64}) {
      for (int world : {2, 4, 8}) {
        TANDEM_RETURN_IF_ERROR(LoadKernel(
            "RunPackets", reinterpret_cast<const void*>(PacketKernels<NoProbe>::Of(type, shape, world))));
      }
    }
  }
  return LoadKernel("AwaitWord32", reinterpret_cast<const void*>(&AwaitWord32));
}

}  // namespace tandem::cuda
