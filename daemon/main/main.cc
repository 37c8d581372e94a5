// tandemd: the control plane of Tandem on one node.
//
// Exit status: 0 after an orderly stop (or a printed answer), 1 if it could not start, 2 if the command line
// or the configuration is wrong, 3 if another tandemd runs in the runtime directory.
//
// SIGTERM and SIGINT drain: nothing new is accepted, groups may end within 30 s, then everything stops; a
// second signal stops at once.
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "common/log.h"
#include "common/sd_notify.h"
#include "daemon/config/command_line.h"
#include "daemon/main/daemon.h"
#include "daemon/topology/topology_file.h"

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using tandem::daemon::Daemon;

// Below the unit's TimeoutStopSec of 60 s, with room for the engines' end.
constexpr std::chrono::seconds kDrainLimit{30};

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The signal that came within `timeout`, or 0.
int AwaitSignal(milliseconds timeout) {
  sigset_t signals = StopSignals();
  timespec wait{timeout.count() / 1000, (timeout.count() % 1000) * 1000000};
  int signal = ::sigtimedwait(&signals, nullptr, &wait);
  return signal > 0 ? signal : 0;
}

// Serves until a signal comes. The watchdog hears from us only while the daemon's parts make progress.
void Serve(Daemon& daemon) {
  milliseconds turn(2000);
  if (auto interval = tandem::WatchdogInterval(); interval.count() > 0) {
    turn = std::min(turn, std::max(milliseconds(10), std::chrono::duration_cast<milliseconds>(interval / 3)));
  }
  std::string last_summary;
  while (AwaitSignal(turn) == 0) {
    if (daemon.Alive()) tandem::NotifyAlive();
    std::string summary = daemon.Summary();
    if (summary != last_summary) tandem::NotifyStatus(summary);
    last_summary = std::move(summary);
  }
}

void Drain(Daemon& daemon) {
  tandem::NotifyStopping("draining");
  tandem::log::Info("stopping: draining (a second signal stops at once) " + daemon.Summary());
  daemon.BeginDrain();
  auto end = Clock::now() + kDrainLimit;
  while (!daemon.Drained()) {
    if (Clock::now() >= end) {
      tandem::log::Warning("groups are left after " + std::to_string(kDrainLimit.count()) + " s: stopping");
      return;
    }
    if (AwaitSignal(milliseconds(20)) != 0) {
      tandem::log::Warning("second signal: stopping at once");
      return;
    }
    if (daemon.Alive()) tandem::NotifyAlive();
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto line = tandem::ParseCommandLine(argc, argv);
  if (!line.ok()) {
    std::fprintf(stderr, "tandemd: %s\n", line.status().message().c_str());
    return 2;
  }
  if (line->check && !line->config.topology_file.empty()) {
    auto topology = tandem::LoadTopology(line->config.topology_file);
    if (!topology.ok()) {
      std::fprintf(stderr, "tandemd: %s\n", topology.status().WithContext("topology_file").message().c_str());
      return 2;
    }
  }
  if (line->action == tandem::CommandLine::Action::kPrint) {
    std::fputs(line->output.c_str(), stdout);
    return 0;
  }
  // Before any thread exists, so that all inherit it: stop signals are for main's sigtimedwait alone.
  sigset_t signals = StopSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);

  tandem::log::SetUp(static_cast<tandem::log::Severity>(line->config.log_level),
                     tandem::log::RunsUnderJournal());
  tandem::log::Info("tandemd " TANDEM_VERSION " starts" +
                    (line->config_path.empty() ? std::string() : " config=" + line->config_path));
  auto daemon = Daemon::Start(line->config, TANDEM_VERSION);
  if (!daemon.ok()) {
    tandem::log::Error("cannot start: " + daemon.status().message());
    return daemon.status().code() == tandem::Code::kAlreadyExists ? 3 : 1;
  }
  tandem::log::Info("serving at " + line->config.runtime_dir + ": " + (*daemon)->Summary());
  tandem::NotifyReady((*daemon)->Summary());
  Serve(**daemon);
  Drain(**daemon);
  (*daemon).reset();
  tandem::log::Info("stopped");
  return 0;
}
