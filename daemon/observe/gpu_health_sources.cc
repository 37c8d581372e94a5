// Readings by NVML, and by a file for emulated GPUs.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include "common/gpu_name.h"
#include "common/log.h"
#include "daemon/observe/gpu_health.h"

namespace tandem::daemon {
namespace {

// XIDs are asked for at each look, the rest at one of so many: it takes a hundred calls a GPU.
constexpr uint64_t kLooksAReading = 10;

bool MeansLost(const Status& status) {
  return status.detail().reason == "NVML_GPU_IS_LOST" || status.detail().reason == "NVML_RESET_REQUIRED";
}

class NvmlSource final : public GpuHealthSource {
 public:
  NvmlSource(std::unique_ptr<NvmlApi> nvml, std::vector<std::string> gpus)
      : nvml_(std::move(nvml)), gpus_(std::move(gpus)), devices_(gpus_.size(), nullptr) {
    std::vector<NvmlDevice> watched;
    const int count = nvml_->DeviceCount().ok() ? *nvml_->DeviceCount() : 0;
    for (int i = 0; i < count; ++i) {
      const Result<NvmlDevice> device = nvml_->DeviceByIndex(i);
      if (!device.ok()) continue;
      const Result<std::string> uuid = nvml_->Uuid(*device);
      bool is_own = false;
      for (size_t gpu = 0; uuid.ok() && gpu < gpus_.size(); ++gpu) {
        if (DeviceUuid(gpus_[gpu]) != *uuid) continue;
        devices_[gpu] = *device;
        is_own = true;
      }
      if (is_own) watched.push_back(*device);
    }
    auto events = nvml_->WatchXids(watched);
    if (events.ok()) {
      events_ = std::move(*events);
    } else {
      log::Warning("XIDs of the GPUs are not seen: " + events.status().message());
    }
  }

  std::vector<GpuReading> Read() override {
    if (looks_++ % kLooksAReading == 0) ReadAll();
    std::vector<GpuReading> readings = readings_;
    TakeXids(readings);
    return readings;
  }

 private:
  // All but XIDs.
  void ReadAll() {
    std::vector<GpuReading> readings(gpus_.size());
    for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
      if (devices_[gpu] == nullptr) continue;
      // Shares of a device have one condition.
      const auto first = std::find(devices_.begin(), devices_.end(), devices_[gpu]) - devices_.begin();
      if (static_cast<size_t>(first) < gpu) {
        readings[gpu] = readings[static_cast<size_t>(first)];
      } else {
        ReadOne(devices_[gpu], readings[gpu]);
      }
    }
    readings_ = std::move(readings);
  }

  // Takes the XIDs that NVML has, and waits for none.
  void TakeXids(std::vector<GpuReading>& readings) {
    constexpr int kMost = 256;  // a GPU in a loop of faults leaves some for the next look
    for (int i = 0; events_ != nullptr && i < kMost; ++i) {
      const auto event = events_->Next(std::chrono::milliseconds(0));
      if (!event.ok()) {
        if (std::exchange(events_failed_, true)) return;
        log::Warning("XIDs of the GPUs are not seen for now: " + event.status().message());
        return;
      }
      events_failed_ = false;
      if (!event->has_value()) return;
      for (size_t gpu = 0; gpu < gpus_.size(); ++gpu) {
        if (devices_[gpu] == (*event)->device)
          readings[gpu].xids.push_back(static_cast<uint32_t>((*event)->xid));
      }
    }
  }

  template <typename T>
  static std::optional<T> Value(Result<T> result, GpuReading& reading) {
    if (result.ok()) return std::move(*result);
    reading.lost |= MeansLost(result.status());
    return std::nullopt;
  }

  void ReadOne(NvmlDevice device, GpuReading& reading) {
    reading.uncorrected_ecc = Value(nvml_->UncorrectedEccErrors(device), reading);
    reading.rows = Value(nvml_->RemappedRows(device), reading);
    reading.clock_limits = Value(nvml_->ClockLimits(device), reading);
    for (int link = 0; link < kNvmlMaxNvLinks; ++link) {
      const std::optional<bool> active = Value(nvml_->NvLinkActive(device, link), reading);
      if (!active.has_value()) continue;
      reading.active_links = reading.active_links.value_or(0) + (*active ? 1 : 0);
      if (!*active) continue;
      const std::optional<NvmlLinkErrors> errors = Value(nvml_->NvLinkErrors(device, link), reading);
      if (!errors.has_value()) continue;
      NvmlLinkErrors sum = reading.link_errors.value_or(NvmlLinkErrors());
      sum.replays += errors->replays;
      sum.recoveries += errors->recoveries;
      sum.crc += errors->crc;
      reading.link_errors = sum;
    }
  }

  const std::unique_ptr<NvmlApi> nvml_;
  const std::vector<std::string> gpus_;
  std::vector<NvmlDevice> devices_;  // by GPU; null: NVML does not know it
  std::unique_ptr<NvmlXidEvents> events_;
  bool events_failed_ = false;
  uint64_t looks_ = 0;
  std::vector<GpuReading> readings_;  // the latest, without XIDs
};

class FileSource final : public GpuHealthSource {
 public:
  FileSource(std::string path, size_t gpus) : path_(std::move(path)), seen_(gpus, 0) {}

  std::vector<GpuReading> Read() override {
    std::vector<GpuReading> readings(seen_.size());
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      size_t gpu = 0;
      std::string name, value;
      if (words >> gpu >> name >> value && gpu < readings.size()) Take(name, value, readings[gpu]);
    }
    for (size_t gpu = 0; gpu < readings.size(); ++gpu) {
      std::vector<uint32_t>& xids = readings[gpu].xids;
      const size_t all = xids.size();
      xids.erase(xids.begin(), xids.begin() + static_cast<ptrdiff_t>(std::min(seen_[gpu], all)));
      seen_[gpu] = all;
    }
    return readings;
  }

 private:
  static void Take(const std::string& name, const std::string& value, GpuReading& reading) {
    uint64_t number = 0;
    std::istringstream(value) >> number;
    NvmlRemappedRows rows = reading.rows.value_or(NvmlRemappedRows());
    NvmlLinkErrors errors = reading.link_errors.value_or(NvmlLinkErrors());
    if (name == "xid") reading.xids.push_back(static_cast<uint32_t>(number));
    if (name == "lost") reading.lost = number != 0;
    if (name == "ecc") reading.uncorrected_ecc = number;
    if (name == "active_links") reading.active_links = static_cast<int>(number);
    if (name == "rows_pending") rows.pending = number != 0;
    if (name == "rows_failed") rows.failed = number != 0;
    if (name == "link_recoveries") errors.recoveries = number;
    if (name == "link_replays") errors.replays = number;
    if (name.starts_with("rows_")) reading.rows = rows;
    if (name.starts_with("link_")) reading.link_errors = errors;
    for (const ClockLimit& limit : kClockLimits) {
      if (name == "clocks" && value == limit.name)
        reading.clock_limits = reading.clock_limits.value_or(0) | limit.bit;
    }
  }

  const std::string path_;
  std::vector<size_t> seen_;  // XIDs of each GPU
};

}  // namespace

std::unique_ptr<GpuHealthSource> NvmlHealthSource(std::unique_ptr<NvmlApi> nvml,
                                                  std::vector<std::string> gpus) {
  return std::make_unique<NvmlSource>(std::move(nvml), std::move(gpus));
}

std::unique_ptr<GpuHealthSource> FileHealthSource(std::string path, size_t gpus) {
  return std::make_unique<FileSource>(std::move(path), gpus);
}

}  // namespace tandem::daemon
