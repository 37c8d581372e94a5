#include "kernels/cuda/lane/norm_plan.h"

#include "kernels/cuda/device/norm_launch.h"
#include "kernels/cuda/device/norm_manner.h"
#include "kernels/host/norm.h"

namespace tandem::cuda {

Status EnqueueNorm(const NormArgs& args, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(host::CheckNorm(args));
  return LaunchNorm(NormLaunchOf(args), NormMannerOf(args), NormQuantizationOf(args), stream);
}

}  // namespace tandem::cuda
