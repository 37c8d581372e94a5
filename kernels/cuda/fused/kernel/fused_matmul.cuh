// File: fused_matmul.cuh
//
// The fused matmul kernel: a persistent, warp-specialised GEMM for Hopper whose tiles wait for, announce, and
// sum what other GPUs deliver. See fused_matmul.h for its words.
//
// Three warpgroups a CTA. Warp 0, of the first, draws tiles and feeds a ring of stages by TMA; no other warp
// waits for other GPUs' rows. Warps 1 and 2 store the results of the second and third warpgroup, 64 rows of
// the tile each, so that the next tile's products never wait for a store. Warp 3 hands stored tiles to other
// GPUs (fused_store.cuh). In a client's gather it first sends them this GPU's shard (fused_push.cuh). A
// tile's number travels with its first stage. Sums of other GPUs travel through the same ring behind the
// tile's last product.
//
// Tiles are drawn from a counter (fused_tile_scheduler.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/fused_compute.cuh"
#include "kernels/cuda/fused/kernel/fused_produce.cuh"
#include "kernels/cuda/fused/kernel/fused_push.cuh"
#include "kernels/cuda/fused/kernel/fused_store.cuh"
#include "kernels/cuda/fused/kernel/fused_tile_scheduler.cuh"
#include "kernels/cuda/fused/kernel/fused_traits.cuh"
#include "kernels/cuda/fused/kernel/fused_words.cuh"
#include "kernels/cuda/fused/kernel/guard.cuh"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

template <class T, class TestHooks = NoFusedTestHooks>
__global__ void __cluster_dims__(T::kCluster, 1, 1) __launch_bounds__(384, 1)
    FusedMatmul(const __grid_constant__ typename TestHooks::Params params) {
  extern __shared__ uint8_t raw[];
  // The first work index is requested before anything else is done. A CTA that finds the launch cancelled
  // returns it.
  const int warp = ptx::Warp();
  const uint32_t cluster_rank = T::kCluster == 1 ? 0 : ptx::ClusterRank();
  uint32_t work = 0;
  if (warp == 0 && cluster_rank == 0 && ptx::ElectOne()) work = RequestWork(params);
  const bool cancelled = FoundGuardRaised(params.guard_word, params.guard_value);
  FusedShared<T> shared{(ptx::SharedAddress(raw) + 1023) & ~1023u};
  const int cta = static_cast<int>(cluster_rank);
  const int warpgroup = ptx::Warpgroup();
  // One thread of three warps each: for several of one the compiler would initialise barriers in a loop over
  // them.
  if (warp == 0 && ptx::ElectOne()) {
#pragma unroll
    for (int stage = 0; stage < T::kStages; ++stage) {
      ptx::BarrierInit(shared.Full(stage), 1);
      ptx::BarrierInit(shared.Empty(stage), 2 * T::kCluster);
    }
#pragma unroll
    for (int slot = 0; slot < 2; ++slot) {
      ptx::BarrierInit(shared.ScheduleFull(slot), 1);
      ptx::BarrierInit(shared.ScheduleEmpty(slot), 1);
    }
    ptx::BarrierInitFence();
    TouchForDraw(params);
  } else if (warp == 1 && ptx::ElectOne()) {
#pragma unroll
    for (int i = 0; i < 2 * T::kStagingPlaces; ++i) {  // of both groups
      ptx::BarrierInit(shared.Staged(0, i), 4);
      ptx::BarrierInit(shared.Drained(0, i), 1);
    }
    ptx::BarrierInitFence();
  } else if (warp == 2 && ptx::ElectOne()) {
#pragma unroll
    for (int slot = 0; slot < kHandoffs; ++slot) {
      ptx::BarrierInit(shared.HandoffReady(slot), 2);
      ptx::BarrierInit(shared.HandoffTaken(slot), 1);
    }
    ptx::BarrierInitFence();
  } else if (threadIdx.x == 96) {
    for (int i = 0; i < 2; ++i) {
      ptx::PrefetchMap(&params.a[i]);
      ptx::PrefetchMap(&params.out[i]);
    }
    ptx::PrefetchMap(&params.b);
    if (T::kSums) ptx::PrefetchMap(&params.slots);
  }
  if (__syncthreads_or(cancelled)) {  // of all CTAs alike: before a cluster meets, a tile is computed or a
                                      // word is written
    if (warp == 0 && cta == 0 && ptx::ElectOne()) ReturnWork(params);
    return;
  }
  if constexpr (T::kCluster > 1) ptx::ClusterBarrierAfterInit();

  if (warpgroup == 0) {
    ptx::GiveRegisters<40>();
    if (warp == 3) {
      if constexpr (TestHooks::kClient) PushShard(params.pushes);
      StoreHandoffs<T, TestHooks>(params, shared, cta);
    } else if (ptx::ElectOne()) {
      if (warp == 0) Produce<T, TestHooks>(params, shared, cta, work);
      if (warp == 1 || warp == 2) StoreTiles<T, TestHooks>(params, shared, warp - 1, cta);
    }
  } else {
    ptx::TakeRegisters<232>();
    Compute<T, TestHooks>(params, shared, warpgroup - 1, cta);
  }
  __syncwarp();
  // No CTA may end while the other still arrives on its barriers or loads for it.
  if constexpr (T::kCluster > 1) ptx::ClusterBarrier();
}

}  // namespace tandem::cuda
