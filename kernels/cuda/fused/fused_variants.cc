// The table of the fused kernel's variants for engines, and how they are loaded.
#include <cuda_runtime_api.h>

#include <string>
#include <vector>

#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/fused/fused_variant_list.h"
#include "kernels/cuda/fused/runtime_status.h"

namespace tandem::cuda {

#define TANDEM_DECLARE(name) FusedVariant FusedVariant_##name();
TANDEM_FUSED_VARIANTS(TANDEM_DECLARE)
#undef TANDEM_DECLARE

std::span<const FusedVariant> FusedVariants() {
  static const std::vector<FusedVariant> variants = {
#define TANDEM_CALL(name) FusedVariant_##name(),
      TANDEM_FUSED_VARIANTS(TANDEM_CALL)
#undef TANDEM_CALL
  };
  return variants;
}

Status LoadFusedKernels() {
  int device = 0, major = 0, minor = 0;
  TANDEM_RETURN_IF_ERROR(RuntimeStatus("cudaGetDevice", cudaGetDevice(&device)));
  TANDEM_RETURN_IF_ERROR(RuntimeStatus(
      "cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
  TANDEM_RETURN_IF_ERROR(RuntimeStatus(
      "cudaDeviceGetAttribute", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)));
  if (major != 9 || minor != 0) {
    return Unimplemented("its GPU is of compute capability " + std::to_string(major) + "." +
                         std::to_string(minor) + "; they need 9.0 (Hopper)");
  }
  for (const FusedVariant& variant : FusedVariants()) TANDEM_RETURN_IF_ERROR(LoadFusedKernel(variant));
  return Status::Ok();
}

}  // namespace tandem::cuda
