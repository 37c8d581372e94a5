// File: fused_push.cuh
//
// Warp 3 of a client-placed gather: copies chunks of this rank's shard to the peers while the products run.
// Chunks are drawn from a counter, so that whatever CTAs are resident send all of them, and no SM is taken
// from the products. The warp has 40 registers: spills here cost 7 % of a gather on four H200s.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/client_params.h"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// One warp. A chunk that lies together on both sides. Loads pass L1, which would keep what nobody reads
// again.
__device__ __forceinline__ void CopyWholeChunk(const std::byte* from, std::byte* to, uint32_t words) {
  constexpr int kInFlight = kPushStep / 32;
  const auto* source = reinterpret_cast<const uint4*>(from) + (threadIdx.x & 31);
  auto* destination = reinterpret_cast<uint4*>(to) + (threadIdx.x & 31);
#pragma unroll 1
  for (uint32_t done = 0; done < words; done += kPushStep, source += kPushStep, destination += kPushStep) {
    uint4 data[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) data[i] = __ldcg(source + i * 32);
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) destination[i * 32] = data[i];
  }
}

// One warp. Any chunk.
template <class Word>
__device__ __forceinline__ void CopyChunk(const PushedRows& push, uint32_t chunk) {
  constexpr uint32_t kWordBytes = sizeof(Word);
  const uint32_t row_words = static_cast<uint32_t>(push.row_bytes) / kWordBytes;
  const uint32_t begin = chunk * push.chunk_words;
  const uint32_t end = min(begin + push.chunk_words, static_cast<uint32_t>(push.rows) * row_words);
#pragma unroll 1
  for (uint32_t at = begin + (threadIdx.x & 31); at < end; at += 32) {
    const uint32_t row = at / row_words, byte = (at - row * row_words) * kWordBytes;
    const Word word = __ldcg(reinterpret_cast<const Word*>(push.from + row * push.from_pitch + byte));
    *reinterpret_cast<Word*>(push.to + row * push.to_pitch + byte) = word;
  }
}

// Counts `copied` chunks of this warp's; the last of a word's pushes signals to the peer.
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
__device__ __forceinline__ void PushShard(const ClientPushes& pushes) {
  if (pushes.count == 0) return;
  const bool draws = (threadIdx.x & 31) == 0;
  uint32_t next = draws ? ptx::Add(pushes.drawn, 1) : 0, copied = 0;
  int p = 0;
#pragma unroll 1
  for (;;) {
    const uint32_t drawn = __shfl_sync(~0u, next, 0);
    if (drawn >= pushes.chunks) {
      // Each CTA draws one number too many.
      if (draws && drawn == pushes.chunks + gridDim.x - 1) *pushes.drawn = 0;
      break;
    }
    if (draws) next = ptx::Add(pushes.drawn, 1);
    while (drawn >= pushes.push[p].first_chunk + pushes.push[p].chunks) {
      TellPushed(pushes.push[p], copied);
      copied = 0;
      ++p;
    }
    ++copied;
    const PushedRows& push = pushes.push[p];
    const uint32_t chunk = drawn - push.first_chunk;
    if (chunk < push.whole) {
      const PushedChunk whole = WholeChunk(push, chunk);
      // Into L2: where rows lie together, most likely this warp's next chunk.
      const uint32_t bytes = push.chunk_words * 16;
      if (draws && chunk + gridDim.x < push.whole)
        ptx::Prefetch(whole.from + int64_t{gridDim.x} * bytes, bytes);
      CopyWholeChunk(whole.from, whole.to, push.chunk_words);
    } else if (push.width == 16) {
      CopyChunk<uint4>(push, chunk);
    } else if (push.width == 4) {
      CopyChunk<uint32_t>(push, chunk);
    } else {
      CopyChunk<uint8_t>(push, chunk);
    }
  }
  TellPushed(pushes.push[p], copied);
}

}  // namespace tandem::cuda
