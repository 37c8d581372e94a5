#include <cuda_runtime.h>

#include <string>

#include "tests/gpu/fused/fused_test_hooks.h"

namespace tandem::cuda {

FusedVariant HookedRight();
FusedVariant HookedFlagFirst();
FusedVariant HookedMissingWait();
FusedVariant HookedStaleLaunch();
SkinnyVariant SkinnyHookedRight();
SkinnyVariant SkinnyHookedFlagFirst();
SkinnyVariant SkinnyHookedMissingWait();
SkinnyVariant SkinnyHookedStaleLaunch();

namespace {

// No CTA of the fused kernel fits beside it.
constexpr int kSquatterBytes = 200 << 10;

__global__ void Squatter(uint32_t* holding, const volatile uint32_t* release) {
  atomicAdd_system(holding, 1u);
  while (*release == 0) __nanosleep(1000);
}

Status RuntimeStatus(const char* call, cudaError_t error) {
  return error == cudaSuccess ? Status::Ok() : Internal(std::string(call) + ": " + cudaGetErrorString(error));
}

Status Load(const void* kernel, size_t shared_bytes) {
  cudaFuncAttributes attributes = {};
  TANDEM_RETURN_IF_ERROR(RuntimeStatus("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel)));
  return RuntimeStatus("cudaFuncSetAttribute",
                       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            static_cast<int>(shared_bytes)));
}

}  // namespace

FusedVariant HookedVariant(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return HookedFlagFirst();
    case FusedFault::kMissingWait: return HookedMissingWait();
    case FusedFault::kStaleLaunchNumber: return HookedStaleLaunch();
    case FusedFault::kNone: break;
  }
  return HookedRight();
}

SkinnyVariant HookedSkinny(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return SkinnyHookedFlagFirst();
    case FusedFault::kMissingWait: return SkinnyHookedMissingWait();
    case FusedFault::kStaleLaunchNumber: return SkinnyHookedStaleLaunch();
    case FusedFault::kNone: break;
  }
  return SkinnyHookedRight();
}

Status LaunchSquatter(int blocks, uint32_t* holding, const uint32_t* release, CUstream_st* stream) {
  Squatter<<<static_cast<unsigned>(blocks), 1, kSquatterBytes, stream>>>(holding, release);
  return RuntimeStatus("Squatter", cudaGetLastError());
}

Status LoadFusedTestHooks() {
  for (FusedFault fault : {FusedFault::kNone, FusedFault::kFlagBeforeData, FusedFault::kMissingWait,
                           FusedFault::kStaleLaunchNumber}) {
    const FusedVariant variant = HookedVariant(fault);
    TANDEM_RETURN_IF_ERROR(Load(variant.kernel, variant.shared_bytes));
    const SkinnyVariant few = HookedSkinny(fault);
    TANDEM_RETURN_IF_ERROR(Load(few.kernel, few.shared_bytes));
  }
  TANDEM_RETURN_IF_ERROR(LoadCountDifferent());
  return Load(reinterpret_cast<const void*>(&Squatter), kSquatterBytes);
}

}  // namespace tandem::cuda
