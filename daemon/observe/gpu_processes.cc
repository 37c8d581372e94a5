#include "daemon/observe/gpu_processes.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "common/gpu_name.h"
#include "common/utf8.h"

namespace tandem::daemon {
namespace {

constexpr char kMpsServer[] = "nvidia-cuda-mps";  // what /proc keeps of nvidia-cuda-mps-server

void Describe(GpuProcess& process) {
  const std::string folder = "/proc/" + std::to_string(process.pid);
  struct stat status {};
  if (::stat(folder.c_str(), &status) == 0) process.uid = status.st_uid;
  std::ifstream file(folder + "/comm");
  std::string command;
  std::getline(file, command);
  process.command = WithoutControlCharacters(command);  // a process chooses its name's bytes
  process.is_mps_server = process.command.rfind(kMpsServer, 0) == 0;
}

}  // namespace

std::string GpuProcessText(const GpuProcess& process) {
  return "pid " + std::to_string(process.pid) + " (" + (process.command.empty() ? "ended" : process.command) +
         ", uid " + std::to_string(process.uid) + ")";
}

Result<NvmlDevice> GpuProcesses::Find(const std::string& gpu) {
  const std::string gpu_uuid(DeviceUuid(gpu));
  std::lock_guard lock(mutex_);
  if (auto known = devices_.find(gpu_uuid); known != devices_.end()) return known->second;
  TANDEM_ASSIGN_OR_RETURN(int count, nvml_->DeviceCount());
  for (int i = 0; i < count; ++i) {
    Result<NvmlDevice> device = nvml_->DeviceByIndex(i);
    if (!device.ok()) continue;  // a lost GPU is not the one that is asked for
    Result<std::string> uuid = nvml_->Uuid(*device);
    if (uuid.ok()) devices_[*uuid] = *device;
  }
  if (auto known = devices_.find(gpu_uuid); known != devices_.end()) return known->second;
  return NotFound("NVML knows no GPU " + gpu_uuid);
}

Result<std::vector<GpuProcess>> GpuProcesses::On(const std::string& gpu_uuid) {
  TANDEM_ASSIGN_OR_RETURN(NvmlDevice device, Find(gpu_uuid));
  std::map<int, GpuProcess> found;
  TANDEM_ASSIGN_OR_RETURN(std::vector<NvmlProcess> all, nvml_->ComputeProcesses(device));
  for (const NvmlProcess& process : all) {
    found[process.pid].memory_bytes = std::max(found[process.pid].memory_bytes, process.memory_bytes);
  }
  // This list has every client of a server that could use the GPU; those with a context on it are in the
  // first one too.
  if (auto mps = nvml_->MpsProcesses(device); mps.ok()) {
    for (const NvmlProcess& process : *mps) {
      auto holder = found.find(process.pid);
      if (holder == found.end()) continue;
      holder->second.under_mps = true;
      holder->second.memory_bytes = std::max(holder->second.memory_bytes, process.memory_bytes);
    }
  }
  std::vector<GpuProcess> processes;
  for (auto& [pid, process] : found) {
    process.pid = pid;
    Describe(process);
    processes.push_back(std::move(process));
  }
  return processes;
}

}  // namespace tandem::daemon
