// The kernel before a client-placed fused matmul: see client_fused.h.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/rendezvous.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/fused/client_fused.h"

namespace tandem::cuda {
namespace {

__global__ void __launch_bounds__(kEntryThreads) MeetPeers(const __grid_constant__ MeetingLaunch launch) {
  AwaitEarlierWork();
  const ClientRendezvous rendezvous(launch.frame);
  bool given_up = __syncthreads_or(rendezvous.HasFailed()) != 0;
  if (!given_up) {
    // Peers write these words only behind this rank's word. In earlier launches their kernels wrote none that
    // this rank's kernel did not await.
    for (int64_t i = threadIdx.x; i < launch.word_count; i += blockDim.x) launch.words[i] = 0;
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    bool alone = false;
    if (peer < launch.world && peer != launch.rank) {
      StoreRelease(launch.told[peer], rendezvous.value());
      alone = !rendezvous.Await<NoProbe>(launch.awaited[peer]);
    }
    given_up = __syncthreads_or(alone) != 0;
  }
  if (!given_up) rendezvous.Count();
  if (threadIdx.x == 0) *launch.cancelled = given_up ? 1 : 0;
}

}  // namespace

const void* MeetingKernel() { return reinterpret_cast<const void*>(&MeetPeers); }

}  // namespace tandem::cuda
