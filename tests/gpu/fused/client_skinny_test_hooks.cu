// The client's form of the skinny kernel with pauses and planted faults.
#include <cuda_runtime.h>

#include "kernels/cuda/fused/runtime_status.h"
#include "kernels/cuda/skinny/client_skinny.cuh"
#include "tests/gpu/fused/fused_test_hooks.cuh"
#include "tests/gpu/fused/fused_test_hooks.h"

namespace tandem::cuda {
namespace {

using RightHooks = FusedDelayHooks<false, false, false>;
using FlagFirstHooks = FusedDelayHooks<true, false, false>;
using MissingWaitHooks = FusedDelayHooks<false, true, false>;
// Test hooks for words that hold a launch's number above a tag.
struct StaleLaunchHooks : RightHooks {
  __device__ static bool HasReached(uint64_t word, uint64_t value) {
    return NoFusedTestHooks::HasReached(word, value - (uint64_t{1} << kLaunchTagBits));
  }
};

template <class TestHooks>
SkinnyVariant Hooked() {
  using Traits = SkinnyTraits<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 64, 1, 2>;
  return MakeSkinnyVariant<Traits, TestHooks, ClientSkinnyLaunch>();
}

}  // namespace

SkinnyVariant HookedClientSkinny(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return Hooked<FlagFirstHooks>();
    case FusedFault::kMissingWait: return Hooked<MissingWaitHooks>();
    case FusedFault::kStaleLaunchNumber: return Hooked<StaleLaunchHooks>();
    case FusedFault::kNone: break;
  }
  return Hooked<RightHooks>();
}

}  // namespace tandem::cuda
