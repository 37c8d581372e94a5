// File: gpu_processes.h
//
// `GpuProcesses`: the processes with a context on a GPU, by NVML. For the doctor, who names the
// processes that keep an engine from coming back after a fault under MPS, and for evict, which ends them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "drivers/nvml/nvml.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct GpuProcess {
  int pid = 0;
  uint32_t uid = 0;
  std::string command = {};   // /proc/<pid>/comm; empty if it has just ended
  uint64_t memory_bytes = 0;  // of the device; 0: not known
  bool under_mps = false;
  bool is_mps_server = false;
};

// "pid 71 (python3, uid 1000)".
std::string GpuProcessText(const GpuProcess& process);

class GpuProcesses {
 public:
  explicit GpuProcesses(std::unique_ptr<NvmlApi> nvml) : nvml_(std::move(nvml)) {}

  // Those on the GPU, by pid. Thread-safe; takes about a millisecond.
  Result<std::vector<GpuProcess>> On(const std::string& gpu_uuid);

 private:
  Result<NvmlDevice> Find(const std::string& gpu);

  std::unique_ptr<NvmlApi> nvml_;
  std::mutex mutex_;
  std::map<std::string, NvmlDevice> devices_;
};

}  // namespace tandem::daemon
