// File: group_breaker.h
//
// `GroupBreaker`: breaks groups on this engine. Launches are marked failed on all ranks before any rank's
// lanes are released. A released lane runs on over the buffers' present contents, and signals its peers as if
// all were well. So a rank goes through two steps:
//   1. It fails its launches that have not started, and marks those on its lanes as failed
//      (LaunchQueue::Break). Then it sets its mark in the arrival table (Mark).
//   2. It releases its lanes, and aborts its communicator, once every peer has set its mark, has never had
//      the group, or is a process that has ended (Serve).
// The order log carries BREAK as well, so that peers learn of it even if tandemd reports nothing.
// docs/model/group_break.pml is this protocol's model.
//
//   state      | meaning                                            | left by
//   -----------|----------------------------------------------------|-------------------------------
//   kWhole     | launches start                                     | announced: kAnnounced,
//              |                                                    | mark: kMarked
//   kAnnounced | BREAK is in the log, nothing starts any more. The  | mark: kMarked, at the latest
//              | reason is not known yet                            | after the grace for a command
//   kMarked    | launches carry the failure, the mark is set        | all peers marked or gone:
//              |                                                    | kReleased
//   kReleased  | lanes are released until they are through          | the group is removed
//
// Thread rule: the engine's main thread only.
#pragma once

#include <cstdint>

#include "engine/launch/launch.h"
#include "engine/launch/launch_listener.h"
#include "ipc/order_log.h"
#include "kernels/backend.h"
#include "tandem/status.h"

namespace tandem::engine {

class GroupBreaker {
 public:
  // All outlive it.
  GroupBreaker(Backend* backend, OrderLog* log, LaunchListener* listener)
      : backend_(backend), log_(log), listener_(listener) {}

  // BREAK of the group was read in the log, at `now_ns`.
  void NoteAnnounced(EngineGroup* group, uint64_t now_ns);
  // Appends BREAK to the log, once a group.
  void Announce(EngineGroup* group);
  // The group's launches on this rank carry its failure: sets the rank's mark, which peers wait for.
  void Mark(EngineGroup* group, uint64_t now_ns);
  // True once a group that the log has announced has waited long enough for the reason.
  static bool GraceIsOver(const EngineGroup& group, uint64_t now_ns);
  // For a group that is marked: releases the lanes once the peers have marked their launches, and again until
  // they are through. After an error the lanes hold this process for good.
  Status Serve(EngineGroup* group, uint64_t now_ns);

 private:
  // True once no peer can end a launch with OK any more: each has marked its launches, or its process has
  // ended.
  bool PeersMarked(EngineGroup* group, uint64_t now_ns);
  Status ReleaseLanes(EngineGroup* group, uint64_t now_ns);

  Backend* backend_;
  OrderLog* log_;
  LaunchListener* listener_;
};

}  // namespace tandem::engine
