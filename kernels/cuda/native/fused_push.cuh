// File: fused_push.cuh
//
// How the fused kernel brings its rank's rows of A to the peers beside its products: one warp of each CTA copies units of them, which
// the CTAs take in turn, so that whichever run push everything; who copies the last one tells the peers. It is no part of the tiles'
// pipeline: it has its own registers and loads past the stages.
#pragma once

#include <cstdint>

#include "kernels/cuda/native/fused_matmul.h"
#include "kernels/cuda/native/ptx.cuh"

namespace tandem::cuda {

// One warp, all lanes.
template <class Probe>
__device__ __forceinline__ void PushShard(const FusedScalars& params, const FusedTables& tables) {
  constexpr int kAtOnce = 4, kUnitBytes = 8192, kStepBytes = 32 * 16;
  const int lane = static_cast<int>(threadIdx.x) & 31, peers = params.pushes;
  if (peers == 0) return;
  const auto units = static_cast<uint32_t>((params.push_bytes + kUnitBytes - 1) / kUnitBytes);
  uint32_t* taken = params.push_counts;
  uint32_t* pushed = params.push_counts + 1;
  uint32_t own = 0, next = lane == 0 ? atomicAdd(taken, 1u) : 0u;
  while (true) {
    const uint32_t unit = __shfl_sync(0xFFFFFFFF, next, 0);
    if (unit >= units) {
      // The last one to find nothing leaves the count as it was.
      if (lane == 0 && unit == units + gridDim.x - 1) *taken = 0;
      break;
    }
    if (lane == 0) next = atomicAdd(taken, 1u);  // on its way during this unit
    ++own;
    const int64_t begin = static_cast<int64_t>(unit) * kUnitBytes + lane * 16;
#pragma unroll 1
    for (int step = 0; step < kUnitBytes; step += kAtOnce * kStepBytes) {
      uint4 values[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int64_t at = begin + step + i * kStepBytes;
        if (at < params.push_bytes) values[i] = __ldcg(reinterpret_cast<const uint4*>(params.push_from + at));
      }
      for (int peer = 0; peer < peers; ++peer) {
        std::byte* to = tables.push[peer].to;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int64_t at = begin + step + i * kStepBytes;
          if (at < params.push_bytes) *reinterpret_cast<uint4*>(to + at) = values[i];
        }
      }
    }
    if (unit != 0) continue;
    for (int i = lane; i < params.push_scale_count; i += 32) {
      const float scale = reinterpret_cast<const float*>(params.push_scales)[i];
      for (int peer = 0; peer < peers; ++peer) reinterpret_cast<float*>(tables.push[peer].scales_to)[i] = scale;
    }
  }
  if (own == 0) return;
  __syncwarp();
  if (lane != 0) return;
  Probe::BeforeFlag(params.epoch);
  ptx::SystemFence();
  if (atomicAdd(pushed, own) + own != units) return;
  *pushed = 0;
  ptx::SystemFence();
  for (int peer = 0; peer < peers; ++peer) ptx::StoreRelease(tables.push[peer].done, params.epoch);
}

}  // namespace tandem::cuda
