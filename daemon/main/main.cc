// tandemd: the control plane of Tandem on one node.
//
// Exit status: 0 after an orderly stop (or a printed answer), 1 if it could not start, 2 if the command line
// or the configuration is wrong, 3 if another tandemd runs in the runtime directory.
//
// SIGTERM and SIGINT drain: no new job is accepted, groups may end within stop_grace_ms, then everything
// stops; a second signal stops at once. With restart_grace_ms SIGTERM leaves the jobs that there are to the
// next tandemd (docs/restart.md). SIGHUP reads the configuration again. With --embedded the end of the job's
// last session drains, too.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/build/build_version.h"
#include "common/log.h"
#include "common/log_share.h"
#include "common/sd_notify.h"
#include "daemon/config/command_line.h"
#include "daemon/main/check_start.h"
#include "daemon/main/daemon.h"
#include "daemon/main/embedded.h"
#include "daemon/main/library_logs.h"
#include "daemon/topology/topology_file.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using tandem::daemon::Daemon;

// The signals that main's loop waits for.
sigset_t OwnSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  return signals;
}

// The signal that came within `timeout`, or 0.
int AwaitSignal(milliseconds timeout) {
  sigset_t signals = OwnSignals();
  timespec wait{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  int signal = ::sigtimedwait(&signals, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

// Reads files and flags again. An error leaves everything as it is.
void Reload(Daemon& daemon, int argc, char** argv) {
  tandem::NotifyReloading();
  auto line = tandem::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    tandem::log::Error("the configuration stays as it is: " + line.status().message());
  } else {
    for (const std::string& note : line->config.old_names) tandem::log::Warning(note);
    for (const std::string& key : daemon.Reload(line->config))
      tandem::log::Warning("configuration: " + key + " has changed, which needs a restart");
    tandem::log::Info("configuration reloaded");
  }
  tandem::NotifyReady(daemon.Summary());
}

// Serves until a stop signal comes, and returns it, or 0 once `is_over`; SIGHUP calls `reload`. The watchdog
// hears from us only while the daemon's parts make progress.
int Serve(Daemon& daemon, const std::function<void()>& reload, const std::function<bool()>& is_over) {
  milliseconds turn(500);  // a change of the node's health is published this late
  if (auto interval = tandem::WatchdogInterval(); interval.count() > 0) {
    turn = std::min(turn, std::max(milliseconds(10), std::chrono::duration_cast<milliseconds>(interval / 3)));
  }
  std::string last_summary;
  for (;;) {
    const int signal = AwaitSignal(turn);
    if (signal == SIGHUP) {
      reload();
    } else if (signal != 0) {
      return signal;
    }
    if (is_over()) return 0;
    if (daemon.Alive()) tandem::NotifyAlive();
    daemon.PublishHealth();
    daemon.MendFiles();
    daemon.EndLongSuspensions();
    tandem::log::WriteCounts();
    std::string summary = daemon.Summary();
    if (summary != last_summary) tandem::NotifyStatus(summary);
    last_summary = std::move(summary);
  }
}

void Drain(Daemon& daemon) {
  tandem::NotifyStopping("draining");
  tandem::log::Info("stopping: draining (a second signal stops at once) " + daemon.Summary());
  daemon.BeginDrain();
  const milliseconds grace = daemon.stop_grace();
  const auto end = Clock::now() + grace;
  while (!daemon.Drained()) {
    if (Clock::now() >= end) {
      tandem::log::Warning("groups are left after " + std::to_string(grace.count()) + " ms: stopping");
      return;
    }
    if (const int signal = AwaitSignal(milliseconds(20)); signal != 0 && signal != SIGHUP) {
      tandem::log::Warning("second signal: stopping at once");
      return;
    }
    if (daemon.Alive()) tandem::NotifyAlive();
  }
}

// The findings of --check-config beyond the configuration's own rules; one sentence each.
std::vector<std::string> Problems(const tandem::DaemonCommandLine& line) {
  if (line.strict) return tandem::daemon::CheckStart(line.config);
  if (line.config.topology_file.empty()) return {};
  const tandem::Status topology = tandem::LoadTopology(line.config.topology_file).status();
  return topology.ok() ? std::vector<std::string>()
                       : std::vector{topology.WithContext("topology_file").message()};
}

}  // namespace

int main(int argc, char** argv) {
  auto line = tandem::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "tandemd: %s\n", line.status().message().c_str());
    return 2;
  }
  if (line->check) {
    for (const std::string& note : line->config.old_names)
      std::fprintf(stderr, "tandemd: note: %s\n", note.c_str());
    const std::vector<std::string> problems = Problems(*line);
    for (const std::string& problem : problems) std::fprintf(stderr, "tandemd: %s\n", problem.c_str());
    if (!problems.empty()) return 2;
  }
  if (line->action == tandem::DaemonCommandLine::Action::kPrint) {
    std::fputs(line->output.c_str(), stdout);
    return 0;
  }
  // Before any thread exists, so that all inherit it: these signals are for main's sigtimedwait alone.
  sigset_t signals = OwnSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);  // engines inherit it; a blocked signal comes to sigtimedwait all the same

  if (const tandem::Status set_up =
          tandem::log::SetUp(static_cast<tandem::log::Level>(line->config.log_level),
                             static_cast<tandem::log::Format>(line->config.log_format));
      !set_up.ok()) {
    std::fprintf(stderr, "tandemd: %s\n", set_up.message().c_str());
    return 2;
  }
  tandem::OpenNotifySocket();
  tandem::daemon::TakeLibraryLogs();
  tandem::log::Info(
      std::string("tandemd ") + tandem::BuildVersion() + " starts" +
      (line->config_path.empty() ? std::string() : " config=" + tandem::log::FieldValue(line->config_path)));
  for (const std::string& note : line->config.old_names) tandem::log::Warning(note);
  const bool embedded = !line->embedded_directory.empty();
  if (const tandem::Status ready = embedded
                                       ? tandem::daemon::PrepareEmbeddedDirectory(line->embedded_directory)
                                       : tandem::Status::Ok();
      !ready.ok()) {
    tandem::log::Error("cannot start: " + ready.message());
    return 1;
  }
  auto daemon = Daemon::Start(line->config, tandem::BuildVersion());
  if (!daemon.ok()) {
    tandem::log::Error("cannot start: " + daemon.status().message());
    return daemon.status().code() == tandem::Code::kAlreadyExists ? 3 : 1;
  }
  tandem::log::Info("serving at " + line->config.runtime_dir + ": " + (*daemon)->Summary());
  tandem::NotifyReady((*daemon)->Summary());
  tandem::daemon::JobWatch job(Clock::now());
  const int signal = Serve(
      **daemon, [&] { Reload(**daemon, argc, argv); },
      [&] { return embedded && job.IsOver((*daemon)->Sessions(), Clock::now()); });
  if (signal == 0) tandem::log::Info("the job is over: no session is left");
  if (signal == SIGTERM && (*daemon)->HasJobsToLeave()) {
    tandem::NotifyStopping("leaving the jobs to the next tandemd");
    tandem::log::Info("stopping: the jobs go on, and wait for the next tandemd: " + (*daemon)->Summary());
    (*daemon)->LeaveJobs();
  } else {
    Drain(**daemon);
  }
  (*daemon).reset();
  tandem::log::Info("stopped");
  if (embedded) {
    if (const auto removed = tandem::daemon::RemoveEmbeddedDirectory(line->embedded_directory); !removed.ok())
      tandem::log::Warning(removed.message());
  }
  return 0;
}
