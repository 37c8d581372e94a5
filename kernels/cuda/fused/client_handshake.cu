// The kernel before a client-placed fused matmul: see client_fused.h.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/launch_context.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/fused/client_fused.h"

namespace tandem::cuda {
namespace {

__global__ void __launch_bounds__(kEntryThreads)
    HandshakeWithPeers(const __grid_constant__ HandshakeLaunch launch) {
  WaitForPrimary();
  const ClientLaunchContext context(launch.group_state);
  bool given_up = __syncthreads_or(context.HasFailed()) != 0;
  if (!given_up) {
    // Peers write these words only behind this rank's word. In earlier launches their kernels wrote none that
    // this rank's kernel did not await.
    for (int64_t i = threadIdx.x; i < launch.word_count; i += blockDim.x) launch.words[i] = 0;
    __syncthreads();
    const int peer = static_cast<int>(threadIdx.x);
    bool alone = false;
    if (peer < launch.world && peer != launch.rank) {
      StoreRelease(launch.reported[peer], context.value());
      alone = !context.Await<NoTestHooks>(launch.awaited[peer]);
    }
    given_up = __syncthreads_or(alone) != 0;
  }
  if (!given_up) context.ReportProgress();
  if (threadIdx.x == 0) *launch.cancelled = given_up ? 1 : 0;
}

}  // namespace

const void* HandshakeKernel() { return reinterpret_cast<const void*>(&HandshakeWithPeers); }

}  // namespace tandem::cuda
