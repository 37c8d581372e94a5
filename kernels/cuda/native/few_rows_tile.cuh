// File: few_rows_tile.cuh
//
// What all parts of the few-rows kernel know: which tile a CTA has, how they wait for other GPUs, which barriers they meet at.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/few_rows.h"
#include "kernels/cuda/native/few_rows_traits.cuh"
#include "kernels/cuda/native/fused_matmul.cuh"

namespace tandem::cuda {

// Waits for words of other GPUs. After an abort or a time-out nothing is waited for any more: the kernel runs on to its end, and
// what it computes counts for nothing.
template <class Probe>
struct FewRowsWaiter {
  const FewRowsParams& params;
  bool given_up = false;
  __device__ __forceinline__ void Wait(const uint64_t* word) {
    if (given_up || Probe::HasReached(ptx::LoadAcquire(word), params.epoch)) return;
    uint64_t start = ptx::GlobalTimer(), asked = start;
    while (!Probe::HasReached(ptx::LoadAcquire(word), params.epoch)) {
      uint64_t now = ptx::GlobalTimer();
      if (now - asked < 64'000) continue;  // the abort word lies in host memory: ask seldom
      asked = now;
      if (params.abort_word != nullptr && ptx::LoadAcquire(params.abort_word) != 0) given_up = true;
      if (!given_up && now - start > params.timeout_ns) {
        given_up = true;
        *params.failure = 1;
      }
      if (given_up) return;
    }
  }
};

__device__ __forceinline__ void BarrierOf(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// The same for threads that others wait for.
__device__ __forceinline__ void ArriveAt(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
inline constexpr int kComputingBarrier = 1, kFirstSegmentBarrier = 2, kFirstUnitBarrier = kFirstSegmentBarrier + 8;

// Which tile a CTA has, and its place in the cluster.
template <class T>
struct FewRowsTile {
  int cta, in_m, in_n, m, n, number;
  __device__ __forceinline__ explicit FewRowsTile(const FewRowsParams& params)
      : cta(T::kCluster == 1 ? 0 : static_cast<int>(ptx::ClusterRank())), in_m(cta % T::kClusterM), in_n(cta / T::kClusterM) {
    const int cluster = static_cast<int>(blockIdx.x) / T::kCluster, clusters_m = params.tiles_m / T::kClusterM;
    m = cluster % clusters_m * T::kClusterM + in_m;
    n = cluster / clusters_m * T::kClusterN + in_n;
    number = n * params.tiles_m + m;
  }
};

}  // namespace tandem::cuda
