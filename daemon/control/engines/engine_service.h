// File: engine_service.h
//
// `EngineService`: handles the engines' reports, above all their restarts. When an engine ends, its groups
// are removed from the other engines. When it is back, it gets its segments by the descriptors that tandemd
// kept, and the groups are installed again under a new generation. Sessions, memory and plans go on. Where
// all processes on the GPU fell with the engine (GPU context loss under MPS), its groups break instead.
#pragma once

#include <cstdint>
#include <string>

#include "daemon/control/channels/channel_service.h"
#include "daemon/control/channels/launch_service.h"
#include "daemon/control/engines/group_restorer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/memory/client_memory.h"
#include "daemon/control/memory/registration_service.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/records/control_core.h"

namespace tandem::daemon {

// Thread-safe; called by the supervisor's threads. The others outlive it.
class EngineService {
 public:
  struct Services {
    SegmentService& segments;
    RegistrationService& registrations;
    GroupInstaller& installer;
    GroupService& groups;
    GroupRestorer& restorer;
    ChannelService& channels;
    LaunchService& launches;
    ClientMemoryService& client_memory;
  };
  EngineService(ControlCore& core, Services services) : core_(core), to_(services) {}

  void OnUp(int gpu, uint64_t generation) TANDEM_EXCLUDES(registry_mutex);
  void OnDown(int gpu, uint64_t generation, const std::string& reason) TANDEM_EXCLUDES(registry_mutex);
  // EngineListener::MayRest: no session has used it for ControlOptions::engine_idle.
  bool MayRest(int gpu, uint64_t generation) TANDEM_EXCLUDES(registry_mutex);
  // A launch failed; where it cannot end, its group breaks. A stall is shown, counted and
  // announced to the members.
  void OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) TANDEM_EXCLUDES(registry_mutex);
  // A launch waits for ranks. Each rank's engine reports it: the group gets one event, and the log one
  // warning.
  void OnLate(const engine::v1::Late& late) TANDEM_EXCLUDES(registry_mutex);
  void OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) TANDEM_EXCLUDES(registry_mutex);

 private:
  void NoteStall(const engine::v1::LaunchFailed& failed) TANDEM_EXCLUDES(registry_mutex);

  void BreakGroupsOfLostContext(int gpu, const std::string& text) TANDEM_REQUIRES(registry_mutex);
  void SuspendGroups(int gpu, const Status& ended) TANDEM_REQUIRES(registry_mutex);

  ControlCore& core_;
  Services to_;
};

}  // namespace tandem::daemon
