// File: daemon.h
//
// `Daemon`: tandemd's parts in their order: lock, engines, control plane, lease socket, gRPC servers,
// metrics. Made by Start, ended by the destructor in the opposite order.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/admin/admin_service.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/main/embedded.h"
#include "daemon/main/gpu_cordons.h"
#include "daemon/main/http_listeners.h"
#include "daemon/main/servers.h"
#include "daemon/main/socket_watch.h"
#include "daemon/observe/gpu_processes.h"
#include "daemon/observe/gpu_watch.h"
#include "daemon/service/lease_server.h"
#include "daemon/supervisor/engine_program.h"
#include "daemon/supervisor/supervisor.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "tandem/status.h"

namespace tandem::daemon {

class Daemon {
 public:
  // Everything is up and has answered over its own sockets when this returns; engines that do not come up in
  // time are reported and go on being started. ALREADY_EXISTS if another tandemd runs there.
  static Result<std::unique_ptr<Daemon>> Start(const Config& config, const std::string& version);
  // Stops at once: waiting calls return UNAVAILABLE, engines are ended in order.
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  // One line for people.
  std::string Summary();
  // True if the parts make progress: the registry answers (this call blocks while it does not), and every
  // keeper of an engine has gone through its loop lately.
  bool Alive();
  // No new sessions and groups from now on.
  void BeginDrain();
  // Takes over what the configuration's keys that are `live` have changed to: log level, quotas, metrics,
  // cordon, stop grace. Returns the other keys that have changed, which need a restart. Not thread-safe.
  std::vector<std::string> Reload(const Config& next);
  std::chrono::milliseconds stop_grace() const { return std::chrono::milliseconds(config_.stop_grace_ms); }
  // Makes the files of sockets and the lock again that somebody has removed, and the directories. Not
  // thread-safe.
  void MendFiles();
  // Ends groups that have slept too long. To be called at intervals.
  void EndLongSuspensions() { control_->EndLongSuspensions(); }
  // Sets what the gRPC health service answers. Called whenever the node's health may have changed.
  // Thread-safe.
  void PublishHealth();
  SessionCounts Sessions();
  // No group is left.
  bool Drained();
  // There are sessions that the next tandemd can take over, if this one leaves its jobs.
  bool HasJobsToLeave();
  // The destructor leaves sessions and engines to the next tandemd, which ends neither.
  void LeaveJobs() { leaves_jobs_ = true; }

 private:
  Daemon() = default;
  // `takeover`: what an earlier tandemd has left; its engines are taken from it.
  Status StartEngines(const struct NodeChoice& node, EngineSettings settings, struct Takeover* takeover);
  // Takes the sessions of an earlier tandemd over.
  void AdoptJobs(struct Takeover takeover, AllHoldings engines);
  // `measures`: what is not known yet is probed; not while jobs run.
  void ProbeLinks(Topology topology, bool measures);
  Status StartSockets();
  // Looks at the GPUs' health from now on, where something reports it.
  void WatchGpus(const std::string& backend, const Topology& topology);
  // Whose sessions callers see, as `config` has it.
  void SetViewers(const Config& config);

  Config config_;
  UniqueFd lock_, journal_;  // journal_: not valid where jobs end with tandemd
  OrderLog order_log_;
  std::vector<StatsArea> stats_;
  AdminSources sources_;
  std::shared_ptr<TuningStore> tuning_;
  std::unique_ptr<GpuProcesses> gpu_processes_;  // where there is a driver to ask
  EngineProgram engine_program_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<GpuCordons> cordons_;
  std::unique_ptr<GpuWatch> gpu_watch_;  // null where nothing reports the GPUs' health
  std::unique_ptr<LeaseServer> leases_;
  std::unique_ptr<Servers> servers_;
  SocketWatch socket_watch_;
  std::unique_ptr<HttpListeners> listeners_;
  bool made_admin_directory_ = false;
  bool leaves_jobs_ = false;
  std::atomic<bool> metrics_per_plan_{false};
  std::atomic<int64_t> engines_needed_{0};
  std::atomic<bool> shows_all_sessions_{false};
  std::atomic<int64_t> sessions_group_{-1};  // members see all sessions; -1: no such group
  std::mutex published_mutex_;               // over servers_ while it is set and used for health
};

}  // namespace tandem::daemon
