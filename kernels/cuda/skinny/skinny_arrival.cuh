// File: skinny_arrival.cuh
//
// How a CTA of the skinny kernel learns how far the peers' shards have come: one warp does nothing but look
// at the peers' words and says in shared memory how many stages may be loaded. So no load waits for a word's
// way through the L2 cache, and stages are loaded as soon as their own columns are here, however many ranks
// there are.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny/skinny_launch_context.cuh"
#include "kernels/cuda/skinny/skinny_tile.cuh"

namespace tandem::cuda {

// Stages whose columns of A have come from all ranks, from the first one on.
template <class T>
__device__ __forceinline__ int ArrivedStages(const FusedShared<T>& shared) {
  return LoadSharedAcquire(shared.ArrivedStages());
}
// Before the CTA's threads first meet; one thread.
template <class T>
__device__ __forceinline__ void ClearArrivedStages(const FusedShared<T>& shared) {
  StoreSharedOwn(shared.ArrivedStages(), 0);
}

// All lanes of a warp, a word each: of one unit after another from the first one on that has not come, by
// peers. Asked for with acquire: several words a lane and one fence behind them took longer. After an abort
// or a time-out all stages count as arrived: see WordWaiter.
template <class T, class TestHooks>
__device__ __forceinline__ void WatchShards(const SkinnyParams& params, const FusedShared<T>& shared) {
  const int lane = static_cast<int>(threadIdx.x) & 31, peers = params.world - 1;
  const int offset = lane / peers, peer = lane % peers;
  const uint64_t* words = params.arrived[peer + (peer >= params.rank ? 1 : 0)] + offset;
  uint64_t start = ptx::GlobalTimer(), asked = start;
  for (int first = 0; first < params.units;) {
    const bool exists = first + offset < params.units;
    const uint32_t missing = ~__ballot_sync(
        0xFFFFFFFF, exists && TestHooks::HasReached(ptx::LoadAcquire(words + first), params.launch_number));
    const int here = missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1;  // words without a gap
    if (here >= peers) {
      TestHooks::AfterWait(params.launch_number);
      __syncwarp();
      first += here / peers;
      if (lane == 0)
        StoreSharedRelease(shared.ArrivedStages(), min(first * params.blocks_per_unit, params.k_blocks));
      start = ptx::GlobalTimer();
      continue;
    }
    const uint64_t now = ptx::GlobalTimer();
    bool give_up = false;
    if (lane == 0 && now - asked >= 64'000) {  // the abort word lies in host memory: ask seldom
      asked = now;
      give_up = params.abort_word != nullptr && ptx::LoadAcquire(params.abort_word) != 0;
      if (!give_up && now - start > params.timeout_ns) {
        give_up = true;
        *params.failure = 1;
      }
    }
    if (__any_sync(0xFFFFFFFF, give_up)) break;
  }
  if (lane == 0) StoreSharedRelease(shared.ArrivedStages(), params.k_blocks);
}

// Until stage `block` may be loaded; all lanes of a warp. Returns the first stage that may not.
template <class T>
__device__ __forceinline__ int AwaitShards(const FusedShared<T>& shared, int block) {
  int arrived;
  while ((arrived = ArrivedStages(shared)) <= block) {
  }
  ptx::ProxyFence();  // TMA must not read from before the words
  __syncwarp();
  return arrived;
}

}  // namespace tandem::cuda
