// The client's form of the skinny kernel with pauses and planted faults.
#include <cuda_runtime.h>

#include "kernels/cuda/fused/runtime_status.h"
#include "kernels/cuda/skinny/client_skinny.cuh"
#include "tests/gpu/fused/fused_probes.cuh"
#include "tests/gpu/fused/fused_probes.h"

namespace tandem::cuda {
namespace {

using RightProbe = FusedDelayProbe<false, false, false>;
using FlagFirstProbe = FusedDelayProbe<true, false, false>;
using MissingWaitProbe = FusedDelayProbe<false, true, false>;
// A probe for words that hold a launch's number above a tag.
struct StaleLaunchProbe : RightProbe {
  __device__ static bool HasReached(uint64_t word, uint64_t value) {
    return NoFusedProbe::HasReached(word, value - (uint64_t{1} << kLaunchTagBits));
  }
};

template <class Probe>
SkinnyVariant Probed() {
  using Traits = SkinnyTraits<__nv_bfloat16, __nv_bfloat16, __nv_bfloat16, false, 64, 1, 2>;
  return MakeSkinnyVariant<Traits, Probe, ClientSkinnyLaunch>();
}

}  // namespace

SkinnyVariant ProbedClientSkinny(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return Probed<FlagFirstProbe>();
    case FusedFault::kMissingWait: return Probed<MissingWaitProbe>();
    case FusedFault::kStaleEpoch: return Probed<StaleLaunchProbe>();
    case FusedFault::kNone: break;
  }
  return Probed<RightProbe>();
}

}  // namespace tandem::cuda
