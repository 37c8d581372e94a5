// The kernels before and beside a client-placed fused matmul: see placed_fused.h.
#include <cuda_runtime.h>

#include "kernels/cuda/collectives/rendezvous.cuh"
#include "kernels/cuda/device/dependent.cuh"
#include "kernels/cuda/fused/placed_fused.h"

namespace tandem::cuda {
namespace {

__global__ void __launch_bounds__(kEntryThreads) MeetPeers(const __grid_constant__ MeetingLaunch launch) {
  AwaitEarlierWork();
  const PlacedRendezvous rendezvous(launch.frame);
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

template <class Word>
__device__ void CopyRows(const PushedRows& push) {
  constexpr int kInFlight = 4;
  const int64_t row_words = push.row_bytes / static_cast<int64_t>(sizeof(Word));
  const int64_t words = push.rows * row_words, step = int64_t{gridDim.x} * blockDim.x;
  const auto offset = [&](int64_t word, int64_t pitch) {
    if (pitch == push.row_bytes) return word * static_cast<int64_t>(sizeof(Word));
    const int64_t row = word / row_words;
    return row * pitch + (word - row * row_words) * static_cast<int64_t>(sizeof(Word));
  };
  for (int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; first < words;
       first += kInFlight * step) {
    Word data[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = first + i * step;
      if (at < words) data[i] = *reinterpret_cast<const Word*>(push.from + offset(at, push.from_pitch));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = first + i * step;
      if (at < words) *reinterpret_cast<Word*>(push.to + offset(at, push.to_pitch)) = data[i];
    }
  }
}

__global__ void __launch_bounds__(kPushThreads) PushRows(const __grid_constant__ PushLaunch launch) {
  // The fused kernel takes the other SMs at once. It ends behind this one: its first block awaits it.
  AwaitEarlierWork();
  LetNextBegin();
  if (LoadRelaxed(launch.cancelled) != 0) return;
  for (int p = 0; p < launch.pushes; ++p) {
    const PushedRows& push = launch.push[p];
    switch (push.width) {
      case 16: CopyRows<uint4>(push); break;
      case 4: CopyRows<uint32_t>(push); break;
      default: CopyRows<uint8_t>(push); break;
    }
    if (push.done == nullptr) continue;  // the same blocks' next copy tells of both
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x != 0) continue;
    __threadfence_system();
    if (atomicAdd(&launch.arrived[p], 1u) + 1 != gridDim.x) continue;
    launch.arrived[p] = 0;
    __threadfence_system();
    StoreRelease(push.done, 1);
  }
}

}  // namespace

const void* MeetingKernel() { return reinterpret_cast<const void*>(&MeetPeers); }
const void* PushKernel() { return reinterpret_cast<const void*>(&PushRows); }

}  // namespace tandem::cuda
