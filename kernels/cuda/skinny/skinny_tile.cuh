// File: skinny_tile.cuh
//
// The parts that all of the skinny kernel shares: a CTA's tile, and barriers.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/fused_matmul.cuh"
#include "kernels/cuda/skinny/skinny.h"
#include "kernels/cuda/skinny/skinny_traits.cuh"

namespace tandem::cuda {

__device__ __forceinline__ void BarrierOf(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The same for threads that others wait for.
__device__ __forceinline__ void ArriveAt(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
inline constexpr int kComputingBarrier = 1, kFirstSegmentBarrier = 2,
                     kFirstUnitBarrier = kFirstSegmentBarrier + 8;

// A CTA's tile, and its place in the cluster.
template <class T>
struct SkinnyTile {
  int cta, in_m, in_n, m, n, number;
  __device__ __forceinline__ explicit SkinnyTile(const SkinnyParams& params)
      : cta(T::kCluster == 1 ? 0 : static_cast<int>(ptx::ClusterRank())),
        in_m(cta % T::kClusterM),
        in_n(cta / T::kClusterM) {
    const int cluster = static_cast<int>(blockIdx.x) / T::kCluster,
              clusters_m = params.tiles_m / T::kClusterM;
    m = cluster % clusters_m * T::kClusterM + in_m;
    n = cluster / clusters_m * T::kClusterN + in_n;
    number = n * params.tiles_m + m;
  }
};

}  // namespace tandem::cuda
