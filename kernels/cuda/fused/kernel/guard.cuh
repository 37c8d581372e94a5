// File: guard.cuh
//
// How the fused kernels look at the guard of a launch (kernels/backend.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/fused/kernel/ptx.cuh"

namespace tandem::cuda {

// The first thing in a kernel: true in one thread, of a warp that has nothing else to do yet, if the launch
// has been cancelled. All threads look at what it found where they first meet (__syncthreads_or), so that
// the word's way is hidden behind what the other warps do until then, and the word is asked for once a CTA.
// It was written, and seen there by the CPU, before the launch's turn came: no acquire, which would wait
// here.
__device__ __forceinline__ bool FoundGuardRaised(const uint64_t* word, uint64_t value) {
  constexpr unsigned kIdleThread = 96;
  return threadIdx.x == kIdleThread && word != nullptr &&
         static_cast<int64_t>(ptx::LoadRelaxed(word) - value) >= 0;
}

}  // namespace tandem::cuda
