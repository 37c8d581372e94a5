// File: mock_nvml.h
//
// `MockNvml`: an NVML of invented GPUs for tests. The constructor sets defaults for `gpus` healthy GPUs
// without NVLinks; tests override single calls with ON_CALL.
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "drivers/nvml/nvml.h"

namespace tandem {

class MockNvml : public NvmlApi {
 public:
  MOCK_METHOD(Result<std::string>, DriverVersion, (), (override));
  MOCK_METHOD(Result<int>, DeviceCount, (), (override));
  MOCK_METHOD(Result<NvmlDevice>, DeviceByIndex, (int index), (override));
  MOCK_METHOD(Result<std::string>, Uuid, (NvmlDevice device), (override));
  MOCK_METHOD(Result<std::string>, Name, (NvmlDevice device), (override));
  MOCK_METHOD(Result<std::string>, PciBusId, (NvmlDevice device), (override));
  MOCK_METHOD(Result<uint64_t>, MemoryBytes, (NvmlDevice device), (override));
  MOCK_METHOD(Result<bool>, MigEnabled, (NvmlDevice device), (override));
  MOCK_METHOD(Result<NvmlComputeMode>, ComputeMode, (NvmlDevice device), (override));
  MOCK_METHOD(Result<NvmlFabricInfo>, FabricInfo, (NvmlDevice device), (override));
  MOCK_METHOD(Result<uint64_t>, MemoryUsedBytes, (NvmlDevice device), (override));
  MOCK_METHOD(Result<std::vector<NvmlProcess>>, ComputeProcesses, (NvmlDevice device), (override));
  MOCK_METHOD(Result<std::vector<NvmlProcess>>, MpsProcesses, (NvmlDevice device), (override));
  MOCK_METHOD(Result<bool>, NvLinkActive, (NvmlDevice device, int link), (override));
  MOCK_METHOD(Result<NvmlRemoteType>, NvLinkRemoteType, (NvmlDevice device, int link), (override));
  MOCK_METHOD(Result<std::string>, NvLinkRemoteBusId, (NvmlDevice device, int link), (override));
  MOCK_METHOD(Result<uint64_t>, UncorrectedEccErrors, (NvmlDevice device), (override));
  MOCK_METHOD(Result<NvmlRemappedRows>, RemappedRows, (NvmlDevice device), (override));
  MOCK_METHOD(Result<uint64_t>, ClockLimits, (NvmlDevice device), (override));
  MOCK_METHOD(Result<NvmlLinkErrors>, NvLinkErrors, (NvmlDevice device, int link), (override));
  MOCK_METHOD(Result<std::unique_ptr<NvmlXidEvents>>, WatchXids, (const std::vector<NvmlDevice>& devices),
              (override));
  MOCK_METHOD(Result<NvmlP2pStatus>, P2pStatus, (NvmlDevice a, NvmlDevice b, NvmlP2pIndex index), (override));
  MOCK_METHOD(Result<NvmlTopologyLevel>, CommonAncestor, (NvmlDevice a, NvmlDevice b), (override));
  MOCK_METHOD(int, NumaNode, (const std::string& bus_id), (override));

  explicit MockNvml(int gpus) {
    using ::testing::_;
    ON_CALL(*this, DriverVersion).WillByDefault([] { return Result<std::string>("580.1"); });
    ON_CALL(*this, DeviceCount).WillByDefault([gpus] { return Result<int>(gpus); });
    ON_CALL(*this, DeviceByIndex).WillByDefault([](int index) { return Result<NvmlDevice>(Device(index)); });
    ON_CALL(*this, Uuid).WillByDefault([](NvmlDevice device) {
      return Result<std::string>("GPU-" + std::to_string(Index(device)));
    });
    ON_CALL(*this, Name).WillByDefault([](NvmlDevice) { return Result<std::string>("Test GPU"); });
    ON_CALL(*this, PciBusId).WillByDefault([](NvmlDevice device) {
      return Result<std::string>(BusId(Index(device)));
    });
    ON_CALL(*this, MemoryBytes).WillByDefault([](NvmlDevice) {
      return Result<uint64_t>(uint64_t{80} << 30);
    });
    ON_CALL(*this, MigEnabled).WillByDefault([](NvmlDevice) { return Result<bool>(false); });
    ON_CALL(*this, ComputeMode).WillByDefault([](NvmlDevice) {
      return Result<NvmlComputeMode>(NvmlComputeMode::kDefault);
    });
    ON_CALL(*this, FabricInfo).WillByDefault([](NvmlDevice) {
      return Result<NvmlFabricInfo>(Unimplemented("not supported"));
    });
    ON_CALL(*this, MemoryUsedBytes).WillByDefault([](NvmlDevice) {
      return Result<uint64_t>(uint64_t{1} << 30);
    });
    ON_CALL(*this, ComputeProcesses).WillByDefault([](NvmlDevice) {
      return Result<std::vector<NvmlProcess>>(std::vector<NvmlProcess>());
    });
    ON_CALL(*this, MpsProcesses).WillByDefault([](NvmlDevice) {
      return Result<std::vector<NvmlProcess>>(std::vector<NvmlProcess>());
    });
    ON_CALL(*this, NvLinkActive).WillByDefault([](NvmlDevice, int) {
      return Result<bool>(Unimplemented("no NVLink"));
    });
    ON_CALL(*this, NvLinkRemoteType).WillByDefault([](NvmlDevice, int) {
      return Result<NvmlRemoteType>(NvmlRemoteType::kGpu);
    });
    ON_CALL(*this, NvLinkRemoteBusId).WillByDefault([](NvmlDevice, int) {
      return Result<std::string>(Unimplemented("no NVLink"));
    });
    ON_CALL(*this, UncorrectedEccErrors).WillByDefault([](NvmlDevice) { return Result<uint64_t>(0); });
    ON_CALL(*this, RemappedRows).WillByDefault([](NvmlDevice) {
      return Result<NvmlRemappedRows>(NvmlRemappedRows());
    });
    ON_CALL(*this, ClockLimits).WillByDefault([](NvmlDevice) { return Result<uint64_t>(0); });
    ON_CALL(*this, NvLinkErrors).WillByDefault([](NvmlDevice, int) {
      return Result<NvmlLinkErrors>(Unimplemented("no NVLink"));
    });
    ON_CALL(*this, WatchXids).WillByDefault([](const std::vector<NvmlDevice>&) {
      return Result<std::unique_ptr<NvmlXidEvents>>(Unimplemented("no events"));
    });
    ON_CALL(*this, P2pStatus).WillByDefault([](NvmlDevice, NvmlDevice, NvmlP2pIndex) {
      return Result<NvmlP2pStatus>(NvmlP2pStatus::kOk);
    });
    ON_CALL(*this, CommonAncestor).WillByDefault([](NvmlDevice, NvmlDevice) {
      return Result<NvmlTopologyLevel>(NvmlTopologyLevel::kSystem);
    });
    ON_CALL(*this, NumaNode).WillByDefault([](const std::string&) { return 0; });
  }

  static NvmlDevice Device(int index) {
    return reinterpret_cast<NvmlDevice>(static_cast<uintptr_t>(index + 1));
  }
  static int Index(NvmlDevice device) { return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1; }
  // As NVML writes it: eight digits of domain, upper case.
  static std::string BusId(int index) {
    char text[32];
    std::snprintf(text, sizeof(text), "00000000:%02X:00.0", 0xA0 + index);
    return text;
  }
};

}  // namespace tandem
