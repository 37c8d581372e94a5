// File: fused_words.cuh
//
// The fused matmul kernel's words: waiting for those that others write, and writing those that say that a
// piece is complete.
#pragma once

#include <cstdint>

#include "kernels/cuda/collectives/launch_context.cuh"
#include "kernels/cuda/fused/client_params.h"
#include "kernels/cuda/fused/fused_matmul.h"
#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// Where tests pause, and plant faults that they must find (tests/gpu/fused/fused_test_hooks.cuh): nowhere in
// the product's kernels.
struct NoFusedTestHooks {
  using Params = FusedMatmulParams;
  static constexpr bool kFlagBeforeData = false;
  static constexpr bool kClient = false;
  __device__ static bool HasReached(uint64_t word, uint64_t launch_number) {
    return static_cast<int64_t>(word - launch_number) >= 0;
  }
  __device__ static void AfterWait(uint64_t) {}
  __device__ static void BeforeFlag(uint64_t) {}
  __device__ static void AfterEarlyFlag(uint64_t) {}
};

// The kernels of client-placed launches (client_fused.h). Engines' kernels have no code for them.
struct ClientFused : NoFusedTestHooks {
  using Params = ClientFusedParams;
  static constexpr bool kClient = true;
};

// One thread's waits for words that other GPUs, or the lanes beside the kernel, write. After an abort or a
// time-out nothing is waited for any more: the kernel runs on to its end, and what it computes counts for
// nothing.
template <class TestHooks, class Params = FusedMatmulParams>
struct WordWaiter {
  const Params& params;
  bool given_up = false;
  __device__ __forceinline__ void Wait(const uint64_t* word) {
    if (given_up || TestHooks::HasReached(ptx::LoadAcquire(word), params.launch_number)) return;
    uint64_t start = ptx::GlobalTimer(), asked = start;
    while (!TestHooks::HasReached(ptx::LoadAcquire(word), params.launch_number)) {
      uint64_t now = ptx::GlobalTimer();
      if (now - asked < 64'000) continue;  // thousands of threads may wait
      asked = now;
      if constexpr (TestHooks::kClient) {
        // The kernel before this one has counted the launch.
        const ClientLaunchContext context(params.group_state,
                                          ClientLaunchContext::Counted(params.group_state));
        given_up = !context.PollFailures(&start, context.PeerOf(word), 0);
        if (given_up) return;
        continue;
      }
      if (params.abort_word != nullptr && ptx::LoadAcquire(params.abort_word) != 0) {
        given_up = true;
        return;
      }
      if (now - start > params.timeout_ns) {
        given_up = true;
        *params.failure = 1;
        return;
      }
    }
  }
};

// Counts `halves` of 64 rows of a tile of piece `index` as stored in all places; the caller's fences are
// done. The counter of the last one signals that the piece, or the word band, is complete.
template <class T, class TestHooks>
__device__ __forceinline__ void CountStored(const FusedMatmulParams& params, int index, int tile_n,
                                            uint32_t halves) {
  TestHooks::BeforeFlag(params.launch_number);
  const MatmulPiece& piece = params.piece[index];
  constexpr int kUnitRows = kTileRows * T::kClusterM;
  const bool banded = piece.words > 1 && params.band_units_n > 0;
  const int band = banded ? tile_n / T::kClusterN / params.band_units_n : 0;
  const int units_n =
      banded ? min(params.band_units_n, params.units_n - band * params.band_units_n) : params.units_n;
  const int units = (piece.rows + kUnitRows - 1) / kUnitRows * units_n;  // clusters' tiles of the piece
  uint32_t* counter = &params.counters[index * kMaxWordBands + band];
  if (atomicAdd(counter, halves) + halves != static_cast<uint32_t>(units * T::kCluster) * 2) return;
  *counter = 0;
  ptx::SystemFence();
  // A tile of the piece may be of a CTA that has given up. That CTA set the flag before the tile was counted.
  if (TestHooks::kClient && ClientLaunchContext::HasFailed(params.group_state)) return;
  if (piece.done != nullptr) ptx::StoreRelease(piece.done, params.launch_number);
  // The words of bands behind the last column are written with the last one's.
  const int end = banded && (band + 1) * params.band_units_n < params.units_n ? band + 1 : piece.words;
  for (int i = 0; i < piece.copies; ++i) {
    for (int word = band; word < end; ++word) {
      ptx::StoreRelease(params.copy[piece.first_copy + i].done + word * params.word_step,
                        params.launch_number);
    }
  }
}

}  // namespace tandem::cuda
