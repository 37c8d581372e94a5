// File: control_options.h
//
// The configuration of the control plane: identity, default deadlines and quotas.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/deadline.h"
#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"
#include "tandem/deadlines.h"

namespace tandem::daemon {

class TuningStore;

// Calls under way that each session has to itself, whatever others do: its stream of events, and one more.
inline constexpr uint64_t kOwnCalls = 2;

// Quotas of one cgroup, in all its uids. 0: as many as of a uid.
struct CgroupLimits {
  uint64_t sessions = 0, groups = 0, plans = 0, plan_bytes = 0, tensors = 0, descriptors = 0,
           segment_bytes = 0, registered_bytes = 0;
  uint64_t calls = 0;
};

// Quotas; each one that is reached answers RESOURCE_EXHAUSTED with limit, usage and who, reason
// "QUOTA_<NAME>". A quota is one uid's unless its comment says otherwise.
struct ControlLimits {
  uint64_t sessions = 256;  // of the node
  uint64_t sessions_per_uid = 128;
  uint64_t groups = 1024;
  uint64_t plans = 16384;
  uint64_t plan_bytes = uint64_t{4} << 30;  // of what tandemd keeps of them, for engines that start again
  uint64_t tensors = 65536;                 // symmetric tensors and registrations
  uint64_t descriptors = 4096;              // that tandemd holds
  uint64_t segment_bytes = uint64_t{256} << 30;  // all GPUs together
  uint64_t registered_bytes = uint64_t{2} << 40;
  uint64_t calls_per_uid = 512;  // under way beyond its sessions' own (kOwnCalls); of the node twice as many
  CgroupLimits cgroup;
  // By gRPC, of one uid and of one cgroup: those that have not ended, or whose outcome nobody has taken.
  uint64_t launches_per_uid = 8192;
  uint64_t channels_per_session = 64;
  uint64_t pending_launches_per_session = 4096;
  uint64_t transfers_per_session = 64;   // not yet claimed
  uint64_t events_per_session = 1024;    // not yet read; the oldest go first
  uint64_t calls_per_session = 256;      // under way
  uint64_t rendezvous_per_group = 1024;  // prepares and tensors that not all ranks have come to
};

// Calls of all sessions that can be under way at once. Each has a thread of the service while it waits: with
// so many threads, and some for calls that are answered at once, no session finds its own place taken.
constexpr uint64_t MostCalls(const ControlLimits& limits) {
  return limits.sessions * kOwnCalls + 2 * limits.calls_per_uid;
}

// Sessions that fit every selector that is set may use these GPUs (AllowConfig).
struct AllowRule {
  std::optional<uint32_t> uid, gid;
  std::string cgroup;                                  // this one and all below it; "": any
  std::optional<std::set<int>> gpus = std::nullopt;    // positions in the topology; none: all
  std::optional<ControlLimits> limits = std::nullopt;  // of uids and cgroups; none: those of all

  bool Fits(uint32_t of_uid, uint32_t of_gid, const std::string& of_cgroup) const;
};

enum class LogSeverity { kDebug, kInfo, kWarning, kError };

struct ControlOptions {
  std::string backend = "host";
  std::string daemon_version = "0.1.0";
  std::string grpc_socket;  // sent to clients in the answer to Attach
  Topology topology;        // of the node; positions are the engines' GPU indexes
  uint32_t hardware_queues = 32;
  // Deadlines of calls that carry none.
  std::chrono::milliseconds default_deadline{TANDEM_DEFAULT_DEADLINE_MS};
  std::chrono::milliseconds maximal_deadline{600000};
  std::chrono::milliseconds default_launch_deadline = kDefaultLaunchDeadline;
  std::chrono::milliseconds orphan_deadline{5000};  // transfers that nobody claims
  std::chrono::milliseconds suspension_limit{0};    // a group that sleeps so long ends; 0: no limit
  // How long the failure of a join is kept for ranks that come late.
  std::chrono::milliseconds verdict_memory{60000};
  // How long the launches of a client may go on that has closed its lease and lives on; then it counts as
  // lost.
  std::chrono::milliseconds departure_deadline{2000};
  // How long sessions wait for the next tandemd, and engines too. 0: there is none.
  std::chrono::milliseconds restart_grace{0};
  // An engine that no session has used for so long rests. 0: engines stay.
  std::chrono::milliseconds engine_idle{0};
  bool verify_plans = false;
  // Plans take fused kernels unasked where they are predicted to be the fastest.
  bool fused_by_choice = false;
  // The placement in groups that have no option "placement".
  plan::PlanPlacement placement = plan::PlanPlacement::kAuto;
  // What plans keep at least in groups that have no option "determinism".
  Determinism determinism = Determinism::kOff;
  ControlLimits limits;
  // The first rule that fits a session decides. None at all: everybody may use all GPUs.
  std::vector<AllowRule> allow;
  bool autotune = true;                 // clients' times of requests that they prepare go into `tuning`
  std::shared_ptr<TuningStore> tuning;  // measured times that plans are chosen by; null: none
  // Called when a group is asked for a transition that its table does not have, a defect of tandemd, under
  // the registry's lock; it is logged either way. For tests, which fail by it.
  std::function<void(const std::string&)> illegal_transition;
  // Called with the name of a record of the journal that is not like the registry, a defect of tandemd, under
  // the registry's lock. For tests, which fail by it; looking for such costs much.
  std::function<void(const std::string&)> journal_difference;
  // Called with one line of text, from any thread, sometimes under the registry's lock: must not call back.
  std::function<void(LogSeverity, const std::string&)> log;
  // The same for lines about what a user's programs do, which may be many; none: the user is not known.
  // Empty: `log`.
  std::function<void(std::optional<uint32_t> uid, LogSeverity, const std::string&)> log_of = nullptr;
};

}  // namespace tandem::daemon
