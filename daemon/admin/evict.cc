#include "common/log.h"
#include "daemon/admin/admin_service.h"
#include "daemon/admin/end_processes.h"

namespace tandem::daemon {
namespace {

// From SIGTERM to SIGKILL: a process whose context is lost has nothing left to save on the GPU.
constexpr std::chrono::milliseconds kGrace{1000};

}  // namespace

Result<std::vector<int>> EvictFromGpu(const AdminSources& sources, const std::string& gpu_uuid, bool force) {
  if (sources.gpu_processes == nullptr)
    return FailedPrecondition("no driver here can list the processes on a GPU");
  TANDEM_ASSIGN_OR_RETURN(int gpu, sources.topology.Find(gpu_uuid));
  if (sources.engines->StatusOf(gpu).blocked.empty() && !force) {
    return FailedPrecondition("the engine of " + gpu_uuid +
                              " waits for no process; --force ends them all the same");
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<GpuProcess> processes, sources.gpu_processes->On(gpu_uuid));
  std::vector<int> pids;
  std::string texts;
  for (const GpuProcess& process : processes) {
    bool engine = false;
    for (int other = 0; other < sources.engines->count(); ++other) {
      engine |= sources.engines->StatusOf(other).pid == process.pid;
    }
    if (engine || process.is_mps_server) continue;
    pids.push_back(process.pid);
    texts += (texts.empty() ? "" : ", ") + GpuProcessText(process);
  }
  if (!pids.empty())
    log::Warning("gpu=" + std::to_string(gpu) + " processes evicted by an operator: " + texts);
  TANDEM_RETURN_IF_ERROR(EndProcesses(pids, kGrace));
  return pids;
}

}  // namespace tandem::daemon
