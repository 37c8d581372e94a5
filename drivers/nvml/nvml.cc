#include "drivers/nvml/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

namespace tandem {
namespace {

// The binary interface of libnvidia-ml.so.1, declared here because nvml.h comes with the CUDA toolkit.
using NvmlReturn = int;
constexpr NvmlReturn kNvmlSuccess = 0;

struct NvmlPciInfo {  // nvmlPciInfo_t, version 3
  char bus_id_legacy[16];
  unsigned int domain;
  unsigned int bus;
  unsigned int device;
  unsigned int pci_device_id;
  unsigned int pci_subsystem_id;
  char bus_id[32];
};

struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

struct NvmlProcessInfo {  // nvmlProcessInfo_t, as the _v3 calls have it
  unsigned int pid;
  unsigned long long used_memory;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
constexpr unsigned long long kNvmlValueNotAvailable = ~0ull;

struct NvmlGpuFabricInfo {  // nvmlGpuFabricInfo_t
  unsigned char cluster_uuid[16];
  NvmlReturn status;
  unsigned int clique_id;
  unsigned char state;
};

using NvmlEventSet = void*;  // nvmlEventSet_t
struct NvmlEventData {       // nvmlEventData_t
  NvmlDevice device;
  unsigned long long type;
  unsigned long long data;
  unsigned int gpu_instance;
  unsigned int compute_instance;
};
constexpr unsigned long long kNvmlXidEvent = 8;
constexpr unsigned int kNvmlUncorrected = 1, kNvmlVolatile = 0;
// Counters of nvmlDeviceGetNvLinkErrorCounter.
constexpr unsigned int kNvmlReplays = 0, kNvmlRecoveries = 1, kNvmlCrcFlits = 2, kNvmlCrcData = 3;

struct NvmlError {
  NvmlReturn value;
  const char* name;
  Code code;
};

constexpr std::array<NvmlError, 17> kErrors = {{
    {1, "UNINITIALIZED", Code::kInternal},
    {2, "INVALID_ARGUMENT", Code::kInvalidArgument},
    {3, "NOT_SUPPORTED", Code::kUnimplemented},
    {4, "NO_PERMISSION", Code::kPermissionDenied},
    {6, "NOT_FOUND", Code::kNotFound},
    {7, "INSUFFICIENT_SIZE", Code::kInternal},
    {8, "INSUFFICIENT_POWER", Code::kUnavailable},
    {9, "DRIVER_NOT_LOADED", Code::kUnavailable},
    {10, "TIMEOUT", Code::kDeadlineExceeded},
    {11, "IRQ_ISSUE", Code::kUnavailable},
    {12, "LIBRARY_NOT_FOUND", Code::kUnavailable},
    {13, "FUNCTION_NOT_FOUND", Code::kUnimplemented},
    {15, "GPU_IS_LOST", Code::kUnavailable},
    {16, "RESET_REQUIRED", Code::kUnavailable},
    {17, "OPERATING_SYSTEM", Code::kUnavailable},
    {18, "LIB_RM_VERSION_MISMATCH", Code::kFailedPrecondition},
    {20, "MEMORY", Code::kResourceExhausted},
}};

Status ToStatus(NvmlReturn error, const char* call) {
  if (error == kNvmlSuccess) return Status::Ok();
  const char* name = "UNKNOWN";
  Code code = Code::kUnknown;
  for (const NvmlError& known : kErrors) {
    if (known.value != error) continue;
    name = known.name;
    code = known.code;
  }
  StatusDetail detail;
  detail.reason = std::string("NVML_") + name;
  return Status(code, std::string(call) + ": " + name + " (" + std::to_string(error) + ")", detail);
}

struct CloseLibrary {
  void operator()(void* handle) const { dlclose(handle); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

// A function of the library that may be missing from old drivers.
template <typename... Arguments>
class Symbol {
 public:
  explicit Symbol(const char* name) : name_(name) {}

  bool Load(void* library) {
    function_ = reinterpret_cast<NvmlReturn (*)(Arguments...)>(dlsym(library, name_));
    return function_ != nullptr;
  }

  Status operator()(Arguments... arguments) const {
    if (function_ == nullptr) {
      StatusDetail detail;
      detail.reason = "NVML_FUNCTION_NOT_FOUND";
      return Status(Code::kUnimplemented, std::string(name_) + ": this driver does not have it", detail);
    }
    return ToStatus(function_(arguments...), name_);
  }

  const char* name() const { return name_; }
  bool loaded() const { return function_ != nullptr; }

 private:
  const char* name_;
  NvmlReturn (*function_)(Arguments...) = nullptr;
};

// Events of devices, as long as the library is loaded.
class XidEvents final : public NvmlXidEvents {
 public:
  using WaitCall = Symbol<NvmlEventSet, NvmlEventData*, unsigned int>;
  using FreeCall = Symbol<NvmlEventSet>;
  XidEvents(NvmlEventSet set, const WaitCall& wait, const FreeCall& free)
      : set_(set), wait_(wait), free_(free) {}
  XidEvents(const XidEvents&) = delete;
  XidEvents& operator=(const XidEvents&) = delete;
  ~XidEvents() override { (void)free_(set_).ok(); }

  Result<std::optional<NvmlXid>> Next(std::chrono::milliseconds wait) override {
    NvmlEventData event{};
    const Status status = wait_(set_, &event, static_cast<unsigned int>(wait.count()));
    if (status.code() == Code::kDeadlineExceeded) return std::optional<NvmlXid>();
    TANDEM_RETURN_IF_ERROR(status);
    if (event.type != kNvmlXidEvent) return std::optional<NvmlXid>();
    return std::optional(NvmlXid{event.device, event.data});
  }

 private:
  const NvmlEventSet set_;
  const WaitCall wait_;
  const FreeCall free_;
};

class NvmlLibrary final : public NvmlApi {
 public:
  NvmlLibrary(Library library, std::string sysfs) : library_(std::move(library)), sysfs_(std::move(sysfs)) {}
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;
  ~NvmlLibrary() override {
    if (initialised_) (void)shutdown_().ok();
  }

  Status Initialise() {
    std::string missing;
    auto require = [&](auto& symbol) {
      if (!symbol.Load(library_.get())) missing += (missing.empty() ? "" : ", ") + std::string(symbol.name());
    };
    require(init_);
    require(shutdown_);
    require(device_count_);
    require(device_by_index_);
    require(uuid_);
    require(name_);
    require(pci_info_);
    require(memory_);
    if (!missing.empty()) return Unavailable("NVML lacks " + missing);
    // Absent from old drivers, or for devices that never had them: those calls answer UNIMPLEMENTED.
    driver_version_.Load(library_.get());
    mig_mode_.Load(library_.get());
    compute_mode_.Load(library_.get());
    fabric_info_.Load(library_.get());
    nvlink_state_.Load(library_.get());
    nvlink_remote_type_.Load(library_.get());
    nvlink_remote_pci_.Load(library_.get());
    p2p_status_.Load(library_.get());
    compute_processes_.Load(library_.get());
    mps_processes_.Load(library_.get());
    common_ancestor_.Load(library_.get());
    ecc_errors_.Load(library_.get());
    remapped_rows_.Load(library_.get());
    // The newer name stands beside the older one, which drivers may drop.
    if (!clock_limits_.Load(library_.get())) clock_limits_before_.Load(library_.get());
    nvlink_errors_.Load(library_.get());
    event_set_create_.Load(library_.get());
    event_register_.Load(library_.get());
    event_wait_.Load(library_.get());
    event_set_free_.Load(library_.get());
    Status status = init_();
    if (!status.ok())
      return Status(Code::kUnavailable, "NVML does not start: " + status.message(), status.detail());
    initialised_ = true;
    return Status::Ok();
  }

  Result<std::string> DriverVersion() override {
    std::array<char, 96> text{};
    TANDEM_RETURN_IF_ERROR(driver_version_(text.data(), text.size() - 1));
    return std::string(text.data());
  }

  Result<int> DeviceCount() override {
    unsigned int count = 0;
    TANDEM_RETURN_IF_ERROR(device_count_(&count));
    return static_cast<int>(count);
  }

  Result<NvmlDevice> DeviceByIndex(int index) override {
    NvmlDevice device = nullptr;
    TANDEM_RETURN_IF_ERROR(device_by_index_(static_cast<unsigned int>(index), &device));
    return device;
  }

  Result<std::string> Uuid(NvmlDevice device) override {
    std::array<char, 112> text{};
    TANDEM_RETURN_IF_ERROR(uuid_(device, text.data(), text.size() - 1));
    return std::string(text.data());
  }

  Result<std::string> Name(NvmlDevice device) override {
    std::array<char, 112> text{};
    TANDEM_RETURN_IF_ERROR(name_(device, text.data(), text.size() - 1));
    return std::string(text.data());
  }

  Result<std::string> PciBusId(NvmlDevice device) override {
    NvmlPciInfo info{};
    TANDEM_RETURN_IF_ERROR(pci_info_(device, &info));
    return BusId(info);
  }

  Result<uint64_t> MemoryBytes(NvmlDevice device) override {
    NvmlMemory memory{};
    TANDEM_RETURN_IF_ERROR(memory_(device, &memory));
    return static_cast<uint64_t>(memory.total);
  }

  Result<bool> MigEnabled(NvmlDevice device) override {
    unsigned int current = 0;
    unsigned int pending = 0;
    TANDEM_RETURN_IF_ERROR(mig_mode_(device, &current, &pending));
    return current != 0;
  }

  Result<NvmlComputeMode> ComputeMode(NvmlDevice device) override {
    unsigned int mode = 0;
    TANDEM_RETURN_IF_ERROR(compute_mode_(device, &mode));
    return static_cast<NvmlComputeMode>(mode);
  }

  Result<NvmlFabricInfo> FabricInfo(NvmlDevice device) override {
    NvmlGpuFabricInfo info{};
    TANDEM_RETURN_IF_ERROR(fabric_info_(device, &info));
    return NvmlFabricInfo{info.state, info.status};
  }

  Result<uint64_t> MemoryUsedBytes(NvmlDevice device) override {
    NvmlMemory memory{};
    TANDEM_RETURN_IF_ERROR(memory_(device, &memory));
    return static_cast<uint64_t>(memory.used);
  }

  Result<std::vector<NvmlProcess>> ComputeProcesses(NvmlDevice device) override {
    return Processes(compute_processes_, device);
  }

  Result<std::vector<NvmlProcess>> MpsProcesses(NvmlDevice device) override {
    return Processes(mps_processes_, device);
  }

  Result<bool> NvLinkActive(NvmlDevice device, int link) override {
    unsigned int active = 0;
    TANDEM_RETURN_IF_ERROR(nvlink_state_(device, static_cast<unsigned int>(link), &active));
    return active != 0;
  }

  Result<NvmlRemoteType> NvLinkRemoteType(NvmlDevice device, int link) override {
    unsigned int type = 0;
    TANDEM_RETURN_IF_ERROR(nvlink_remote_type_(device, static_cast<unsigned int>(link), &type));
    return static_cast<NvmlRemoteType>(type);
  }

  Result<std::string> NvLinkRemoteBusId(NvmlDevice device, int link) override {
    NvmlPciInfo info{};
    TANDEM_RETURN_IF_ERROR(nvlink_remote_pci_(device, static_cast<unsigned int>(link), &info));
    return BusId(info);
  }

  Result<uint64_t> UncorrectedEccErrors(NvmlDevice device) override {
    unsigned long long count = 0;
    TANDEM_RETURN_IF_ERROR(ecc_errors_(device, kNvmlUncorrected, kNvmlVolatile, &count));
    return static_cast<uint64_t>(count);
  }

  Result<NvmlRemappedRows> RemappedRows(NvmlDevice device) override {
    unsigned int correctable = 0, uncorrectable = 0, pending = 0, failed = 0;
    TANDEM_RETURN_IF_ERROR(remapped_rows_(device, &correctable, &uncorrectable, &pending, &failed));
    return NvmlRemappedRows{correctable, uncorrectable, pending != 0, failed != 0};
  }

  Result<uint64_t> ClockLimits(NvmlDevice device) override {
    unsigned long long reasons = 0;
    const auto& call = clock_limits_.loaded() ? clock_limits_ : clock_limits_before_;
    TANDEM_RETURN_IF_ERROR(call(device, &reasons));
    return static_cast<uint64_t>(reasons);
  }

  Result<NvmlLinkErrors> NvLinkErrors(NvmlDevice device, int link) override {
    std::array<unsigned long long, 4> counts{};
    for (const unsigned int counter : {kNvmlReplays, kNvmlRecoveries, kNvmlCrcFlits, kNvmlCrcData}) {
      TANDEM_RETURN_IF_ERROR(
          nvlink_errors_(device, static_cast<unsigned int>(link), counter, &counts[counter]));
    }
    return NvmlLinkErrors{counts[kNvmlReplays], counts[kNvmlRecoveries],
                          counts[kNvmlCrcFlits] + counts[kNvmlCrcData]};
  }

  Result<std::unique_ptr<NvmlXidEvents>> WatchXids(const std::vector<NvmlDevice>& devices) override {
    if (!event_wait_.loaded() || !event_set_free_.loaded())
      return Unimplemented("this driver reports no events");
    NvmlEventSet set = nullptr;
    TANDEM_RETURN_IF_ERROR(event_set_create_(&set));
    auto events = std::make_unique<XidEvents>(set, event_wait_, event_set_free_);
    Status refused = Unimplemented("there is no device");
    size_t watched = 0;
    for (const NvmlDevice device : devices) {
      const Status status = event_register_(device, kNvmlXidEvent, set);
      if (status.ok()) ++watched;
      if (!status.ok()) refused = status;
    }
    if (watched == 0) return refused;
    return std::unique_ptr<NvmlXidEvents>(std::move(events));
  }

  Result<NvmlP2pStatus> P2pStatus(NvmlDevice a, NvmlDevice b, NvmlP2pIndex index) override {
    unsigned int status = 0;
    TANDEM_RETURN_IF_ERROR(p2p_status_(a, b, static_cast<unsigned int>(index), &status));
    return static_cast<NvmlP2pStatus>(status);
  }

  Result<NvmlTopologyLevel> CommonAncestor(NvmlDevice a, NvmlDevice b) override {
    unsigned int level = 0;
    TANDEM_RETURN_IF_ERROR(common_ancestor_(a, b, &level));
    return static_cast<NvmlTopologyLevel>(level);
  }

  int NumaNode(const std::string& bus_id) override {
    std::string path = sysfs_ + "/" + NormalBusId(bus_id) + "/numa_node";
    std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "re"), &std::fclose);
    int node = -1;
    if (file == nullptr || std::fscanf(file.get(), "%d", &node) != 1 || node < 0) return -1;
    return node;
  }

 private:
  using ProcessCall = Symbol<NvmlDevice, unsigned int*, NvmlProcessInfo*>;

  static Result<std::vector<NvmlProcess>> Processes(const ProcessCall& call, NvmlDevice device) {
    std::vector<NvmlProcessInfo> found(64);
    while (true) {
      auto count = static_cast<unsigned int>(found.size());
      Status status = call(device, &count, found.data());
      if (status.detail().reason == "NVML_INSUFFICIENT_SIZE" && found.size() < 65536) {
        found.resize(found.size() * 4);  // more may come between two calls
        continue;
      }
      TANDEM_RETURN_IF_ERROR(status);
      found.resize(std::min<size_t>(count, found.size()));
      break;
    }
    std::vector<NvmlProcess> processes;
    processes.reserve(found.size());
    for (const NvmlProcessInfo& info : found) {
      processes.push_back({static_cast<int>(info.pid), info.used_memory == kNvmlValueNotAvailable
                                                           ? 0
                                                           : static_cast<uint64_t>(info.used_memory)});
    }
    return processes;
  }

  static std::string BusId(const NvmlPciInfo& info) {
    return std::string(info.bus_id, strnlen(info.bus_id, sizeof(info.bus_id)));
  }

  Library library_;
  std::string sysfs_;
  bool initialised_ = false;

  Symbol<> init_{"nvmlInit_v2"};
  Symbol<> shutdown_{"nvmlShutdown"};
  Symbol<char*, unsigned int> driver_version_{"nvmlSystemGetDriverVersion"};
  Symbol<unsigned int*> device_count_{"nvmlDeviceGetCount_v2"};
  Symbol<unsigned int, NvmlDevice*> device_by_index_{"nvmlDeviceGetHandleByIndex_v2"};
  Symbol<NvmlDevice, char*, unsigned int> uuid_{"nvmlDeviceGetUUID"};
  Symbol<NvmlDevice, char*, unsigned int> name_{"nvmlDeviceGetName"};
  Symbol<NvmlDevice, NvmlPciInfo*> pci_info_{"nvmlDeviceGetPciInfo_v3"};
  Symbol<NvmlDevice, NvmlMemory*> memory_{"nvmlDeviceGetMemoryInfo"};
  Symbol<NvmlDevice, unsigned int*, unsigned int*> mig_mode_{"nvmlDeviceGetMigMode"};
  Symbol<NvmlDevice, unsigned int*> compute_mode_{"nvmlDeviceGetComputeMode"};
  Symbol<NvmlDevice, NvmlGpuFabricInfo*> fabric_info_{"nvmlDeviceGetGpuFabricInfo"};
  Symbol<NvmlDevice, unsigned int, unsigned int*> nvlink_state_{"nvmlDeviceGetNvLinkState"};
  Symbol<NvmlDevice, unsigned int, unsigned int*> nvlink_remote_type_{"nvmlDeviceGetNvLinkRemoteDeviceType"};
  Symbol<NvmlDevice, unsigned int, NvmlPciInfo*> nvlink_remote_pci_{"nvmlDeviceGetNvLinkRemotePciInfo_v2"};
  Symbol<NvmlDevice, NvmlDevice, unsigned int, unsigned int*> p2p_status_{"nvmlDeviceGetP2PStatus"};
  ProcessCall compute_processes_{"nvmlDeviceGetComputeRunningProcesses_v3"};
  ProcessCall mps_processes_{"nvmlDeviceGetMPSComputeRunningProcesses_v3"};
  Symbol<NvmlDevice, unsigned int, unsigned int, unsigned long long*> ecc_errors_{
      "nvmlDeviceGetTotalEccErrors"};
  Symbol<NvmlDevice, unsigned int*, unsigned int*, unsigned int*, unsigned int*> remapped_rows_{
      "nvmlDeviceGetRemappedRows"};
  Symbol<NvmlDevice, unsigned long long*> clock_limits_{"nvmlDeviceGetCurrentClocksEventReasons"};
  Symbol<NvmlDevice, unsigned long long*> clock_limits_before_{"nvmlDeviceGetCurrentClocksThrottleReasons"};
  Symbol<NvmlDevice, unsigned int, unsigned int, unsigned long long*> nvlink_errors_{
      "nvmlDeviceGetNvLinkErrorCounter"};
  Symbol<NvmlEventSet*> event_set_create_{"nvmlEventSetCreate"};
  Symbol<NvmlDevice, unsigned long long, NvmlEventSet> event_register_{"nvmlDeviceRegisterEvents"};
  XidEvents::WaitCall event_wait_{"nvmlEventSetWait_v2"};
  XidEvents::FreeCall event_set_free_{"nvmlEventSetFree"};
  Symbol<NvmlDevice, NvmlDevice, unsigned int*> common_ancestor_{"nvmlDeviceGetTopologyCommonAncestor"};
};

}  // namespace

const char* NvmlP2pStatusName(NvmlP2pStatus status) {
  switch (status) {
    case NvmlP2pStatus::kOk: return "ok";
    case NvmlP2pStatus::kChipsetNotSupported: return "chipset not supported";
    case NvmlP2pStatus::kGpuNotSupported: return "GPU not supported";
    case NvmlP2pStatus::kIohTopologyNotSupported: return "topology not supported";
    case NvmlP2pStatus::kDisabledByRegistryKey: return "disabled by a driver setting";
    case NvmlP2pStatus::kNotSupported: return "not supported";
    case NvmlP2pStatus::kUnknown: break;
  }
  return "unknown";
}

Result<std::unique_ptr<NvmlApi>> OpenNvml(const std::string& library, const std::string& sysfs) {
  Library handle(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (handle == nullptr) {
    const char* reason = dlerror();
    return Unavailable("NVML is not on this machine: " +
                       std::string(reason == nullptr ? "dlopen failed" : reason));
  }
  auto api = std::make_unique<NvmlLibrary>(std::move(handle), sysfs);
  TANDEM_RETURN_IF_ERROR(api->Initialise());
  return std::unique_ptr<NvmlApi>(std::move(api));
}

std::string NormalBusId(const std::string& bus_id) {
  unsigned int domain = 0, bus = 0, device = 0, function = 0;
  int read = 0;
  int fields = std::sscanf(bus_id.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &read);
  if (fields != 4 || read != static_cast<int>(bus_id.size())) return bus_id;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%04x:%02x:%02x.%x", domain, bus, device, function);
  return text.data();
}

}  // namespace tandem
