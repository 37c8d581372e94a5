#include "kernels/cuda/skinny/client_skinny.h"

#include <string>
#include <vector>

#include "kernels/cuda/device/dependent_launch.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "kernels/cuda/skinny/skinny_plan.h"

namespace tandem::cuda {

#define TANDEM_CLIENT_SKINNY_TYPES(X) X(bf16_k) X(bf16_n) X(f16_k) X(f16_n) X(e4m3) X(e4m3_exact)
#define TANDEM_DECLARE(name) std::span<const SkinnyVariant> ClientSkinnyVariants_##name();
TANDEM_CLIENT_SKINNY_TYPES(TANDEM_DECLARE)
#undef TANDEM_DECLARE

std::span<const SkinnyVariant> ClientSkinnyVariants() {
  static const std::vector<SkinnyVariant> variants = [] {
    std::vector<SkinnyVariant> all;
#define TANDEM_APPEND(name) \
  for (const SkinnyVariant& variant : ClientSkinnyVariants_##name()) all.push_back(variant);
    TANDEM_CLIENT_SKINNY_TYPES(TANDEM_APPEND)
#undef TANDEM_APPEND
    return all;
  }();
  return variants;
}

Result<ClientSkinnyKernel> MakeClientSkinny(const SkinnyMatmul& matmul, const SkinnyVariant& variant,
                                            uint64_t half_bytes) {
  if (half_bytes % 16 != 0) return InvalidArgument("halves that are no multiple of 16 bytes");
  if (matmul.layout.ctas() > kLaunchCounters) return Unimplemented("a client-placed kernel of too many CTAs");
  ClientSkinnyKernel kernel = {};
  kernel.variant = &variant;
  kernel.ctas = matmul.layout.ctas();
  TANDEM_ASSIGN_OR_RETURN(static_cast<SkinnyParams&>(kernel.launch), MakeSkinnyParams(matmul));
  kernel.launch.half_bytes = static_cast<int64_t>(half_bytes);
  if (matmul.layout.kind == SkinnyKind::kGather) {
    SkinnyMatmul odd = matmul;
    odd.area[static_cast<size_t>(odd.rank)] += half_bytes;
    TANDEM_RETURN_IF_ERROR(MakeOthersMap(odd, &kernel.launch.odd_others));
  }
  return kernel;
}

Result<ClientSkinnyKernel> MakeClientSkinny(const CollectiveArgs& args, uint64_t half_bytes) {
  TANDEM_ASSIGN_OR_RETURN(const SkinnyMatmul matmul, MakeSkinnyMatmul(args, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const SkinnyVariant* variant, FindSkinnyVariant(matmul, ClientSkinnyVariants()));
  return MakeClientSkinny(matmul, *variant, half_bytes);
}

Status LaunchClientSkinny(const ClientSkinnyKernel& kernel, CUstream_st* stream) {
  if (kernel.ctas < 1 || kernel.ctas > kLaunchCounters)
    return InvalidArgument("a client-placed kernel of " + std::to_string(kernel.ctas) + " CTAs");
  return LaunchDependent("SkinnyRows", kernel.variant->kernel, static_cast<unsigned>(kernel.ctas),
                         kSkinnyThreads, kernel.variant->shared_bytes, &kernel.launch, stream);
}

Status LoadClientSkinny(const ClientSkinnyKernel& kernel) { return LoadSkinnyVariant(*kernel.variant); }

}  // namespace tandem::cuda
