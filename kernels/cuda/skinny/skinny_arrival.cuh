// File: skinny_arrival.cuh
//
// How a CTA of the skinny kernel learns how far the peers' shards have come: one warp does nothing but look
// at the peers' words and says in shared memory how many stages may be loaded. So no load waits for a word's
// way through the L2 cache, and stages are loaded as soon as their own columns are here, however many ranks
// there are.
#pragma once

#include <cstdint>

#include "kernels/cuda/skinny/skinny_meeting.cuh"

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
// or a time-out all stages count as arrived: see SkinnyWaiter.
template <class T, class Probe, class Meeting>
__device__ __forceinline__ void WatchShards(const Meeting& meet, const FusedShared<T>& shared) {
  const SkinnyParams& params = meet.params;
  const int lane = static_cast<int>(threadIdx.x) & 31, peers = params.world - 1;
  const int offset = lane / peers, peer = lane % peers;
  const int from = peer + (peer >= params.rank ? 1 : 0);
  const uint64_t* words = params.arrived[from] + offset;
  typename Meeting::template Watch<Probe> watch(meet, from);
  for (int first = 0; first < params.units;) {
    const bool exists = first + offset < params.units;
    const uint32_t missing = ~__ballot_sync(0xFFFFFFFF, exists && watch.HasCome(words + first));
    const int here = missing == 0 ? 32 : __ffs(static_cast<int>(missing)) - 1;  // words without a gap
    if (here >= peers) {
      Probe::AfterWait(meet.value());
      __syncwarp();
      first += here / peers;
      if (lane == 0)
        StoreSharedRelease(shared.ArrivedStages(), min(first * params.blocks_per_unit, params.k_blocks));
      watch.GoOn();
      continue;
    }
    if (__any_sync(0xFFFFFFFF, watch.GivesUp(lane, here))) break;
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
