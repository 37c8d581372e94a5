// File: fused_push.cuh
//
// Warp 3 of a client-placed gather: copies chunks of this rank's shard to the peers while the products run.
// Chunks are drawn from a counter, so that whatever CTAs are resident send all of them. All warps together
// have more than the links' rate, and no SM is taken from the products.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/ptx.cuh"
#include "kernels/cuda/fused/placed_params.h"

namespace tandem::cuda {

// One warp. Loads pass L1, which would keep what nobody reads again.
template <class Word>
__device__ __forceinline__ void CopyChunk(const PushedRows& push, uint32_t chunk) {
  constexpr int kInFlight = 4, kWordBytes = static_cast<int>(sizeof(Word));
  const int64_t row_words = push.row_bytes / kWordBytes;
  const int64_t begin = int64_t{chunk} * kPushChunk;
  const int64_t end = min(begin + kPushChunk, push.rows * row_words);
  const auto offset = [&](int64_t word, int64_t pitch) {
    if (pitch == push.row_bytes) return word * kWordBytes;
    const int64_t row = word / row_words;
    return row * pitch + (word - row * row_words) * kWordBytes;
  };
#pragma unroll 1
  for (int64_t first = begin + (threadIdx.x & 31); first < end; first += kInFlight * 32) {
    Word data[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = first + i * 32;
      if (at < end) data[i] = __ldcg(reinterpret_cast<const Word*>(push.from + offset(at, push.from_pitch)));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t at = first + i * 32;
      if (at < end) *reinterpret_cast<Word*>(push.to + offset(at, push.to_pitch)) = data[i];
    }
  }
}

// Counts `copied` chunks of this warp's; the last of a word's pushes tells the peer.
__device__ __forceinline__ void TellPushed(const PushedRows& push, uint32_t copied) {
  if (copied == 0) return;
  ptx::SystemFence();
  __syncwarp();
  if ((threadIdx.x & 31) == 0 && atomicAdd(push.arrived, copied) + copied == push.awaited) {
    *push.arrived = 0;
    ptx::SystemFence();
    ptx::StoreRelease(push.done, 1);
  }
  __syncwarp();
}

// One warp of every CTA, in launches that have not been cancelled.
__device__ __forceinline__ void PushShard(const PlacedPushes& pushes) {
  if (pushes.count == 0) return;
  const bool draws = (threadIdx.x & 31) == 0;
  uint32_t next = draws ? ptx::Add(pushes.drawn, 1) : 0, copied = 0;
  int p = 0;
#pragma unroll 1
  for (;;) {
    const uint32_t chunk = __shfl_sync(~0u, next, 0);
    if (chunk >= pushes.chunks) {
      // Each CTA draws one number too many.
      if (draws && chunk == pushes.chunks + gridDim.x - 1) *pushes.drawn = 0;
      break;
    }
    if (draws) next = ptx::Add(pushes.drawn, 1);
    while (chunk >= pushes.push[p].first_chunk + pushes.push[p].chunks) {
      TellPushed(pushes.push[p], copied);
      copied = 0;
      ++p;
    }
    const PushedRows& push = pushes.push[p];
    switch (push.width) {
      case 16: CopyChunk<uint4>(push, chunk - push.first_chunk); break;
      case 4: CopyChunk<uint32_t>(push, chunk - push.first_chunk); break;
      default: CopyChunk<uint8_t>(push, chunk - push.first_chunk); break;
    }
    ++copied;
  }
  TellPushed(pushes.push[p], copied);
}

}  // namespace tandem::cuda
