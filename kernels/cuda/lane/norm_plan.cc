#include "kernels/cuda/lane/norm_plan.h"

#include "kernels/cuda/device/fixed_norm.h"
#include "kernels/cuda/device/norm_launch.h"
#include "kernels/host/norm.h"

namespace tandem::cuda {

Status EnqueueNorm(const NormArgs& args, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(host::CheckNorm(args));
  const NormLaunch launch = NormLaunchOf(args);
  return args.fixed_order ? LaunchFixedNorm(launch, stream) : LaunchNorm(launch, stream);
}

}  // namespace tandem::cuda
