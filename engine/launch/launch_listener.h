// File: launch_listener.h
//
// `LaunchListener`: what the launch queue reports to tandemd.
#pragma once

#include <cstdint>
#include <vector>

#include "tandem/status.h"

namespace tandem::engine {

struct EngineGroup;
struct Launch;
struct InstalledPlan;

// Called from the queue's calls; must not call back.
class LaunchListener {
 public:
  virtual ~LaunchListener() = default;
  // A launch by message has ended.
  virtual void OnLaunchDone(uint64_t launch_id, const Status& status) = 0;
  virtual void OnLaunchFailed(const InstalledPlan& plan, uint64_t count, const Status& status) = 0;
  // A launch that is on lanes cannot end: its group is broken here and must break on all engines.
  // OnLaunchFailed is called for the launch as well.
  virtual void OnGroupLost(const InstalledPlan& plan, uint64_t count, const Status& status) = 0;
  // Launches of the group end with `status` until a renewal: a rank has missed one, or made another call. Not
  // called for a renewal that a rank has begun.
  virtual void OnGroupStalled(const EngineGroup& group, const Status& status) = 0;
  virtual void OnLate(const InstalledPlan& plan, const Launch& launch, const std::vector<int>& missing,
                      double seconds) = 0;
  // A broken group's lanes cannot be released: this rank's engine lives, and has not marked its launches
  // failed for a second.
  virtual void OnPeerSilent(const EngineGroup& group, int rank) = 0;
};

}  // namespace tandem::engine
