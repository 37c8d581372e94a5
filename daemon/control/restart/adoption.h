// File: adoption.h
//
// `Adoption`: takes the sessions, groups and plans of an earlier tandemd over (docs/restart.md). The registry
// is restored first; then each engine is made to hold what the registry says, and no more.
//
// The registry wins: an engine lacks what the last tandemd had not sent yet, and has what it had not taken
// back yet. A group whose engines hold another generation, or not all of which are there, is installed again.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/engines/group_restorer.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/joins/join_service.h"
#include "daemon/control/memory/client_memory.h"
#include "daemon/control/memory/registration_service.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/restart/registry_restorer.h"
#include "daemon/control/sessions/session_service.h"

namespace tandem::daemon {

// Used once, before any session attaches.
class Adoption {
 public:
  struct Services {
    JoinService& joins;
    SegmentService& segments;
    GroupInstaller& installer;
    GroupRestorer& restorer;
    GroupService& groups;
    SessionService& sessions;
  };
  Adoption(ControlCore& core, Services services, const AllHoldings& engines)
      : core_(core), by_(services), engines_(engines) {}

  // Engines without holdings count as ended; the next one of that GPU is to be reported as up.
  void TakeOver(const SavedState& state) TANDEM_EXCLUDES(registry_mutex);

 private:
  // Sessions that cannot go on, each with the reason: the process has ended, or what its engine had is gone.
  std::vector<std::pair<uint64_t, std::string>> LostSessions() const TANDEM_REQUIRES(registry_mutex);
  // Whether all that the group needs is there; else it breaks.
  bool KeepsMemory(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);
  // Whether its verdict pages are there, if it has client-placed plans: its members map them.
  bool KeepsPages(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);
  // All engines of the group hold it as it is.
  bool IsInstalled(const GroupRecord& group) const TANDEM_REQUIRES(registry_mutex);
  void SettleGroup(const std::shared_ptr<GroupRecord>& group) TANDEM_REQUIRES(registry_mutex);
  // A group that sleeps: its ranks have memory made for what engines have lost.
  void SettleSleeper(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  // Sends what an installed group's engines lack, and takes back what they have too many.
  void ReconcileGroup(GroupRecord& group) TANDEM_REQUIRES(registry_mutex);
  void ReconcileEngine(int gpu, const EngineHoldings& engine) TANDEM_REQUIRES(registry_mutex);
  void ReconcileSegments(int gpu, const EngineHoldings& engine) TANDEM_REQUIRES(registry_mutex);
  void ReconcileSessions(int gpu, const EngineHoldings& engine) TANDEM_REQUIRES(registry_mutex);
  const EngineHoldings::HeldGroup* HeldBy(int gpu, uint64_t group_id) const;

  ControlCore& core_;
  Services by_;
  const AllHoldings& engines_;
};

}  // namespace tandem::daemon
