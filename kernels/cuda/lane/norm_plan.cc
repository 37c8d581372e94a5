#include "kernels/cuda/lane/norm_plan.h"

#include "kernels/cuda/device/launch.h"
#include "kernels/host/norm.h"
#include "kernels/host/strided.h"

namespace tandem::cuda {

Status EnqueueNorm(const NormArgs& args, CUstream_st* stream) {
  TANDEM_RETURN_IF_ERROR(host::CheckNorm(args));
  NormLaunch launch = {};
  launch.columns = args.out.extent.back();
  launch.rows = launch.columns == 0 ? 0 : host::CountOf(args.out) / launch.columns;
  launch.sum = args.sum.data;
  launch.weight = args.weight.data;
  launch.out = args.out.data;
  launch.epsilon = args.epsilon;
  launch.type = static_cast<uint8_t>(args.out.dtype);
  if (args.has_residual) {
    launch.residual = args.residual.data;
    launch.residual_out = args.residual_out.data;
  }
  return LaunchNorm(launch, stream);
}

}  // namespace tandem::cuda
