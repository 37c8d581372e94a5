// File: fused_staging.cuh
//
// How a warpgroup's results come to the warp that stores them: box by box through places in shared memory,
// which that warp frees when TMA has read them. A box's way there and back takes about as long as a stage's
// products, and a tile of 128×256 has four boxes for two places. So where registers suffice, the rounded
// results are held in them and staged while the next tile is multiplied. A tile of 128×192 has room for all
// its boxes.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_box.cuh"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// One thread's part in staging the boxes of warpgroup `group`, in their order.
template <class T>
struct BoxStager {
  const FusedShared<T>& shared;
  int group, thread;
  BoxLane<T> place;
  RingPlace<T::kStagingPlaces> next;

  __device__ __forceinline__ BoxStager(const FusedShared<T>& all, int of_group, int of_thread)
      : shared(all), group(of_group), thread(of_thread), place(of_thread >> 5, of_thread & 31) {}

  __device__ __forceinline__ void Stage(const typename BoxLane<T>::Packed& packed, int unit) {
    WaitFree();
    place.Store(shared.Staging(group, next.stage), packed);
    ptx::ProxyFenceShared();
    Tell(unit);
  }
  // No more.
  __device__ __forceinline__ void End() {
    WaitFree();
    Tell(-1);
  }

 private:
  __device__ __forceinline__ void WaitFree() const {
    ptx::Wait(shared.Drained(group, next.stage), next.phase ^ 1);
  }
  __device__ __forceinline__ void Tell(int unit) {
    if (thread == 0) StoreSharedOwn(shared.StagedUnit(group, next.stage), unit);
    __syncwarp();
    if ((thread & 31) == 0) ptx::Arrive(shared.Staged(group, next.stage));
    next.Next();
  }
};

// One thread's rounded results of a tile that is done, for which T::kHolds.
template <class T>
struct HeldTile {
  typename BoxLane<T>::Packed box[T::kSubTiles];
  int unit = -1;  // none

  __device__ __forceinline__ void Stage(BoxStager<T>& stager, int sub) const {
    if (unit >= 0) stager.Stage(box[sub], unit);
  }
  // All boxes at once; nothing is held any more.
  __device__ __forceinline__ void StageAll(BoxStager<T>& stager) {
#pragma unroll
    for (int sub = 0; sub < T::kSubTiles; ++sub) Stage(stager, sub);
    unit = -1;
  }
};

}  // namespace tandem::cuda
