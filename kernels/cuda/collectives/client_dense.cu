#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/collectives/client_kernels.h"
#include "kernels/cuda/collectives/dense_packets.cuh"
#include "kernels/cuda/collectives/packet_grid.h"
#include "kernels/cuda/device/launch_status.h"

namespace tandem::cuda {
namespace {

template <Alignment kFit>
const void* KernelOf(const PacketsLaunch& packets) {
  return reinterpret_cast<const void*>(
      DenseKernels<NoTestHooks, kFit>::Of(static_cast<DType>(packets.type), packets.shape, packets.world));
}

Alignment FitOf(const PacketsLaunch& packets) {
  const bool gathers = packets.shape == PacketShape::kGather;
  const int64_t element = gathers ? 1 : static_cast<int64_t>(DTypeBytes(static_cast<DType>(packets.type)));
  int64_t most = 0;
  for (int p = 0; p < packets.world; ++p) {
    const auto addresses =
        reinterpret_cast<uintptr_t>(packets.source[p]) | reinterpret_cast<uintptr_t>(packets.destination[p]);
    if (addresses % 16 != 0 || packets.count[p] * element % 16 != 0) return Alignment::kNone;
    most = std::max(most, packets.count[p] * element / 16);
  }
  const PacketGrid grid = PacketGridOf(packets, kDensePacketDataBytes);
  return most <= int64_t{grid.blocks} * grid.threads ? Alignment::k16BSinglePass : Alignment::k16B;
}

}  // namespace

const void* ClientDenseKernel(const ClientPacketsLaunch& launch) {
  switch (FitOf(launch.packets)) {
    case Alignment::k16B: return KernelOf<Alignment::k16B>(launch.packets);
    case Alignment::k16BSinglePass: return KernelOf<Alignment::k16BSinglePass>(launch.packets);
    default: return KernelOf<Alignment::kNone>(launch.packets);
  }
}

Status LoadClientDense(const ClientPacketsLaunch& launch) {
  for (const void* kernel :
       {KernelOf<Alignment::kNone>(launch.packets), KernelOf<Alignment::k16B>(launch.packets),
        KernelOf<Alignment::k16BSinglePass>(launch.packets)}) {
    if (kernel != nullptr) TANDEM_RETURN_IF_ERROR(LoadKernel("RunClientDense", kernel));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
