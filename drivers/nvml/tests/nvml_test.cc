#include "drivers/nvml/nvml.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace tandem {
namespace {

using ::testing::HasSubstr;

class NvmlTest : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("TANDEM_FAKE_NVML"); }

  static std::unique_ptr<NvmlApi> OpenFake(const std::string& sysfs = "/nonexistent") {
    Result<std::unique_ptr<NvmlApi>> nvml = OpenNvml(TANDEM_FAKE_NVML_PATH, sysfs);
    EXPECT_TRUE(nvml.ok()) << nvml.status().ToString();
    return nvml.ok() ? std::move(*nvml) : nullptr;
  }
};

TEST_F(NvmlTest, AnAbsentLibraryIsUnavailable) {
  Result<std::unique_ptr<NvmlApi>> nvml = OpenNvml("libtandem-no-such-library.so");
  ASSERT_FALSE(nvml.ok());
  EXPECT_EQ(nvml.status().code(), Code::kUnavailable);
  EXPECT_THAT(nvml.status().message(), HasSubstr("libtandem-no-such-library.so"));
}

TEST_F(NvmlTest, ALibraryThatIsNotNvmlIsUnavailable) {
  Result<std::unique_ptr<NvmlApi>> nvml = OpenNvml("libc.so.6");
  ASSERT_FALSE(nvml.ok());
  EXPECT_EQ(nvml.status().code(), Code::kUnavailable);
  EXPECT_THAT(nvml.status().message(), HasSubstr("nvmlInit_v2, nvmlShutdown"));
}

TEST_F(NvmlTest, ADriverThatDoesNotAnswerIsUnavailable) {
  setenv("TANDEM_FAKE_NVML", "init", 1);
  Result<std::unique_ptr<NvmlApi>> nvml = OpenNvml(TANDEM_FAKE_NVML_PATH);
  ASSERT_FALSE(nvml.ok());
  EXPECT_EQ(nvml.status().code(), Code::kUnavailable);
  EXPECT_THAT(nvml.status().message(), HasSubstr("DRIVER_NOT_LOADED (9)"));
  EXPECT_EQ(nvml.status().detail().reason, "NVML_DRIVER_NOT_LOADED");
}

TEST_F(NvmlTest, EveryCallPassesItsValues) {
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(*nvml->DriverVersion(), "580.00.fake");
  EXPECT_EQ(*nvml->DeviceCount(), 1);
  Result<NvmlDevice> device = nvml->DeviceByIndex(0);
  ASSERT_TRUE(device.ok());
  EXPECT_EQ(*nvml->Uuid(*device), "GPU-fake");
  EXPECT_EQ(*nvml->Name(*device), "Fake GPU");
  EXPECT_EQ(*nvml->PciBusId(*device), "00000000:3B:00.0");
  EXPECT_EQ(*nvml->MemoryBytes(*device), 12345u);
  EXPECT_EQ(*nvml->MemoryUsedBytes(*device), 2u);
  Result<std::vector<NvmlProcess>> processes = nvml->ComputeProcesses(*device);
  ASSERT_TRUE(processes.ok()) << processes.status().ToString();
  ASSERT_EQ(processes->size(), 100u);
  EXPECT_EQ((*processes)[0].pid, 1000);
  EXPECT_EQ((*processes)[0].memory_bytes, 0u);
  EXPECT_EQ((*processes)[99].pid, 1099);
  EXPECT_EQ((*processes)[99].memory_bytes, 99u);
  EXPECT_EQ(nvml->MpsProcesses(*device).status().code(), Code::kUnimplemented);
  EXPECT_TRUE(*nvml->MigEnabled(*device));
  EXPECT_EQ(*nvml->ComputeMode(*device), NvmlComputeMode::kExclusiveProcess);
  Result<NvmlFabricInfo> fabric = nvml->FabricInfo(*device);
  ASSERT_TRUE(fabric.ok());
  EXPECT_EQ(fabric->state, 3u);
  EXPECT_EQ(fabric->error, 6);
  EXPECT_TRUE(*nvml->NvLinkActive(*device, 0));
  EXPECT_FALSE(*nvml->NvLinkActive(*device, 1));
  EXPECT_EQ(nvml->NvLinkActive(*device, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(*nvml->NvLinkRemoteType(*device, 0), NvmlRemoteType::kSwitch);
  EXPECT_EQ(*nvml->NvLinkRemoteBusId(*device, 0), std::string(32, 'x'));
  EXPECT_EQ(*nvml->P2pStatus(*device, *device, NvmlP2pIndex::kRead), NvmlP2pStatus::kOk);
  EXPECT_EQ(*nvml->P2pStatus(*device, *device, NvmlP2pIndex::kWrite), NvmlP2pStatus::kDisabledByRegistryKey);
}

TEST_F(NvmlTest, FaultsComeAsNvmlCountsThem) {
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  ASSERT_NE(nvml, nullptr);
  const NvmlDevice device = *nvml->DeviceByIndex(0);
  EXPECT_EQ(*nvml->UncorrectedEccErrors(device), 3u);
  const Result<NvmlRemappedRows> rows = nvml->RemappedRows(device);
  ASSERT_TRUE(rows.ok());
  EXPECT_EQ(rows->correctable, 1u);
  EXPECT_EQ(rows->uncorrectable, 2u);
  EXPECT_TRUE(rows->pending);
  EXPECT_FALSE(rows->failed);
  EXPECT_EQ(*nvml->ClockLimits(device), kNvmlHwSlowdown | kNvmlHwThermal);
  const Result<NvmlLinkErrors> errors = nvml->NvLinkErrors(device, 1);
  ASSERT_TRUE(errors.ok());
  EXPECT_EQ(errors->replays, 10u);
  EXPECT_EQ(errors->recoveries, 11u);
  EXPECT_EQ(errors->crc, 25u);
  EXPECT_EQ(nvml->NvLinkErrors(device, 2).status().code(), Code::kInvalidArgument);
}

TEST_F(NvmlTest, XidsComeOneByOne) {
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  ASSERT_NE(nvml, nullptr);
  void* library = dlopen(TANDEM_FAKE_NVML_PATH, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto* open_sets = reinterpret_cast<int (*)()>(dlsym(library, "FakeNvmlOpenSets"));
  ASSERT_NE(open_sets, nullptr);
  const std::vector<NvmlDevice> devices = {*nvml->DeviceByIndex(0)};
  auto events = nvml->WatchXids(devices);
  ASSERT_TRUE(events.ok()) << events.status().ToString();
  EXPECT_EQ(open_sets(), 1);
  const std::chrono::milliseconds wait(5);
  const auto first = (*events)->Next(wait);
  ASSERT_TRUE(first.ok() && first->has_value()) << first.status().ToString();
  EXPECT_EQ((*first)->device, devices[0]);
  EXPECT_EQ((*first)->xid, 79u);
  const auto none = (*events)->Next(wait);
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_FALSE(none->has_value());
  EXPECT_EQ((*events)->Next(wait).status().detail().reason, "NVML_GPU_IS_LOST");
  events->reset();
  EXPECT_EQ(open_sets(), 0);
  setenv("TANDEM_FAKE_NVML", "no_events", 1);
  EXPECT_EQ(nvml->WatchXids(devices).status().code(), Code::kUnimplemented);
  EXPECT_EQ(open_sets(), 0);
  dlclose(library);
}

TEST_F(NvmlTest, TheLibraryIsShutDownWithTheObject) {
  void* library = dlopen(TANDEM_FAKE_NVML_PATH, RTLD_NOW);
  ASSERT_NE(library, nullptr);
  auto* open_count = reinterpret_cast<int (*)()>(dlsym(library, "FakeNvmlOpenCount"));
  ASSERT_NE(open_count, nullptr);
  int before = open_count();
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  EXPECT_EQ(open_count(), before + 1);
  nvml.reset();
  EXPECT_EQ(open_count(), before);
  dlclose(library);
}

TEST_F(NvmlTest, ErrorsKeepNvmlsName) {
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(nvml->DeviceByIndex(1).status().code(), Code::kInvalidArgument);
  setenv("TANDEM_FAKE_NVML", "lost", 1);
  Status lost = nvml->DeviceByIndex(0).status();
  EXPECT_EQ(lost.code(), Code::kUnavailable);
  EXPECT_EQ(lost.detail().reason, "NVML_GPU_IS_LOST");
  EXPECT_EQ(lost.message(), "nvmlDeviceGetHandleByIndex_v2: GPU_IS_LOST (15)");
}

TEST_F(NvmlTest, AFunctionThatTheDriverLacksIsUnimplemented) {
  std::unique_ptr<NvmlApi> nvml = OpenFake();
  ASSERT_NE(nvml, nullptr);
  Status status = nvml->CommonAncestor(nullptr, nullptr).status();
  EXPECT_EQ(status.code(), Code::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("nvmlDeviceGetTopologyCommonAncestor"));
}

TEST_F(NvmlTest, NumaNodesComeFromTheKernel) {
  namespace fs = std::filesystem;
  std::string pattern = ::testing::TempDir() + "nvml_test_XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  fs::create_directories(pattern + "/0000:3b:00.0");
  fs::create_directories(pattern + "/0000:3c:00.0");
  fs::create_directories(pattern + "/0000:3d:00.0");
  std::ofstream(pattern + "/0000:3b:00.0/numa_node") << "1\n";
  std::ofstream(pattern + "/0000:3c:00.0/numa_node") << "-1\n";
  std::ofstream(pattern + "/0000:3d:00.0/numa_node") << "soon\n";
  std::unique_ptr<NvmlApi> nvml = OpenFake(pattern);
  ASSERT_NE(nvml, nullptr);
  EXPECT_EQ(nvml->NumaNode("00000000:3B:00.0"), 1);
  EXPECT_EQ(nvml->NumaNode("00000000:3C:00.0"), -1);
  EXPECT_EQ(nvml->NumaNode("00000000:3D:00.0"), -1);
  EXPECT_EQ(nvml->NumaNode("00000000:3E:00.0"), -1);
  fs::remove_all(pattern);
}

TEST_F(NvmlTest, BusIdsAreWrittenAsTheKernelDoes) {
  EXPECT_EQ(NormalBusId("00000000:3B:00.0"), "0000:3b:00.0");
  EXPECT_EQ(NormalBusId("0000:3b:00.0"), "0000:3b:00.0");
  EXPECT_EQ(NormalBusId("00010000:07:1F.7"), "10000:07:1f.7");
  EXPECT_EQ(NormalBusId("nonsense"), "nonsense");
  EXPECT_EQ(NormalBusId("0000:3b:00.0 "), "0000:3b:00.0 ");
  EXPECT_EQ(NormalBusId(""), "");
}

TEST_F(NvmlTest, P2pStatusesHaveNames) {
  EXPECT_STREQ(NvmlP2pStatusName(NvmlP2pStatus::kOk), "ok");
  EXPECT_STREQ(NvmlP2pStatusName(NvmlP2pStatus::kGpuNotSupported), "GPU not supported");
  EXPECT_STREQ(NvmlP2pStatusName(static_cast<NvmlP2pStatus>(99)), "unknown");
}

// On a machine with a driver this runs against the real library; elsewhere it must say why there is none.
TEST_F(NvmlTest, TheMachinesOwnLibraryOpensOrSaysWhyNot) {
  Result<std::unique_ptr<NvmlApi>> nvml = OpenNvml();
  if (!nvml.ok()) {
    EXPECT_EQ(nvml.status().code(), Code::kUnavailable);
    EXPECT_FALSE(nvml.status().message().empty());
    return;
  }
  Result<int> count = (*nvml)->DeviceCount();
  ASSERT_TRUE(count.ok()) << count.status().ToString();
  EXPECT_GE(*count, 0);
}

}  // namespace
}  // namespace tandem
