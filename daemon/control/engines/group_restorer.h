// File: group_restorer.h
//
// `GroupRestorer`: installs groups again once the engines of all their GPUs run, on its own thread.
#pragma once

#include <memory>

#include "daemon/control/base/background_worker.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/records/control_core.h"

namespace tandem::daemon {

// Thread-safe. The others outlive it.
class GroupRestorer {
 public:
  GroupRestorer(ControlCore& core, GroupInstaller& installer, GroupService& groups)
      : core_(core), installer_(installer), groups_(groups) {}

  // Restores a suspended group in the background. Returns at once.
  void RestoreSoon(const std::shared_ptr<GroupRecord>& group) {
    background_.Post([this, group] { Restore(group); });
  }

  // Waits for the restoration under way; nothing is restored afterwards.
  void End() { background_.End(); }

 private:
  // One attempt, under the next generation. It begins again when another engine went meanwhile, and breaks
  // the group when the engines refuse it.
  void Restore(const std::shared_ptr<GroupRecord>& group) TANDEM_EXCLUDES(registry_mutex);

  ControlCore& core_;
  GroupInstaller& installer_;
  GroupService& groups_;
  BackgroundWorker background_;  // last: its thread uses the others
};

}  // namespace tandem::daemon
