// Enqueues a collective's kernel for an engine. Apart from the parameters, which clients make too.
#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/device/launch.h"

namespace tandem::cuda {

Status EnqueueCollective(const CollectiveArgs& args, CUstream_st* stream) {
  const auto* packets = args.As<PacketsArgs>();
  if (packets == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(PhasesLaunch launch, MakePhasesLaunch(args));
    return LaunchPhases(launch, stream);
  }
  if (packets->dense) return Unimplemented("an engine has no dense packets");
  TANDEM_ASSIGN_OR_RETURN(PacketsLaunch launch, MakePacketsLaunch(args));
  return LaunchPackets(launch, stream);
}

Status LoadKernels() {
  TANDEM_RETURN_IF_ERROR(LoadLocalKernels());
  return CollectiveKernelsLoad();
}

}  // namespace tandem::cuda
