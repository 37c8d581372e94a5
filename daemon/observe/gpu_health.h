// File: gpu_health.h
//
// The faults of GPUs as the driver reports them: XIDs, memory errors, NVLinks, clocks that are held down.
// `GpuCondition` is what is known of one GPU. Pure functions, and the sources that readings come from.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "drivers/nvml/nvml.h"
#include "tandem/status.h"

namespace tandem::daemon {

// One look at a GPU. A field without a value is one that the GPU or the driver does not report.
struct GpuReading {
  bool lost = false;           // it has fallen off the bus, or needs a reset
  std::vector<uint32_t> xids;  // since the look before
  std::optional<uint64_t> uncorrected_ecc;
  std::optional<NvmlRemappedRows> rows;
  std::optional<uint64_t> clock_limits;  // bits as of NvmlApi::ClockLimits
  std::optional<int> active_links;
  std::optional<NvmlLinkErrors> link_errors;  // of all links
};

// The kinds of faults, as metrics, alerts and the page name them.
enum class GpuFault : uint8_t { kLost, kXid, kEcc, kRows, kLinks, kClocks };
inline constexpr GpuFault kGpuFaults[] = {GpuFault::kLost, GpuFault::kXid,   GpuFault::kEcc,
                                          GpuFault::kRows, GpuFault::kLinks, GpuFault::kClocks};
// "lost", "xid", "ecc", "rows", "links", "clocks".
std::string_view GpuFaultName(GpuFault fault);

struct GpuCondition {
  GpuReading latest;
  // Count of each XID since tandemd's start.
  std::map<uint32_t, uint64_t> xids;
  // The latest XID for which IsGpuFault holds; 0: none, or acknowledged.
  uint32_t xid = 0;
  // Active NVLinks at the start, or the most NVLinks of a GPU of this model where that is more.
  int expected_links = 0;
  NvmlLinkErrors errors_at_start;
};

// Whether an XID is a fault of the GPU, its links or its driver, and not of the program that ran.
bool IsGpuFault(uint32_t xid);

// Takes a reading up. Returns the XIDs of it that are faults of the GPU.
std::vector<uint32_t> Update(GpuReading reading, GpuCondition* condition);

// The faults: the kind, and a sentence that lacks its subject, the GPU: "had XID 79 (…)".
std::vector<std::pair<GpuFault, std::string>> FaultsOf(const GpuCondition& condition);

// Bits of NvmlApi::ClockLimits with their names: "power_cap", "hw_slowdown", "sw_thermal", "hw_thermal",
// "power_brake".
struct ClockLimit {
  uint64_t bit;
  std::string_view name;
  bool is_fault;  // a power cap is none: it is set on purpose, and reached under load
};
inline constexpr ClockLimit kClockLimits[] = {{kNvmlPowerCap, "power_cap", false},
                                              {kNvmlHwSlowdown, "hw_slowdown", true},
                                              {kNvmlSwThermal, "sw_thermal", true},
                                              {kNvmlHwThermal, "hw_thermal", true},
                                              {kNvmlPowerBrake, "power_brake", true}};

// Where readings come from. One thread.
class GpuHealthSource {
 public:
  virtual ~GpuHealthSource() = default;
  // Readings of all GPUs, in the node's order.
  virtual std::vector<GpuReading> Read() = 0;
};

// NVML's. `gpus` are names of the node's topology, whose shares of one device have its condition.
std::unique_ptr<GpuHealthSource> NvmlHealthSource(std::unique_ptr<NvmlApi> nvml,
                                                  std::vector<std::string> gpus);

// The file's, for tests on emulated GPUs: lines "GPU NAME VALUE". Names: xid (each line is one more), ecc,
// rows_pending, rows_failed, active_links, link_recoveries, link_replays, clocks (a name of kClockLimits),
// lost. A file that is not there has no faults.
std::unique_ptr<GpuHealthSource> FileHealthSource(std::string path, size_t gpus);

}  // namespace tandem::daemon
