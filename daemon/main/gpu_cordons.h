// File: gpu_cordons.h
//
// `GpuCordons`: the GPUs that take no new groups, by an operator or for an XID. A file keeps them for a
// restart of tandemd: the driver reports an XID once. A start of the machine ends them, as it resets the
// GPUs.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "daemon/control/control.h"
#include "daemon/observe/gpu_health.h"
#include "daemon/topology/topology.h"

namespace tandem::daemon {

class GpuCordons {
 public:
  // `control` outlives this. `changed` is called after each change, on its thread.
  GpuCordons(std::string path, std::string boot_id, Topology topology, Control& control,
             std::function<void()> changed);

  // Takes up what the file has of this boot. Before all below.
  void Restore();
  // Thread-safe, as all below. `why` empty: the GPU takes groups again.
  void Set(int gpu, const std::string& why);
  // A GPU had an XID that is a fault of the GPU: it is cordoned if that is wanted.
  void OnXid(int gpu, uint32_t xid);
  // Whether XIDs cordon. GPUs that have had one are cordoned when that begins.
  void CordonOnXid(bool wanted, const std::vector<GpuCondition>& conditions);

 private:
  void Save() TANDEM_REQUIRES(mutex_);

  const std::string path_, boot_id_;
  const Topology topology_;
  Control& control_;
  const std::function<void()> changed_;
  std::atomic<bool> on_xid_{false};
  Mutex mutex_;
  std::map<int, std::string> cordoned_ TANDEM_GUARDED_BY(mutex_);
};

}  // namespace tandem::daemon
