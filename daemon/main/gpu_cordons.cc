#include "daemon/main/gpu_cordons.h"

#include <fstream>
#include <utility>

#include "common/log.h"
#include "common/replace_file.h"
#include "common/utc_time.h"

namespace tandem::daemon {
GpuCordons::GpuCordons(std::string path, std::string boot_id, Topology topology, Control& control,
                       std::function<void()> changed)
    : path_(std::move(path)),
      boot_id_(std::move(boot_id)),
      topology_(std::move(topology)),
      control_(control),
      changed_(std::move(changed)) {}

void GpuCordons::Restore() {
  std::ifstream file(path_);
  std::string line;
  if (!std::getline(file, line) || line != boot_id_) return;
  MutexLock lock(mutex_);
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    const Result<int> gpu = topology_.Find(line.substr(0, space));
    if (space == std::string::npos || !gpu.ok()) continue;
    const std::string why = log::OneLine(line.substr(space + 1));
    cordoned_[*gpu] = why;
    control_.SetGpuCordon(*gpu, why);
    log::Warning("GPU " + std::to_string(*gpu) + " stays cordoned: " + why);
  }
}

void GpuCordons::Set(int gpu, const std::string& why) {
  {
    MutexLock lock(mutex_);
    cordoned_.erase(gpu);
    if (!why.empty()) cordoned_[gpu] = why + " at " + UtcNow();
    control_.SetGpuCordon(gpu, why.empty() ? "" : cordoned_[gpu]);
    log::Warning("GPU " + std::to_string(gpu) +
                 (why.empty() ? " takes new groups again" : " is cordoned: " + cordoned_[gpu]));
    Save();
  }
  changed_();
}

void GpuCordons::OnXid(int gpu, uint32_t xid) {
  if (on_xid_) Set(gpu, "XID " + std::to_string(xid));
}

void GpuCordons::CordonOnXid(bool wanted, const std::vector<GpuCondition>& conditions) {
  if (on_xid_.exchange(wanted) || !wanted) return;
  for (size_t gpu = 0; gpu < conditions.size(); ++gpu) {
    if (conditions[gpu].xid != 0) OnXid(static_cast<int>(gpu), conditions[gpu].xid);
  }
}

void GpuCordons::Save() {
  std::string text = boot_id_ + "\n";
  for (const auto& [gpu, why] : cordoned_)
    text += topology_.gpus[static_cast<size_t>(gpu)].uuid + " " + why + "\n";
  if (const Status saved = ReplaceFile(path_, text); !saved.ok())
    log::Warning("the GPUs' cordons do not outlive a restart of tandemd: " + saved.message());
}

}  // namespace tandem::daemon
