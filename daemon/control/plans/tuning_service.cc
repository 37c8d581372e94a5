#include "daemon/control/plans/tuning_service.h"

#include <algorithm>

#include "common/utc_time.h"
#include "daemon/control/base/capabilities.h"
#include "daemon/control/base/validate.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/tuning/tuning_store.h"

namespace tandem::daemon {

std::string TuningModel(const ControlCore& core, const std::vector<int>& gpus) {
  // Times of the host backend say nothing of GPUs, whatever model a topology file gives the emulated ones.
  if (!SharedCapabilities(core.engines, gpus).on_gpu) return core.options.backend;
  const std::vector<GpuInfo>& all = core.options.topology.gpus;
  const auto model = [&](int gpu) -> const std::string& { return all[static_cast<size_t>(gpu)].model; };
  const bool alike =
      std::all_of(gpus.begin(), gpus.end(), [&](int gpu) { return model(gpu) == model(gpus[0]); });
  return alike && !gpus.empty() ? model(gpus[0]) : std::string();
}

Result<std::vector<int>> TuningService::GpusOf(const std::vector<std::string>& gpu_uuids) const {
  if (core_.options.tuning == nullptr) return FailedPrecondition("this daemon keeps no tuning table");
  if (gpu_uuids.size() < 2 || gpu_uuids.size() > static_cast<size_t>(plan::kMaxWorldSize)) {
    return InvalidArgument("times are measured on 2 to 8 GPUs");
  }
  std::vector<int> gpus;
  for (const std::string& uuid : gpu_uuids) {
    TANDEM_ASSIGN_OR_RETURN(const int gpu, core_.FindGpu(uuid));
    if (std::find(gpus.begin(), gpus.end(), gpu) != gpus.end())
      return InvalidArgument("GPU " + uuid + " is named twice");
    gpus.push_back(gpu);
  }
  return gpus;
}

Result<plan::TuningEntry> TuningService::Put(const v1::OpRequest& request,
                                             const std::vector<std::string>& gpu_uuids,
                                             std::vector<plan::TuningCandidate> candidates) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, GpusOf(gpu_uuids));
  TANDEM_ASSIGN_OR_RETURN(OpRequest parsed, ParseOpRequest(request, static_cast<int>(gpus.size())));
  return Put(std::move(parsed), gpu_uuids, std::move(candidates));
}

Result<plan::TuningEntry> TuningService::Put(OpRequest request, const std::vector<std::string>& gpu_uuids,
                                             std::vector<plan::TuningCandidate> candidates,
                                             std::optional<uint32_t> client) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> gpus, GpusOf(gpu_uuids));
  if (!plan::IsTunable(request.op)) {
    return InvalidArgument(std::string(OpName(request.op)) +
                           " has no choice of algorithms that could be tuned");
  }
  request.algorithm = Algorithm::kAuto;
  request.steps = request.lanes = 0;
  if (request.placement == PlanPlacement::kAuto) request.placement = PlanPlacement::kEngine;
  // The most that such a group can do; a later group is checked when its plan is made.
  plan::GroupContext context;
  context.topology = Subset(core_.options.topology, gpus);
  const EngineCapabilities capabilities = SharedCapabilities(core_.engines, gpus);
  context.packet_kernels = capabilities.packet_kernels;
  context.fused_kernels = context.fused_by_choice = true;
  if (capabilities.on_gpu) context.client_kernels = plan::ClientKernels::kFused;
  context.gpu_model = TuningModel(core_, gpus);
  if (context.gpu_model.empty()) return FailedPrecondition("the GPUs are not of one model");
  const std::vector<OpRequest> requests(gpus.size(), request);
  TANDEM_ASSIGN_OR_RETURN(const plan::Problem problem, plan::MakeProblem(requests, context));
  plan::TuningEntry entry;
  entry.key = plan::TuningKeyOf(problem);
  entry.shape = plan::TuningShapeOf(problem);
  entry.measured_at = UtcNow();
  entry.version = core_.options.daemon_version;
  entry.candidates = std::move(candidates);
  TANDEM_RETURN_IF_ERROR(plan::CheckTuningEntry(&entry));
  for (const plan::TuningCandidate& candidate : entry.candidates) {
    if (candidate.samples == 0) break;
    std::vector<OpRequest> asked = requests;
    for (OpRequest& one : asked) {
      one.algorithm = candidate.algorithm;
      one.steps = candidate.steps;
      one.lanes = candidate.lanes;
    }
    const std::string name(AlgorithmName(candidate.algorithm));
    TANDEM_RETURN_IF_ERROR(plan::MakePlan(asked, context)
                               .status()
                               .WithContext("the time for " + name + " is refused, because it cannot run"));
  }
  TANDEM_RETURN_IF_ERROR(
      core_.options.tuning->Put(entry, client.has_value() ? kMaxTuningOfClients : kMaxTuningFile));
  const std::string text =
      "tuning: " + std::string(OpName(entry.key.op)) + " " + plan::TuningShapeText(entry.shape) + " " +
      entry.key.types + " on " + std::to_string(entry.key.world_size) + " x " + entry.key.gpu + ": " +
      std::string(AlgorithmName(entry.candidates[0].algorithm)) + " entry=" + plan::TuningId(entry);
  client.has_value() ? core_.LogOf(client, LogSeverity::kInfo, text) : core_.Log(LogSeverity::kInfo, text);
  entry.source = core_.options.tuning->state_file();
  return entry;
}

}  // namespace tandem::daemon
