#include "daemon/topology/nvml_topology.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace tandem {
namespace {

class TopologyReader {
 public:
  TopologyReader(NvmlApi& nvml, const std::optional<std::string>& visible)
      : nvml_(nvml), limited_(visible.has_value()) {
    built_.topology.source = "nvml";
    std::string name;
    for (char c : visible.value_or("") + ",") {
      if (c != ',') {
        if (c != ' ') name += c;
      } else if (!name.empty()) {
        wanted_.push_back({std::exchange(name, {}), false});
      }
    }
  }

  Result<NvmlTopology> Build() {
    if (Result<std::string> version = nvml_.DriverVersion(); version.ok()) built_.driver_version = *version;
    TANDEM_RETURN_IF_ERROR(ReadGpus());
    Topology& topology = built_.topology;
    for (int i = 0; i < topology.size(); ++i) {
      ReadNvLinks(i);
      CheckFabric(topology.gpus[i]);
    }
    ReconcileNvLinks();
    for (int i = 0; i < topology.size(); ++i) {
      for (int j = 0; j < topology.size(); ++j) {
        if (i == j) continue;
        topology.p2p[i][j] = PeerAccess(i, j);
        topology.pcie[i][j] = Distance(i, j);
      }
    }
    return std::move(built_);
  }

 private:
  void Warn(std::string text) { built_.warnings.push_back(std::move(text)); }
  const std::string& Uuid(int i) const { return built_.topology.gpus[i].uuid; }

  Status ReadGpus() {
    Result<int> count = nvml_.DeviceCount();
    if (!count.ok()) return Unavailable("NVML cannot count the GPUs: " + count.status().message());
    if (*count == 0) return Unavailable("NVML knows no GPU on this machine");
    if (limited_ && wanted_.empty()) return Unavailable("CUDA_VISIBLE_DEVICES is empty: it hides every GPU");
    std::string beyond;
    std::string unusable;
    for (int index = 0; index < *count; ++index) {
      Status status = ReadGpu(index, beyond);
      if (status.ok()) continue;
      std::string text = "GPU " + std::to_string(index) + " is left out: " + status.message();
      unusable += (unusable.empty() ? "" : "; ") + text;
      Warn(std::move(text));
    }
    for (const Wanted& wanted : wanted_) {
      if (!wanted.found) {
        return Unavailable("CUDA_VISIBLE_DEVICES names '" + wanted.name +
                           "', which is no usable GPU of this node" +
                           (unusable.empty() ? "" : ": " + unusable));
      }
    }
    if (built_.topology.gpus.empty()) return Unavailable("no GPU can be used: " + unusable);
    if (!beyond.empty()) {
      Warn("this node has more than " + std::to_string(kMaxGpus) + " GPUs; not used: " + beyond);
    }
    return Status::Ok();
  }

  // Whether CUDA_VISIBLE_DEVICES names this GPU.
  bool Wants(int index, const std::string& uuid) {
    bool wants = false;
    for (Wanted& wanted : wanted_) {
      const bool by_uuid = wanted.name.rfind("GPU-", 0) == 0;
      if (by_uuid ? uuid.rfind(wanted.name, 0) != 0 : wanted.name != std::to_string(index)) continue;
      wanted.found = wants = true;
    }
    return wants;
  }

  // Adds the GPU, or appends its UUID to `beyond` when there is no more room.
  Status ReadGpu(int index, std::string& beyond) {
    TANDEM_ASSIGN_OR_RETURN(NvmlDevice device, nvml_.DeviceByIndex(index));
    GpuInfo gpu;
    TANDEM_ASSIGN_OR_RETURN(gpu.uuid, nvml_.Uuid(device));
    if (limited_ && !Wants(index, gpu.uuid)) return Status::Ok();
    if (built_.topology.size() == kMaxGpus) {
      beyond += (beyond.empty() ? "" : ", ") + gpu.uuid;
      return Status::Ok();
    }
    TANDEM_ASSIGN_OR_RETURN(gpu.model, nvml_.Name(device));
    TANDEM_ASSIGN_OR_RETURN(std::string bus_id, nvml_.PciBusId(device));
    TANDEM_ASSIGN_OR_RETURN(gpu.memory_bytes, nvml_.MemoryBytes(device));
    gpu.pci_bus_id = NormalBusId(bus_id);
    gpu.numa_node = nvml_.NumaNode(bus_id);
    gpu.mig_enabled = ReadMig(device, gpu.uuid);
    gpu.compute_mode = ReadComputeMode(device, gpu.uuid);
    gpu.fabric_state = ReadFabricState(device);
    devices_.push_back(device);
    built_.topology.gpus.push_back(std::move(gpu));
    return Status::Ok();
  }

  bool ReadMig(NvmlDevice device, const std::string& uuid) {
    Result<bool> mig = nvml_.MigEnabled(device);
    if (mig.ok()) return *mig;
    // Not supported means that the GPU has no MIG.
    if (mig.status().code() != Code::kUnimplemented)
      Warn(uuid + ": MIG mode unknown: " + mig.status().message());
    return false;
  }

  ComputeMode ReadComputeMode(NvmlDevice device, const std::string& uuid) {
    Result<NvmlComputeMode> mode = nvml_.ComputeMode(device);
    if (!mode.ok()) {
      if (mode.status().code() != Code::kUnimplemented) {
        Warn(uuid + ": compute mode unknown: " + mode.status().message());
      }
      return ComputeMode::kDefault;
    }
    switch (*mode) {
      case NvmlComputeMode::kDefault: return ComputeMode::kDefault;
      case NvmlComputeMode::kProhibited: return ComputeMode::kProhibited;
      // Thread-exclusive has meant process-exclusive since CUDA 8.
      case NvmlComputeMode::kExclusiveThread:
      case NvmlComputeMode::kExclusiveProcess: return ComputeMode::kExclusiveProcess;
    }
    Warn(uuid + ": compute mode " + std::to_string(static_cast<uint32_t>(*mode)) + " is unknown to Tandem");
    return ComputeMode::kDefault;
  }

  std::string ReadFabricState(NvmlDevice device) {
    Result<NvmlFabricInfo> fabric = nvml_.FabricInfo(device);
    if (!fabric.ok()) {
      return fabric.status().code() == Code::kUnimplemented ? "none" : "error: " + fabric.status().message();
    }
    switch (fabric->state) {
      case 0: return "none";
      case 1: return "not_started";
      case 2: return "in_progress";
      case 3:
        return fabric->error == 0
                   ? "completed"
                   : "error: registration ended with NVML error " + std::to_string(fabric->error);
      default: return "error: unknown fabric state " + std::to_string(fabric->state);
    }
  }

  // Counts the active links of GPU i by where they end.
  void ReadNvLinks(int i) {
    for (int link = 0; link < kNvmlMaxNvLinks; ++link) {
      Result<bool> active = nvml_.NvLinkActive(devices_[i], link);
      if (!active.ok()) {
        // Beyond the links that this GPU has, or a GPU without any.
        Code code = active.status().code();
        if (code == Code::kInvalidArgument || code == Code::kUnimplemented) return;
        Warn(Uuid(i) + ": NVLink " + std::to_string(link) + " unknown: " + active.status().message());
        continue;
      }
      if (!*active) continue;
      Status status = CountNvLink(i, link);
      if (!status.ok()) {
        Warn(Uuid(i) + ": NVLink " + std::to_string(link) + " is not counted: " + status.message());
      }
    }
  }

  void CheckFabric(const GpuInfo& gpu) {
    if (gpu.switch_links == 0 || gpu.fabric_state == "none" || gpu.fabric_state == "completed") return;
    Warn(gpu.uuid + ": NVSwitch fabric is " + gpu.fabric_state + "; is the fabric manager running?");
  }

  Status CountNvLink(int i, int link) {
    Topology& topology = built_.topology;
    Result<NvmlRemoteType> type = nvml_.NvLinkRemoteType(devices_[i], link);
    if (type.ok() && *type == NvmlRemoteType::kSwitch) {
      ++topology.gpus[i].switch_links;
      return Status::Ok();
    }
    if (type.ok() && *type == NvmlRemoteType::kIbmNpu) return Status::Ok();  // ends at the CPU: no peer there
    // A driver without the type still has the bus id, which is enough to find a GPU.
    if (!type.ok() && type.status().code() != Code::kUnimplemented) return type.status();
    TANDEM_ASSIGN_OR_RETURN(std::string remote, nvml_.NvLinkRemoteBusId(devices_[i], link));
    remote = NormalBusId(remote);
    for (int j = 0; j < topology.size(); ++j) {
      if (topology.gpus[j].pci_bus_id != remote) continue;
      if (i != j) ++topology.nvlinks[i][j];
      return Status::Ok();
    }
    return NotFound("it ends at " + remote + ", which is none of the GPUs seen here");
  }

  // Both ends of a link must report it; else the smaller number holds.
  void ReconcileNvLinks() {
    Topology& topology = built_.topology;
    for (int i = 0; i < topology.size(); ++i) {
      for (int j = i + 1; j < topology.size(); ++j) {
        int& forth = topology.nvlinks[i][j];
        int& back = topology.nvlinks[j][i];
        if (forth == back) continue;
        Warn(Uuid(i) + " reports " + std::to_string(forth) + " NVLinks to " + Uuid(j) + ", which reports " +
             std::to_string(back) + " back");
        forth = back = std::min(forth, back);
      }
    }
  }

  bool PeerAccess(int i, int j) {
    const Topology& topology = built_.topology;
    if (topology.gpus[i].mig_enabled || topology.gpus[j].mig_enabled) return false;
    for (NvmlP2pIndex index : {NvmlP2pIndex::kRead, NvmlP2pIndex::kWrite}) {
      Result<NvmlP2pStatus> status = nvml_.P2pStatus(devices_[i], devices_[j], index);
      if (status.ok() && *status == NvmlP2pStatus::kOk) continue;
      std::string reason = status.ok() ? NvmlP2pStatusName(*status) : status.status().message();
      // Where NVLinks promise peer access its absence is worth a word; on PCIe it is common.
      bool linked = topology.nvlinks[i][j] > 0 ||
                    (topology.gpus[i].switch_links > 0 && topology.gpus[j].switch_links > 0);
      if (linked || !status.ok()) {
        Warn(Uuid(i) + " has no peer access to " + Uuid(j) + (linked ? " in spite of NVLinks: " : ": ") +
             reason);
      }
      return false;
    }
    return true;
  }

  PcieDistance Distance(int i, int j) {
    Result<NvmlTopologyLevel> level = nvml_.CommonAncestor(devices_[i], devices_[j]);
    if (!level.ok()) {
      if (i < j)
        Warn("PCIe distance of " + Uuid(i) + " and " + Uuid(j) + " unknown: " + level.status().message());
      return PcieDistance::kSys;
    }
    switch (*level) {
      case NvmlTopologyLevel::kInternal:  // two GPUs of one board hang below its PCIe switch
      case NvmlTopologyLevel::kSingle: return PcieDistance::kPix;
      case NvmlTopologyLevel::kMultiple: return PcieDistance::kPxb;
      case NvmlTopologyLevel::kHostBridge: return PcieDistance::kPhb;
      case NvmlTopologyLevel::kNode: return PcieDistance::kNode;
      case NvmlTopologyLevel::kSystem: return PcieDistance::kSys;
    }
    return PcieDistance::kSys;
  }

  struct Wanted {
    std::string name;
    bool found;
  };

  NvmlApi& nvml_;
  const bool limited_;  // to what CUDA_VISIBLE_DEVICES names
  std::vector<Wanted> wanted_;
  std::vector<NvmlDevice> devices_;  // by position in the topology
  NvmlTopology built_;
};

}  // namespace

std::optional<std::string> VisibleDevices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr ? std::nullopt : std::optional<std::string>(visible);
}

Result<NvmlTopology> BuildNvmlTopology(NvmlApi& nvml, const std::optional<std::string>& visible) {
  return TopologyReader(nvml, visible).Build();
}

}  // namespace tandem
