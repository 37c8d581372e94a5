// File: nvml.h
//
// `NvmlApi`: the calls of NVIDIA's management library that Tandem needs, as an interface, so that every error
// path can be tested without a GPU. OpenNvml gives the real one, by dlopen: neither the CUDA toolkit nor a
// driver is needed to build or to start. NVML creates no CUDA context. Nothing outside nvml.cc calls an nvml*
// function.
//
// All methods may be called from any thread. Errors: NVML's own as a Status whose detail.reason is "NVML_"
// and NVML's name for it ("NVML_GPU_IS_LOST"); UNIMPLEMENTED for what the device or the driver does not
// support.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tandem/status.h"

namespace tandem {

// A device as NVML names it; valid while the NvmlApi lives.
using NvmlDevice = void*;

// Numbers below are NVML's own (nvml.h of CUDA 13).
inline constexpr int kNvmlMaxNvLinks = 18;

// The device at an NVLink's other end.
enum class NvmlRemoteType : uint32_t { kGpu = 0, kIbmNpu = 1, kSwitch = 2, kUnknown = 255 };

// The nearest common ancestor of two GPUs on PCIe.
enum class NvmlTopologyLevel : uint32_t {
  kInternal = 0,   // one board
  kSingle = 10,    // one PCIe switch
  kMultiple = 20,  // several PCIe switches, no host bridge
  kHostBridge = 30,
  kNode = 40,  // one NUMA node
  kSystem = 50,
};

// The use that peer access is queried for.
enum class NvmlP2pIndex : uint32_t { kRead = 0, kWrite = 1, kNvLink = 2, kAtomics = 3 };

// The answer; 0 is yes.
enum class NvmlP2pStatus : uint32_t {
  kOk = 0,
  kChipsetNotSupported = 1,
  kGpuNotSupported = 2,
  kIohTopologyNotSupported = 3,
  kDisabledByRegistryKey = 4,
  kNotSupported = 5,
  kUnknown = 6,
};
// "chipset not supported", …
const char* NvmlP2pStatusName(NvmlP2pStatus status);

// The registration of a GPU with its NVSwitch fabric.
struct NvmlFabricInfo {
  uint32_t state = 0;  // 0 not supported, 1 not started, 2 in progress, 3 completed
  int error = 0;       // an nvmlReturn_t; meaningful when completed, 0 is success
};

// NVML's numbers for the compute mode.
enum class NvmlComputeMode : uint32_t {
  kDefault = 0,
  kExclusiveThread = 1,
  kProhibited = 2,
  kExclusiveProcess = 3
};

// A process that holds a context on a device, in the pid namespace of this process.
struct NvmlProcess {
  int pid = 0;
  uint64_t memory_bytes = 0;  // of the device; 0: not known
};

// Rows of memory that a GPU has replaced by spare ones. Pending rows need a reset of the GPU.
struct NvmlRemappedRows {
  uint32_t correctable = 0, uncorrectable = 0;
  bool pending = false, failed = false;
};

// Errors of one NVLink since it was trained. Replays and CRC errors are repaired; a recovery trains the link
// anew.
struct NvmlLinkErrors {
  uint64_t replays = 0, recoveries = 0, crc = 0;
};

// Why clocks are low: bits of NvmlApi::ClockLimits. Others are no fault: idleness, limits that were set.
inline constexpr uint64_t kNvmlPowerCap = 0x4, kNvmlHwSlowdown = 0x8, kNvmlSwThermal = 0x20,
                          kNvmlHwThermal = 0x40, kNvmlPowerBrake = 0x80;

// An error that the driver logs as "Xid", by the number that NVIDIA documents.
struct NvmlXid {
  NvmlDevice device = nullptr;
  uint64_t xid = 0;
};

// XIDs of some GPUs from its creation on. One thread at a time; the NvmlApi outlives it.
class NvmlXidEvents {
 public:
  virtual ~NvmlXidEvents() = default;
  // The next one; none if none comes within `wait`.
  virtual Result<std::optional<NvmlXid>> Next(std::chrono::milliseconds wait) = 0;
};

class NvmlApi {
 public:
  virtual ~NvmlApi() = default;

  // --- the library and its devices ---
  virtual Result<std::string> DriverVersion() = 0;
  virtual Result<int> DeviceCount() = 0;
  // UNAVAILABLE (GPU_IS_LOST) or PERMISSION_DENIED for a device that counts but cannot be used.
  virtual Result<NvmlDevice> DeviceByIndex(int index) = 0;

  // --- one device ---
  virtual Result<std::string> Uuid(NvmlDevice device) = 0;
  virtual Result<std::string> Name(NvmlDevice device) = 0;
  // "00000000:19:00.0" as NVML writes it.
  virtual Result<std::string> PciBusId(NvmlDevice device) = 0;
  virtual Result<uint64_t> MemoryBytes(NvmlDevice device) = 0;
  virtual Result<bool> MigEnabled(NvmlDevice device) = 0;
  virtual Result<NvmlComputeMode> ComputeMode(NvmlDevice device) = 0;
  virtual Result<NvmlFabricInfo> FabricInfo(NvmlDevice device) = 0;
  virtual Result<uint64_t> MemoryUsedBytes(NvmlDevice device) = 0;
  // Processes with a context, MPS clients and the MPS server among them.
  virtual Result<std::vector<NvmlProcess>> ComputeProcesses(NvmlDevice device) = 0;
  // Clients of an MPS server that serves the device, also those without a context on it.
  virtual Result<std::vector<NvmlProcess>> MpsProcesses(NvmlDevice device) = 0;

  // --- NVLink: `link` is 0 to kNvmlMaxNvLinks - 1; INVALID_ARGUMENT beyond what the device has ---
  virtual Result<bool> NvLinkActive(NvmlDevice device, int link) = 0;
  virtual Result<NvmlRemoteType> NvLinkRemoteType(NvmlDevice device, int link) = 0;
  virtual Result<std::string> NvLinkRemoteBusId(NvmlDevice device, int link) = 0;

  // --- faults of one device ---
  // Errors of memory that ECC found and could not correct, since the driver was loaded.
  virtual Result<uint64_t> UncorrectedEccErrors(NvmlDevice device) = 0;
  virtual Result<NvmlRemappedRows> RemappedRows(NvmlDevice device) = 0;
  virtual Result<uint64_t> ClockLimits(NvmlDevice device) = 0;
  virtual Result<NvmlLinkErrors> NvLinkErrors(NvmlDevice device, int link) = 0;
  // UNIMPLEMENTED if no device reports XIDs; devices that do not are left out.
  virtual Result<std::unique_ptr<NvmlXidEvents>> WatchXids(const std::vector<NvmlDevice>& devices) = 0;

  // --- pairs ---
  virtual Result<NvmlP2pStatus> P2pStatus(NvmlDevice a, NvmlDevice b, NvmlP2pIndex index) = 0;
  virtual Result<NvmlTopologyLevel> CommonAncestor(NvmlDevice a, NvmlDevice b) = 0;

  // --- from the kernel, not NVML: the NUMA node of a PCI device as PciBusId names it; -1 where there is none
  // ---
  virtual int NumaNode(const std::string& bus_id) = 0;
};

// Loads and initialises NVML; the library is shut down with the object. UNAVAILABLE when it is absent, too
// old or refuses to start, with the reason. `library` and `sysfs` (the directory of PCI devices) are
// parameters for tests.
Result<std::unique_ptr<NvmlApi>> OpenNvml(const std::string& library = "libnvidia-ml.so.1",
                                          const std::string& sysfs = "/sys/bus/pci/devices");

// NVML's bus ids have eight digits of domain and upper case, the kernel's four and lower case:
// "00000000:3B:00.0" becomes "0000:3b:00.0". Text that is no bus id comes back as it is.
std::string NormalBusId(const std::string& bus_id);

}  // namespace tandem
