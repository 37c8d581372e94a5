// The kernels of packets for every type, shape and world size, and the wait for a word of the user's own.
#include <cuda_runtime.h>

#include <algorithm>

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
  // No more threads than packets: small blocks start sooner.
  int64_t most = 1;
  const auto per_packet = static_cast<int64_t>(
      8 / (launch.shape == PacketShape::kGather ? 1 : DTypeBytes(static_cast<DType>(launch.type))));
  for (int p = 0; p < launch.world; ++p)
    most = std::max(most, (launch.count[p] + per_packet - 1) / per_packet);
  const int64_t a_block = (most + launch.blocks - 1) / launch.blocks;
  const auto threads = static_cast<unsigned>(std::min<int64_t>((a_block + 31) / 32 * 32, kCollectiveThreads));
  kernel<<<static_cast<unsigned>(launch.blocks), threads, 0, stream>>>(launch);
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
