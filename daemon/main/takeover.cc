#include "daemon/main/takeover.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "common/log.h"
#include "ipc/handover_versions.h"

namespace tandem::daemon {
namespace {

// An engine answers between two commands; one may take seconds.
constexpr std::chrono::milliseconds kInventoryDeadline{10000};
// Emulated GPUs, and GPUs of a node.
constexpr int kMaxGpus = 8;

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

// The first setting of the two that has another value; empty if there is none. Fields that this build does
// not know do not count: another build of the same versions had set them.
std::string DifferentSetting(const engine::v1::Start& one, const engine::v1::Start& other) {
  const std::pair<const char*, bool> same[] = {
      {"the GPU", one.gpu() == other.gpu() && one.gpu_uuid() == other.gpu_uuid()},
      {"backend", one.backend() == other.backend()},
      {"hardware_queues", one.hardware_queues() == other.hardware_queues()},
      {"the GPU's memory", one.memory_bytes() == other.memory_bytes()},
      {"testing.visibility_delay_us", one.visibility_delay_us() == other.visibility_delay_us()},
      {"trace_records", one.trace_records() == other.trace_records()},
      {"testing.emulated_fused", one.emulated_fused() == other.emulated_fused()},
      {"speculative_launch", one.no_speculative_launch() == other.no_speculative_launch()},
      {"testing.engines_per_gpu", one.engines_per_gpu() == other.engines_per_gpu()}};
  for (const auto& [name, equal] : same) {
    if (!equal) return name;
  }
  return {};
}

Status CheckEngine(const AdoptedEngine& engine, const NodeChoice& node, const EngineSettings& settings,
                   const std::string& build, int gpu) {
  const std::string name = "the engine of GPU " + std::to_string(gpu);
  if (const std::string why = HandoverDifferences(engine.versions, HandoverVersions()); !why.empty())
    return FailedPrecondition(name + " is of build " + engine.build + ", tandemd of " + build + ": " + why);
  if (gpu >= node.topology.size()) return FailedPrecondition(name + " has a GPU that tandemd has not");
  const GpuInfo& info = node.topology.gpus[static_cast<size_t>(gpu)];
  const engine::v1::Start wanted = StartCommand(settings, gpu, info.uuid, info.memory_bytes);
  // Generation, seed and restart_grace_ms differ from start to start, or may be changed between two tandemds.
  if (const std::string setting = DifferentSetting(engine.start, wanted); !setting.empty())
    return FailedPrecondition(name + " was started with another configuration: " + setting + " differs");
  if (engine.build != build)
    log::Info(name + " is of build " + engine.build + " and goes on under tandemd of " + build);
  return Status::Ok();
}

Status ReadJournal(Takeover* takeover) {
  for (std::optional<AdoptedEngine>& engine : takeover->engines) {
    if (!engine.has_value()) continue;
    takeover->order_log = Duplicate(engine->order_log);
    takeover->journal_fd = Duplicate(engine->journal);
    TANDEM_ASSIGN_OR_RETURN(Journal journal, Journal::Open(Duplicate(engine->journal)));
    TANDEM_ASSIGN_OR_RETURN(takeover->state, ParseState(journal.TakeRecords()));
    takeover->journal.emplace(std::move(journal));
    return Status::Ok();
  }
  return NotFound("no engine is left");
}

void End(std::vector<std::optional<AdoptedEngine>> all, const std::string& directory,
         std::chrono::milliseconds grace) {
  std::vector<AdoptedEngine> engines;
  for (std::optional<AdoptedEngine>& engine : all) {
    if (engine.has_value()) engines.push_back(std::move(*engine));
  }
  EndEngines(std::move(engines), grace);
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) ::unlink(SuccessorSocketPath(directory, gpu).c_str());
}

}  // namespace

std::optional<Takeover> TakeOverEngines(const Config& config, const NodeChoice& node,
                                        const EngineSettings& settings, const std::string& build) {
  const std::string directory = AdminDirectory(config);
  Takeover takeover;
  Status status;
  if (config.restart_grace_ms == 0) status = FailedPrecondition("restart_grace_ms is 0");
  bool any = false;
  for (int gpu = 0; gpu < kMaxGpus; ++gpu) {
    Result<std::optional<AdoptedEngine>> engine =
        AdoptEngine(SuccessorSocketPath(directory, gpu), kInventoryDeadline);
    if (!engine.ok()) {
      any = true;
      if (status.ok()) status = engine.status();
      takeover.engines.emplace_back();
      continue;
    }
    any |= engine->has_value();
    if (engine->has_value() && status.ok()) status = CheckEngine(**engine, node, settings, build, gpu);
    takeover.engines.push_back(std::move(*engine));
  }
  if (!any) return std::nullopt;
  if (status.ok()) status = ReadJournal(&takeover);
  if (!status.ok()) {
    log::Warning("engines of an earlier tandemd are ended, and their jobs with them: " + status.message());
    End(std::move(takeover.engines), directory, settings.end_grace);
    return std::nullopt;
  }
  takeover.engines.resize(static_cast<size_t>(node.topology.size()));
  return takeover;
}

}  // namespace tandem::daemon
