// File: group_record.h
//
// The record of a group: one incarnation of a name, its members, and everything that the group has.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/unique_fd.h"
#include "daemon/control/base/barrier.h"
#include "daemon/control/base/ledger.h"
#include "daemon/control/base/registry_mutex.h"
#include "daemon/control/base/timed_lock.h"
#include "daemon/control/records/group_lifecycle.h"
#include "daemon/control/records/memory_records.h"
#include "daemon/control/records/plan_records.h"
#include "daemon/control/records/renewal.h"
#include "daemon/control/records/session_record.h"
#include "daemon/control/records/stall_lifecycle.h"
#include "daemon/control/records/suspension.h"
#include "daemon/planner/planner.h"
#include "ipc/verdict_page.h"
#include "tandem/op_request.h"

namespace tandem::daemon {

// Rows of a group's arrival table: plans of one incarnation, since an index is never used again.
inline constexpr uint32_t kMaxPlanIndexes = 16384;

struct GroupRecord;

struct MemberRecord {
  std::shared_ptr<SessionRecord> session;
  uint64_t session_id = 0;
  int pid = 0;
  int gpu = 0;
  bool left = false;                 // cleanly or not
  uint64_t unnamed_barriers = 0;     // of unnamed tensors, so far
  bool client_products = false;      // its process has what client-placed products need
  uint64_t client_signal_bytes = 0;  // of a signal area as its library lays it out
  bool renews_engines = false;       // its library renews groups whose launches engines run
};

// A renewal goes on so far behind the last number that a rank has finished. The next one may be in words
// already: a rank that gave up in it has written them.
inline constexpr uint64_t kRenewalSkips = 2;
// The largest number of a client-placed launch: a word holds 48 bits of it.
inline constexpr uint64_t kMaxLaunchNumber = uint64_t{1} << 47;

struct GroupRecord {
  explicit GroupRecord(const GroupLifecycle::IllegalHandler& illegal)
      : lifecycle(illegal), illegal_transition(illegal) {}

  // Set before other threads see the record.
  uint64_t id = 0;
  std::string scope;  // key in Registry::names
  std::string name;
  Payer payer;  // rank 0's
  uint64_t incarnation = 1;
  std::vector<int> gpus;  // by rank
  plan::GroupContext context;
  std::string topology_class;
  uint64_t launch_deadline_ms = 0;
  OnSlowPlacement on_slow_placement = OnSlowPlacement::kAllow;
  std::map<std::string, std::string> options;
  size_t world() const { return gpus.size(); }

  GroupLifecycle lifecycle;                                 // guarded, except for GroupLifecycle::Over
  const GroupLifecycle::IllegalHandler illegal_transition;  // of its renewals, too
  uint64_t generation TANDEM_GUARDED_BY(registry_mutex) = 1;
  std::vector<MemberRecord> members TANDEM_GUARDED_BY(registry_mutex);  // by rank
  // By rank: the generation of the engine that last received the group.
  std::vector<uint64_t> engines TANDEM_GUARDED_BY(registry_mutex);

  // Plans.
  // By key.
  std::map<std::string, std::shared_ptr<PrepareBarrier>> prepares TANDEM_GUARDED_BY(registry_mutex);
  std::map<uint64_t, PlanRecord> plans TANDEM_GUARDED_BY(registry_mutex);
  // The last launch of each plan that was reported as waiting for a rank.
  std::map<uint64_t, uint64_t> late_launches TANDEM_GUARDED_BY(registry_mutex);
  // The kinds of plans' warnings that have been logged.
  std::set<std::string> logged_warnings TANDEM_GUARDED_BY(registry_mutex);
  uint32_t next_plan_index TANDEM_GUARDED_BY(registry_mutex) = 0;
  uint64_t next_launch_number TANDEM_GUARDED_BY(registry_mutex) = 1;
  // Whether the engines have made a communicator for it. Guarded by `work`, which the analysis cannot follow.
  bool communicates = false;

  // Symmetric tensors: by name or number until all ranks have acknowledged, and by registration id.
  std::map<std::string, std::shared_ptr<TensorBarrier>> tensor_barriers TANDEM_GUARDED_BY(registry_mutex);
  std::map<uint64_t, GroupTensor> tensors TANDEM_GUARDED_BY(registry_mutex);
  std::vector<std::shared_ptr<SegmentSet>> symmetric TANDEM_GUARDED_BY(registry_mutex);

  // Segments of the group itself. Programs in flight may use workspaces that the group has outgrown.
  std::shared_ptr<SegmentSet> control TANDEM_GUARDED_BY(registry_mutex);
  std::shared_ptr<SegmentSet> half0 TANDEM_GUARDED_BY(registry_mutex);
  std::shared_ptr<SegmentSet> half1 TANDEM_GUARDED_BY(registry_mutex);
  std::shared_ptr<SegmentSet> bulk TANDEM_GUARDED_BY(registry_mutex);
  std::vector<std::shared_ptr<SegmentSet>> outgrown TANDEM_GUARDED_BY(registry_mutex);
  uint64_t half_bytes TANDEM_GUARDED_BY(registry_mutex) = 0;
  uint64_t bulk_bytes TANDEM_GUARDED_BY(registry_mutex) = 0;
  SharedFd arrivals TANDEM_GUARDED_BY(registry_mutex);
  // The stall of the group's launches on engines, and how many renewals of these have begun.
  StallLifecycle engine_stall TANDEM_GUARDED_BY(registry_mutex);
  uint64_t engine_renewals TANDEM_GUARDED_BY(registry_mutex) = 0;

  // Memory of client-placed plans; empty before the group's first one.
  struct ClientMemory {
    std::shared_ptr<SegmentSet> signals, workspace;
    uint64_t half_bytes = 0, bulk_bytes = 0;  // of the workspace
    std::vector<SharedFd> page_fds;           // by rank: verdict pages
    std::vector<VerdictPage> pages;
    StallLifecycle stall;
    uint64_t renewals = 0;             // that have ended well
    std::shared_ptr<Renewal> renewal;  // the last attempt, of launches on engines, too; null: none
  };
  ClientMemory client TANDEM_GUARDED_BY(registry_mutex);
  // A failed client-placed launch, as a member has reported it.
  struct FailureReport {
    uint64_t launch = 0, plan_id = 0;
    int awaited_rank = -1;
    Status status;
    int64_t rows = -1;  // of a family's launch; -1: not known
  };
  std::map<int, FailureReport> failures TANDEM_GUARDED_BY(registry_mutex);  // by rank, the first of each

  // Its last sleep, or the one that begins; null: none.
  std::shared_ptr<Suspension> suspension TANDEM_GUARDED_BY(registry_mutex);

  // Serialises the calls that grow or install the group's memory. Taken before the registry's mutex, and held
  // across calls to engines.
  TimedLock work;

  GroupState state() const TANDEM_REQUIRES(registry_mutex) { return lifecycle.state(); }
  // Members may use it, now or once an engine is back or they have woken it up.
  bool Lives() const TANDEM_REQUIRES(registry_mutex) {
    return state() == GroupState::kReady || IsOffEngines(state());
  }
  // The bytes of both halves of one rank's workspace, as allocated, which the plans share; and the bytes that
  // their workspaces would take if each had its own, allocated alike. The same figures everywhere that they
  // are shown.
  uint64_t WorkspaceBytes() const TANDEM_REQUIRES(registry_mutex) { return 2 * half_bytes; }
  uint64_t UnsharedWorkspaceBytes() const TANDEM_REQUIRES(registry_mutex);
  bool UsesGpu(int gpu) const;
  // A launch that a rank misses stalls the group on engines, too: all members know how to renew it.
  bool RenewsEngines() const TANDEM_REQUIRES(registry_mutex);
  // All ranks make all calls in one order, so that a rank that makes another one is noticed.
  bool IsOrdered() const TANDEM_REQUIRES(registry_mutex);
  // Ends every barrier that still waits for ranks.
  void EndGatherings(const Status& why) TANDEM_REQUIRES(registry_mutex);
  // Ends the client-placed launches of all ranks for `why`, which is not OK, until a renewal.
  void Stall(const Status& why) TANDEM_REQUIRES(registry_mutex);
  // Ends client-placed launches from number `from` on, on all ranks but `except_rank` (-1: on all).
  void AbortClientLaunches(uint64_t from, const Status& why, int except_rank = -1)
      TANDEM_REQUIRES(registry_mutex);
  // Client-placed launches that have ended: of the rank that has finished most. Numbers that renewals have
  // left out do not count.
  uint64_t ClientLaunches() const TANDEM_REQUIRES(registry_mutex);
  // "ranks 0, 2 have waited in launches on their streams for 2.1 s; rank 1 has none under way" where some
  // have waited over a second and others have not; else empty. A hint: members write their pages as they
  // like.
  std::string ClientWaits() const TANDEM_REQUIRES(registry_mutex);
  // Its sets of segments, but control segments: each installation makes new ones.
  std::vector<std::shared_ptr<SegmentSet>> Segments() const TANDEM_REQUIRES(registry_mutex);
  // Queues an event for every member that is still there, except for the one of `except_rank` (-1: for all).
  void PostEvent(const v1::Event& event, int except_rank, uint64_t most) TANDEM_REQUIRES(registry_mutex);
};

}  // namespace tandem::daemon
