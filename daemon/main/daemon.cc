#include "daemon/main/daemon.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>

#include "common/descriptor_reserve.h"
#include "common/log.h"
#include "common/log_share.h"
#include "common/sd_notify.h"
#include "common/unix_group.h"
#include "daemon/config/config_keys.h"
#include "daemon/main/instance_lock.h"
#include "daemon/main/link_rates.h"
#include "daemon/main/node_setup.h"
#include "daemon/main/pair_probe.h"
#include "daemon/main/takeover.h"
#include "daemon/observe/process_info.h"
#include "daemon/planner/tuning/tuning_store.h"

namespace tandem::daemon {
namespace {

// Plans with statistics of their own on one GPU; more are counted in the totals only. 1 KiB each, and all of
// them become resident with the first reading.
constexpr uint32_t kPlanRows = 1 << 11;
constexpr std::chrono::milliseconds kEnginesDeadline{60000};
// Bytes of each copy that measures a link. Emulated links are the CPU's memory: there a small copy is as
// good.
constexpr uint64_t kLinkBytes = uint64_t{8} << 20, kEmulatedLinkBytes = uint64_t{256} << 10;
// For the engine program's answer to --version.
constexpr std::chrono::milliseconds kVersionDeadline{10000};
// A keeper's loop never waits this long in one turn.
constexpr std::chrono::milliseconds kKeeperLimit{20000};

// Times of the start's phases, for one line of the log.
class StartClock {
 public:
  void Ended(const char* phase) {
    const auto now = std::chrono::steady_clock::now();
    text_ += (text_.empty() ? " " : ", ") + std::string(phase) + " " + Seconds(now - since_);
    since_ = now;
  }
  // "1.95 s: GPUs 0.10 s, engines 1.75 s, …"
  std::string Text() const { return Seconds(since_ - began_) + ":" + text_; }

 private:
  static std::string Seconds(std::chrono::steady_clock::duration took) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f s", std::chrono::duration<double>(took).count());
    return text;
  }

  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point since_ = began_;
  std::string text_;
};

// FAILED_PRECONDITION if the program is of another version than tandemd.
Result<EngineProgram> OpenEngineProgram(const std::string& path, const std::string& version) {
  TANDEM_ASSIGN_OR_RETURN(EngineProgram program, EngineProgram::Open(path));
  const Result<std::string> build = program.Build(kVersionDeadline);
  if (!build.ok()) {
    log::Warning(build.status().message());
    return program;
  }
  TANDEM_RETURN_IF_ERROR(CheckEngineBuild(*build, version).WithContext("the engine program " + path));
  if (*build != version)
    log::Warning("the engine program " + path + " is of build " + *build + ", tandemd of " + version);
  return program;
}

}  // namespace

Result<std::unique_ptr<Daemon>> Daemon::Start(const Config& config, const std::string& version) {
  StartClock clock;
  RaiseDescriptorLimit();
  std::unique_ptr<Daemon> daemon(new Daemon());
  daemon->config_ = config;
  TANDEM_ASSIGN_OR_RETURN(daemon->lock_, LockRuntimeDirectory(config.runtime_dir));
  TANDEM_ASSIGN_OR_RETURN(daemon->made_admin_directory_,
                          PrepareAdminDirectory(AdminDirectory(config), config.runtime_dir));
  TANDEM_ASSIGN_OR_RETURN(NodeChoice node, ChooseNode(config));
  for (const std::string& note : node.notes) log::Warning(note);
  clock.Ended("GPUs");
  TANDEM_RETURN_IF_ERROR(CheckDescriptorLimit(node.topology.size()));
  TANDEM_ASSIGN_OR_RETURN(EngineSettings settings, EngineSettingsOf(config, node));
  // Before any engine is taken over: a broken installation ends no job.
  TANDEM_ASSIGN_OR_RETURN(daemon->engine_program_, OpenEngineProgram(settings.program, version));
  settings.executable = daemon->engine_program_.Executable();
  std::optional<Takeover> takeover = TakeOverEngines(config, node, settings, version);
  AllHoldings holdings;
  for (int gpu = 0; takeover.has_value() && gpu < node.topology.size(); ++gpu) {
    auto& engine = takeover->engines[static_cast<size_t>(gpu)];
    holdings.push_back(engine.has_value() ? std::optional(std::move(engine->holdings)) : std::nullopt);
    if (engine.has_value()) engine->holdings.generation = holdings.back()->generation;
  }
  if (takeover.has_value()) clock.Ended("running engines");
  TANDEM_RETURN_IF_ERROR(
      daemon->StartEngines(node, std::move(settings), takeover.has_value() ? &*takeover : nullptr));

  daemon->tuning_ = std::make_shared<TuningStore>(config.state_dir + "/tuning.toml", TuningDirectory(config));
  for (const std::string& refused : daemon->tuning_->refused())
    log::Warning("tuning file refused: " + refused);
  ControlOptions options = ControlOptionsOf(config, node, version);
  options.tuning = daemon->tuning_;
  TANDEM_ASSIGN_OR_RETURN(options.allow, AllowRulesOf(config.allow, node.topology, config.quotas));
  daemon->control_ = std::make_unique<Control>(std::move(options), *daemon->supervisor_);
  AdminSources& sources = daemon->sources_;
  sources.control = daemon->control_.get();
  sources.engines = daemon->supervisor_.get();
  sources.config = &daemon->config_;
  sources.topology = node.topology;
  sources.backend = node.backend;
  sources.version = version;
  sources.stats = daemon->stats_;
  sources.tuning = daemon->tuning_.get();
  if (node.backend == "cuda") {
    if (auto nvml = OpenNvml(); nvml.ok())
      daemon->gpu_processes_ = std::make_unique<GpuProcesses>(std::move(*nvml));
  }
  sources.gpu_processes = daemon->gpu_processes_.get();
  sources.on_admission = [self = daemon.get()](Admission) {
    NotifyStatus(self->Summary());
    self->PublishHealth();
  };
  daemon->metrics_per_plan_ = config.metrics_per_plan;
  sources.metrics_per_plan = [self = daemon.get()] { return self->metrics_per_plan_.load(); };
  daemon->engines_needed_ = EnginesNeeded(config);
  sources.engines_needed = [self = daemon.get()] { return self->engines_needed_.load(); };
  daemon->SetViewers(config);
  sources.viewer = [self = daemon.get()](const Caller& caller) {
    return ViewerFor(
        caller,
        {.all = self->shows_all_sessions_, .daemon_uid = ::geteuid(), .group = self->sessions_group_});
  };
  // To see a job is not to command it.
  sources.manager = [](const Caller& caller) { return ViewerFor(caller, {.daemon_uid = ::geteuid()}); };
  sources.caller = [self = daemon.get()](const std::string& peer) {
    std::lock_guard<std::mutex> lock(self->published_mutex_);
    return self->servers_ == nullptr ? std::string() : self->servers_->CallerOf(peer);
  };
  if (config.cordoned) daemon->control_->SetAdmission(Admission::kCordoned);
  sources.alive = [self = daemon.get()] { return self->Alive(); };
  daemon->listeners_ = std::make_unique<HttpListeners>(sources);
  sources.sockets = [self = daemon.get()] { return self->socket_watch_.Findings(); };
  sources.listen_errors = [listeners = daemon->listeners_.get()] { return listeners->Errors(); };
  if (takeover.has_value()) {
    daemon->control_->BeginAdoption();
  } else if (daemon->journal_.valid()) {
    TANDEM_ASSIGN_OR_RETURN(Journal journal, Journal::Open(std::move(daemon->journal_)));
    daemon->control_->KeepState(std::move(journal));
  }
  daemon->supervisor_->Start(*daemon->control_);
  if (takeover.has_value()) {
    daemon->ProbeLinks(node.topology, false);
    daemon->AdoptJobs(std::move(*takeover), std::move(holdings));
    clock.Ended("jobs");
  } else if (const Status ready = daemon->supervisor_->AwaitReady(kEnginesDeadline); !ready.ok()) {
    clock.Ended("engines");
    log::Error(ready.message() + "; serving without it");
  } else {
    clock.Ended("engines");
    daemon->ProbeLinks(node.topology, true);
    clock.Ended("probe of the links");
  }
  daemon->WatchGpus(node.backend, node.topology);
  TANDEM_RETURN_IF_ERROR(daemon->StartSockets());
  clock.Ended("sockets");
  log::Info("started after " + clock.Text());
  return daemon;
}

void Daemon::AdoptJobs(Takeover takeover, AllHoldings engines) {
  control_->Adopt(std::move(*takeover.journal), takeover.state, engines);
  if (config_.cordoned && control_->Snapshot().admission == Admission::kOpen)
    control_->SetAdmission(Admission::kCordoned);
}

Status Daemon::StartEngines(const NodeChoice& node, EngineSettings settings, Takeover* takeover) {
  UniqueFd log_fd, journal_fd;
  if (takeover != nullptr) {
    log_fd = std::move(takeover->order_log);
    journal_fd = std::move(takeover->journal_fd);
  } else {
    TANDEM_ASSIGN_OR_RETURN(log_fd, OrderLog::Create());
    if (config_.restart_grace_ms > 0) {
      TANDEM_ASSIGN_OR_RETURN(journal_fd, Journal::Create());
    }
  }
  TANDEM_ASSIGN_OR_RETURN(order_log_, OrderLog::Map(log_fd.get()));
  std::vector<EngineSlot> slots;
  for (const GpuInfo& gpu : node.topology.gpus) {
    EngineSlot slot{gpu.uuid, gpu.memory_bytes, UniqueFd(), EngineEnvironment(node, gpu)};
    if (takeover != nullptr) slot.adopted = std::move(takeover->engines[slots.size()]);
    if (slot.adopted.has_value()) {
      slot.stats_area = std::move(slot.adopted->stats_area);
    } else {
      uint32_t records = static_cast<uint32_t>(config_.trace_records);
      TANDEM_ASSIGN_OR_RETURN(slot.stats_area, CreateStatsArea(kPlanRows, records));
    }
    TANDEM_ASSIGN_OR_RETURN(StatsArea area, StatsArea::Map(slot.stats_area.get()));
    stats_.push_back(std::move(area));
    slots.push_back(std::move(slot));
  }
  journal_ = journal_fd.valid() ? UniqueFd(::fcntl(journal_fd.get(), F_DUPFD_CLOEXEC, 0)) : UniqueFd();
  TANDEM_ASSIGN_OR_RETURN(supervisor_, Supervisor::Create(std::move(settings), std::move(log_fd),
                                                          std::move(slots), std::move(journal_fd)));
  return Status::Ok();
}

// Called before any client is served: the probe's outcome makes the topology that plans are chosen by.
void Daemon::ProbeLinks(Topology topology, bool measures) {
  const std::string path = config_.state_dir + "/pair-probe.txt", boot_id = BootId();
  const Topology reported = topology;
  Result<ProbeOutcome> outcome = LoadProbe(path, boot_id, reported);
  bool is_new = !outcome.ok();
  if (!outcome.ok() && !measures) {
    log::Warning("the links among the GPUs are used as reported, without a probe: " +
                 outcome.status().message());
    outcome = ProbeOutcome{{}, {}};
    is_new = false;
  }
  if (!outcome.ok()) {
    Result<std::vector<PairFailure>> failures = ProbePairs(*supervisor_, reported);
    if (!failures.ok()) {
      log::Error("the links among the GPUs have not been probed: " + failures.status().message());
      return;
    }
    outcome = ProbeOutcome{std::move(*failures), {}};
  }
  for (const PairFailure& failure : outcome->failures) {
    std::string text =
        "data from " + failure.from + " to " + failure.to + " is not transferred right: " + failure.reason;
    log::Error(text + "; the link is not used");
    sources_.failed_links.push_back(std::move(text));
  }
  DropFailedPairs(outcome->failures, &topology);
  if (measures && !HasAllLinks(outcome->links, topology)) {
    auto links =
        MeasureLinks(*supervisor_, topology, sources_.backend == "host" ? kEmulatedLinkBytes : kLinkBytes);
    if (links.ok()) {
      outcome->links = std::move(*links);
      is_new = true;
    } else {
      log::Warning("the links among the GPUs have not been measured: " + links.status().message());
    }
  }
  if (is_new) {
    if (Status saved = SaveProbe(path, boot_id, reported, *outcome); !saved.ok()) {
      log::Warning("the probe of the links is not kept: " + saved.message());
    }
  }
  sources_.links = std::move(outcome->links);
  sources_.topology = topology;
  control_->SetTopology(std::move(topology));
}

Status Daemon::StartSockets() {
  // Before the leases: who has one calls at once.
  {
    TANDEM_ASSIGN_OR_RETURN(auto servers, Servers::Start(config_, *control_, sources_));
    std::lock_guard<std::mutex> lock(published_mutex_);
    servers_ = std::move(servers);
  }
  LeaseServerOptions options;
  options.path = LeaseSocketPath(config_);
  options.mode = 0660;
  options.group = config_.socket_group;  // its absence is reported with the clients' socket
  options.on_refused = [](uint32_t uid) { log::CountRefusal("uid=" + std::to_string(uid)); };
  options.restart_grace = std::chrono::milliseconds(config_.restart_grace_ms);
  TANDEM_ASSIGN_OR_RETURN(leases_, LeaseServer::Start(options, *control_));
  control_->SetLeasePort(leases_.get());
  TANDEM_RETURN_IF_ERROR(servers_->DialSelf());
  PublishHealth();
  listeners_->Apply(config_);
  return Status::Ok();
}

void Daemon::WatchGpus(const std::string& backend, const Topology& topology) {
  cordons_ = std::make_unique<GpuCordons>(config_.state_dir + "/gpu-cordons.txt", BootId(), topology,
                                          *control_, [this] { PublishHealth(); });
  cordons_->Restore();
  cordons_->CordonOnXid(config_.cordon_gpu_on_xid, {});
  std::unique_ptr<GpuHealthSource> source;
  if (backend == "cuda") {
    std::vector<std::string> gpus;
    for (const GpuInfo& gpu : topology.gpus) gpus.push_back(gpu.uuid);
    if (auto nvml = OpenNvml(); nvml.ok()) source = NvmlHealthSource(std::move(*nvml), std::move(gpus));
  } else if (!config_.testing.gpu_health_file.empty()) {
    source = FileHealthSource(config_.testing.gpu_health_file, topology.gpus.size());
  }
  sources_.cordon_gpu = [this](int gpu, const std::string& why) {
    if (why.empty() && gpu_watch_ != nullptr) gpu_watch_->Acknowledge(gpu);
    cordons_->Set(gpu, why);
  };
  if (source == nullptr) return;
  auto watch = GpuWatch::Start(std::move(source), topology,
                               [this](int gpu, uint32_t xid) { cordons_->OnXid(gpu, xid); });
  if (!watch.ok()) {
    log::Error("the GPUs' health is not watched: " + watch.status().message());
    return;
  }
  gpu_watch_ = std::move(*watch);
  sources_.gpu_watch = gpu_watch_.get();
}

void Daemon::MendFiles() {
  std::vector<FileRepair> repairs;
  // The directory first; sockets are made in it.
  if (!IsLockThere(lock_, config_.runtime_dir)) {
    Result<UniqueFd> lock = LockRuntimeDirectory(config_.runtime_dir);
    repairs.push_back({config_.runtime_dir + "/lock", lock.status()});
    if (lock.ok()) lock_ = std::move(*lock);
  }
  const std::string administrators = AdminDirectory(config_);
  if (::access(administrators.c_str(), F_OK) != 0) {
    const Result<bool> made = PrepareAdminDirectory(administrators, config_.runtime_dir);
    if (!made.ok()) repairs.push_back({administrators, made.status()});
  }
  for (FileRepair& repair : servers_->Mend()) repairs.push_back(std::move(repair));
  const Result<bool> leases = leases_->Mend();
  if (!leases.ok() || *leases) repairs.push_back({LeaseSocketPath(config_), leases.status()});
  socket_watch_.Note(repairs);
}

void Daemon::PublishHealth() {
  const Health health = GatherHealth(sources_);
  std::lock_guard<std::mutex> lock(published_mutex_);
  if (servers_ != nullptr) servers_->SetHealth(health);
}

Daemon::~Daemon() {
  listeners_.reset();
  if (control_ && leaves_jobs_) control_->Leave();
  if (control_) control_->Stop();
  if (supervisor_ && leaves_jobs_) supervisor_->RequestLeave();
  if (supervisor_) supervisor_->RequestStop();  // the servers wait for calls, and these may wait for engines
  std::unique_ptr<Servers> servers;
  {
    std::lock_guard<std::mutex> lock(published_mutex_);
    servers = std::move(servers_);  // no call publishes health any more
  }
  servers.reset();
  leases_.reset();
  sources_.gpu_watch = nullptr;
  gpu_watch_.reset();                    // it changes cordons, and with them the control plane
  if (supervisor_) supervisor_->Stop();  // no keeper calls the control plane any more
  control_.reset();
  if (supervisor_ && !leaves_jobs_) {
    for (int gpu = 0; gpu < supervisor_->count(); ++gpu)
      ::unlink(SuccessorSocketPath(AdminDirectory(config_), gpu).c_str());
  }
  // The clients' directory stays: containers may have it mounted.
  std::error_code ignored;
  if (made_admin_directory_) std::filesystem::remove(AdminDirectory(config_), ignored);
}

SessionCounts Daemon::Sessions() {
  const ControlSnapshot now = control_->Snapshot();
  return {now.sessions, now.sessions_total};
}

std::string Daemon::Summary() {
  ControlSnapshot now = control_->Snapshot();
  int ready = 0;
  for (int gpu = 0; gpu < supervisor_->count(); ++gpu) {
    const EngineState state = supervisor_->StatusOf(gpu).state;
    ready += state == EngineState::kReady || state == EngineState::kIdle ? 1 : 0;
  }
  return std::to_string(ready) + "/" + std::to_string(supervisor_->count()) + " engines (" +
         sources_.backend + "), " + std::to_string(now.sessions) + " sessions, " +
         std::to_string(now.groups) + " groups" +
         (now.admission == Admission::kDraining   ? ", draining"
          : now.admission == Admission::kCordoned ? ", cordoned"
                                                  : "");
}

std::vector<std::string> Daemon::Reload(const Config& next) {
  std::vector<std::string> taken, left;
  Config before = config_, after = next;
  for (const config::KeySpec& key : config::Keys()) {
    const std::string value = config::PrintValue(key, after);
    if (value == config::PrintValue(key, before)) continue;
    if (key.live) {
      taken.push_back(std::string(key.name) + "=" + value);
    } else {
      left.push_back(std::string(key.name));
    }
  }
  // Rules with quotas take the others from [quotas], which may have changed.
  if (Result<std::vector<AllowRule>> rules =
          AllowRulesOf(next.allow, control_->options().topology, next.quotas);
      rules.ok()) {
    if (next.allow != config_.allow) taken.push_back("allow has " + std::to_string(rules->size()) + " rules");
    config_.allow = next.allow;
    control_->SetAllow(std::move(*rules));
  } else {
    log::Error("configuration: allow stays as it is: " + rules.status().message());
  }
  for (const std::string& change : taken) log::Info("configuration: " + change);
  config_.log_level = next.log_level;
  if (const Status fits = log::CheckFormat(static_cast<log::Format>(next.log_format)); fits.ok()) {
    config_.log_format = next.log_format;
  } else {
    log::Error("configuration: log_format stays as it is: " + fits.message());
  }
  if (const Status set_up = log::SetUp(static_cast<log::Level>(config_.log_level),
                                       static_cast<log::Format>(config_.log_format));
      !set_up.ok()) {
    log::Error("configuration: the log stays as it is: " + set_up.message());
  }
  config_.stop_grace_ms = next.stop_grace_ms;
  const int64_t sessions = config_.quotas.sessions, calls_per_uid = config_.quotas.calls_per_uid;
  config_.quotas = next.quotas;
  config_.quotas.sessions = sessions;
  config_.quotas.calls_per_uid = calls_per_uid;
  control_->SetLimits(LimitsOf(config_.quotas));
  config_.ready_with_engines = next.ready_with_engines;
  engines_needed_ = EnginesNeeded(next);
  config_.show_sessions = next.show_sessions;
  config_.show_sessions_group = next.show_sessions_group;
  SetViewers(config_);
  config_.metrics_per_plan = next.metrics_per_plan;
  metrics_per_plan_ = next.metrics_per_plan;
  config_.metrics_listen = next.metrics_listen;
  config_.web_listen = next.web_listen;
  config_.http = next.http;
  config_.cordon_gpu_on_xid = next.cordon_gpu_on_xid;
  cordons_->CordonOnXid(next.cordon_gpu_on_xid,
                        gpu_watch_ == nullptr ? std::vector<GpuCondition>() : gpu_watch_->Conditions());
  listeners_->Apply(config_);
  // An operator's own cordon or drain stays until the key changes.
  if (config_.cordoned != next.cordoned) {
    config_.cordoned = next.cordoned;
    control_->SetAdmission(next.cordoned ? Admission::kCordoned : Admission::kOpen);
  }
  PublishHealth();
  return left;
}

void Daemon::SetViewers(const Config& config) {
  shows_all_sessions_ = config.show_sessions == ShowSessions::kAll;
  sessions_group_ = -1;
  if (config.show_sessions_group.empty()) return;
  if (const Result<gid_t> group = FindGroup(config.show_sessions_group); group.ok()) {
    sessions_group_ = static_cast<int64_t>(*group);
  } else {
    log::Warning("show_sessions_group: " + group.status().message());
  }
}

bool Daemon::Alive() {
  (void)control_->Snapshot();
  return supervisor_->LongestTurn() < kKeeperLimit;
}

void Daemon::BeginDrain() {
  control_->SetAdmission(Admission::kDraining);
  PublishHealth();
}

bool Daemon::HasJobsToLeave() { return config_.restart_grace_ms > 0 && control_->Snapshot().sessions > 0; }

bool Daemon::Drained() { return control_->Snapshot().groups == 0; }

}  // namespace tandem::daemon
