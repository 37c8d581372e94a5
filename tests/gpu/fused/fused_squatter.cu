#include <cuda_runtime.h>

#include <string>

#include "tests/gpu/fused/fused_probes.h"

namespace tandem::cuda {

FusedVariant ProbedRight();
FusedVariant ProbedFlagFirst();
FusedVariant ProbedMissingWait();
FusedVariant ProbedStaleEpoch();
SkinnyVariant SkinnyProbedRight();
SkinnyVariant SkinnyProbedFlagFirst();
SkinnyVariant SkinnyProbedMissingWait();
SkinnyVariant SkinnyProbedStaleEpoch();

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

FusedVariant ProbedVariant(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return ProbedFlagFirst();
    case FusedFault::kMissingWait: return ProbedMissingWait();
    case FusedFault::kStaleEpoch: return ProbedStaleEpoch();
    case FusedFault::kNone: break;
  }
  return ProbedRight();
}

SkinnyVariant ProbedSkinny(FusedFault fault) {
  switch (fault) {
    case FusedFault::kFlagBeforeData: return SkinnyProbedFlagFirst();
    case FusedFault::kMissingWait: return SkinnyProbedMissingWait();
    case FusedFault::kStaleEpoch: return SkinnyProbedStaleEpoch();
    case FusedFault::kNone: break;
  }
  return SkinnyProbedRight();
}

Status LaunchSquatter(int blocks, uint32_t* holding, const uint32_t* release, CUstream_st* stream) {
  Squatter<<<static_cast<unsigned>(blocks), 1, kSquatterBytes, stream>>>(holding, release);
  return RuntimeStatus("Squatter", cudaGetLastError());
}

Status LoadFusedProbes() {
  for (FusedFault fault :
       {FusedFault::kNone, FusedFault::kFlagBeforeData, FusedFault::kMissingWait, FusedFault::kStaleEpoch}) {
    const FusedVariant variant = ProbedVariant(fault);
    TANDEM_RETURN_IF_ERROR(Load(variant.kernel, variant.shared_bytes));
    const SkinnyVariant few = ProbedSkinny(fault);
    TANDEM_RETURN_IF_ERROR(Load(few.kernel, few.shared_bytes));
  }
  TANDEM_RETURN_IF_ERROR(LoadCountDifferent());
  return Load(reinterpret_cast<const void*>(&Squatter), kSquatterBytes);
}

}  // namespace tandem::cuda
