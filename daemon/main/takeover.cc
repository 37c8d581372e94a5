#include "daemon/main/takeover.h"

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "common/log.h"

namespace tandem::daemon {
namespace {

// An engine answers between two commands; one may take seconds.
constexpr std::chrono::milliseconds kInventoryDeadline{10000};
// Emulated GPUs, and GPUs of a node.
constexpr int kMaxGpus = 8;

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

Status CheckEngine(const AdoptedEngine& engine, const NodeChoice& node, const EngineSettings& settings,
                   const std::string& build, int gpu) {
  const std::string name = "the engine of GPU " + std::to_string(gpu);
  if (engine.build != build)
    return FailedPrecondition(name + " is of build " + engine.build + ", tandemd of " + build);
  if (gpu >= node.topology.size()) return FailedPrecondition(name + " has a GPU that tandemd has not");
  const GpuInfo& info = node.topology.gpus[static_cast<size_t>(gpu)];
  engine::v1::Start started = engine.start,
                    wanted = StartCommand(settings, gpu, info.uuid, info.memory_bytes);
  // These differ from start to start, or may be changed between two tandemds.
  for (engine::v1::Start* start : {&started, &wanted}) {
    start->clear_generation();
    start->clear_seed();
    start->clear_restart_grace_ms();
  }
  if (started.SerializeAsString() != wanted.SerializeAsString())
    return FailedPrecondition(name + " was started with another configuration");
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
