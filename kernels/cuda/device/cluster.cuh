// File: cluster.cuh
//
// Thread block clusters: blocks that run at the same time and reach one another's shared memory (CUDA C++
// Programming Guide, "Thread Block Clusters"). Before sm_90 there are none: these functions then do nothing,
// and a kernel that calls them must not be launched.
#pragma once

#include <cstdint>

namespace tandem::cuda {

// The blocks of this block's cluster, and which of them it is.
__device__ __forceinline__ unsigned ClusterBlocks() {
  unsigned blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  return blocks;
}
__device__ __forceinline__ unsigned ClusterRank() {
  unsigned rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}

// The cluster's barrier, by every thread of every block: what a thread has stored before it arrives, all see
// behind their wait. Between two arrivals of a thread lies a wait.
__device__ __forceinline__ void ArriveCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ __forceinline__ void AwaitCluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

// Stores to the place that `shared` has in block `rank` of the cluster. That block must have begun, and must
// not have ended.
__device__ __forceinline__ void StoreToBlock(float* shared, unsigned rank, float value) {
#if __CUDA_ARCH__ >= 900
  const auto own = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  uint32_t there = 0;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#endif
}

}  // namespace tandem::cuda
