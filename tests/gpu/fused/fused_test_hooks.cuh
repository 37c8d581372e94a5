// File: fused_test_hooks.cuh
//
// One source file compiles one fault, so that they compile in parallel.
#pragma once

#include "kernels/cuda/fused/kernel/variant.cuh"
#include "kernels/cuda/skinny/skinny_variant.cuh"

namespace tandem::cuda {

template <bool kFlagFirst, bool kNoWait, bool kStale>
struct FusedDelayHooks {
  using Params = FusedMatmulParams;
  static constexpr bool kFlagBeforeData = kFlagFirst;
  static constexpr bool kClient = false;
  static constexpr uint64_t kMaxDelayNs = 20'000, kEarlyFlagNs = 200'000;
  __device__ static bool HasReached(uint64_t word, uint64_t launch_number) {
    return kNoWait || NoFusedTestHooks::HasReached(word, launch_number - (kStale ? 1 : 0));
  }
  __device__ static void AfterWait(uint64_t launch_number) { Sometimes(launch_number * 2); }
  __device__ static void BeforeFlag(uint64_t launch_number) { Sometimes(launch_number * 2 + 1); }
  // Long enough for who has seen the flag to read what lay there before.
  __device__ static void AfterEarlyFlag(uint64_t) { Pause(ptx::GlobalTimer(), kEarlyFlagNs); }
  // One CTA in four, for a random time.
  __device__ static void Sometimes(uint64_t what) {
    const uint64_t now = ptx::GlobalTimer();
    uint64_t hash = (what * 8191 + blockIdx.x + (now << 20)) * 0xBF58476D1CE4E5B9ull;
    hash ^= hash >> 31;
    if (hash % 4 == 0) Pause(now, (hash >> 8) % kMaxDelayNs);
  }
  __device__ static void Pause(uint64_t now, uint64_t ns) {
    while (ptx::GlobalTimer() < now + ns) {
    }
  }
};

template <bool kFlagFirst, bool kNoWait, bool kStale>
FusedVariant MakeHookedVariant() {
  using Traits = FusedTraits<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 256, 1, 1, true>;
  return MakeFusedVariant<Traits, FusedDelayHooks<kFlagFirst, kNoWait, kStale>>();
}

template <bool kFlagFirst, bool kNoWait, bool kStale>
SkinnyVariant MakeHookedSkinny() {
  using Traits = SkinnyTraits<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 64, 1, 2>;
  return MakeSkinnyVariant<Traits, FusedDelayHooks<kFlagFirst, kNoWait, kStale>>();
}

}  // namespace tandem::cuda
