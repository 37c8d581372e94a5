#include "kernels/cuda/skinny/skinny_matmul.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/cuda/fused/runtime_status.h"

namespace tandem::cuda {

#define TANDEM_SKINNY_TYPES(X) X(bf16_k) X(bf16_n) X(f16_k) X(f16_n) X(e4m3) X(e4m3_exact)
#define TANDEM_DECLARE(name) std::span<const SkinnyVariant> SkinnyVariants_##name();
TANDEM_SKINNY_TYPES(TANDEM_DECLARE)
#undef TANDEM_DECLARE

std::span<const SkinnyVariant> SkinnyVariants() {
  static const std::vector<SkinnyVariant> variants = [] {
    std::vector<SkinnyVariant> all;
#define TANDEM_APPEND(name) \
  for (const SkinnyVariant& variant : SkinnyVariants_##name()) all.push_back(variant);
    TANDEM_SKINNY_TYPES(TANDEM_APPEND)
#undef TANDEM_APPEND
    return all;
  }();
  return variants;
}

Result<const SkinnyVariant*> FindSkinnyVariant(const SkinnyMatmul& matmul) {
  return FindSkinnyVariant(matmul, SkinnyVariants());
}

Status LaunchSkinny(const SkinnyParams& params, const SkinnyVariant& variant, int ctas, CUstream_st* stream) {
  auto* copy = const_cast<SkinnyParams*>(&params);
  void* arguments[] = {copy};
  return RuntimeStatus("cudaLaunchKernel",
                       cudaLaunchKernel(variant.kernel, dim3(static_cast<unsigned>(ctas)),
                                        dim3(kSkinnyThreads), arguments, variant.shared_bytes, stream));
}

Status LoadSkinnyKernels() {
  for (const SkinnyVariant& variant : SkinnyVariants()) {
    TANDEM_RETURN_IF_ERROR(LoadSkinnyVariant(variant));
  }
  return Status::Ok();
}

}  // namespace tandem::cuda
