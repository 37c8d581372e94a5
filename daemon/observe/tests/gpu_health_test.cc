#include "daemon/observe/gpu_health.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "daemon/observe/gpu_watch.h"
#include "drivers/nvml/mock_nvml.h"

namespace tandem::daemon {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::NiceMock;
using testing::Pair;

std::vector<std::pair<GpuFault, std::string>> Faults(const GpuReading& reading, int expected_links = 0) {
  GpuCondition condition;
  condition.expected_links = expected_links;
  Update(reading, &condition);
  return FaultsOf(condition);
}

TEST(GpuHealthTest, EachFaultIsNamed) {
  EXPECT_THAT(Faults({}), IsEmpty());
  GpuReading reading;
  reading.lost = true;
  EXPECT_THAT(Faults(reading), ElementsAre(Pair(GpuFault::kLost, testing::HasSubstr("is lost"))));
  reading = {};
  reading.xids = {48};
  EXPECT_THAT(Faults(reading), ElementsAre(Pair(GpuFault::kXid, "had XID 48 (double-bit ECC error)")));
  reading.xids = {4711};
  EXPECT_THAT(Faults(reading), ElementsAre(Pair(GpuFault::kXid, "had XID 4711")));
  reading = {};
  reading.uncorrected_ecc = 0;
  EXPECT_THAT(Faults(reading), IsEmpty());
  reading.uncorrected_ecc = 1;
  EXPECT_THAT(Faults(reading),
              ElementsAre(Pair(GpuFault::kEcc, testing::HasSubstr("1 uncorrected memory error since"))));
  reading = {};
  reading.rows = NvmlRemappedRows{5, 5, false, false};
  EXPECT_THAT(Faults(reading), IsEmpty()) << "what is replaced is whole";
  reading.rows = NvmlRemappedRows{0, 0, true, true};
  EXPECT_EQ(Faults(reading).size(), 2u);
  reading = {};
  reading.active_links = 18;
  EXPECT_THAT(Faults(reading, 18), IsEmpty());
  reading.active_links = 16;
  EXPECT_THAT(Faults(reading, 18),
              ElementsAre(Pair(GpuFault::kLinks, "has 2 of 18 NVLinks that are not active")));
}

TEST(GpuHealthTest, ClocksThatAreHeldDownByFaultsAreOne) {
  GpuReading reading;
  reading.clock_limits = 0x1 | 0x2 | kNvmlPowerCap | 0x10 | 0x100;  // idle, set, power, boost, display
  EXPECT_THAT(Faults(reading), IsEmpty());
  *reading.clock_limits |= kNvmlSwThermal | kNvmlPowerBrake;
  EXPECT_THAT(Faults(reading),
              ElementsAre(Pair(GpuFault::kClocks, "runs with lower clocks: sw_thermal, power_brake")));
}

TEST(GpuHealthTest, XidsOfProgramsAreCountedAndNoFault) {
  GpuCondition condition;
  for (const uint32_t xid : {13, 31, 43, 45, 68, 109}) {
    GpuReading reading;
    reading.xids = {xid};
    EXPECT_THAT(Update(reading, &condition), IsEmpty()) << xid;
    EXPECT_EQ(condition.xids[xid], 1u);
  }
  EXPECT_THAT(FaultsOf(condition), IsEmpty());
  GpuReading reading;
  reading.xids = {31, 79, 48};
  EXPECT_THAT(Update(reading, &condition), ElementsAre(79u, 48u));
  EXPECT_EQ(condition.xid, 48u);
  Update({}, &condition);
  EXPECT_EQ(FaultsOf(condition).size(), 1u) << "an XID stays a fault";
}

TEST(GpuHealthTest, LinksThatWereTrainedAnewSinceTheStartAreOne) {
  GpuCondition condition;
  condition.errors_at_start = {10, 5, 10};
  GpuReading reading;
  reading.link_errors = NvmlLinkErrors{100, 5, 100};
  Update(reading, &condition);
  EXPECT_THAT(FaultsOf(condition), IsEmpty()) << "replays are repaired";
  reading.link_errors->recoveries = 7;
  Update(reading, &condition);
  EXPECT_THAT(FaultsOf(condition), ElementsAre(Pair(GpuFault::kLinks, testing::HasSubstr("2 times"))));
}

TEST(GpuHealthTest, GpusOfOneModelHaveAsManyLinks) {
  Topology topology = EmulatedTopology(3, 1 << 20);
  topology.gpus[0].switch_links = 18;
  topology.gpus[1].switch_links = 16;
  topology.gpus[2].model = "another";
  topology.gpus[2].switch_links = 0;
  std::vector<GpuReading> first(3);
  first[0].active_links = 18;
  first[1].active_links = 16;
  first[2].active_links = 4;
  EXPECT_THAT(ExpectedLinks(topology, first), ElementsAre(18, 18, 4));
}

// XIDs as a test hands them out.
class Events final : public NvmlXidEvents {
 public:
  explicit Events(std::vector<NvmlXid>& list) : list_(list) {}
  Result<std::optional<NvmlXid>> Next(std::chrono::milliseconds) override {
    if (list_.empty()) return std::optional<NvmlXid>();
    const NvmlXid first = list_.front();
    list_.erase(list_.begin());
    return std::optional(first);
  }

 private:
  std::vector<NvmlXid>& list_;
};

TEST(GpuHealthTest, ReadsNvml) {
  std::vector<NvmlXid> xids;
  auto nvml = std::make_unique<NiceMock<MockNvml>>(2);
  ON_CALL(*nvml, WatchXids).WillByDefault([&](const std::vector<NvmlDevice>& devices) {
    EXPECT_EQ(devices.size(), 1u) << "the node has one of the two";
    return Result<std::unique_ptr<NvmlXidEvents>>(std::make_unique<Events>(xids));
  });
  ON_CALL(*nvml, UncorrectedEccErrors).WillByDefault([](NvmlDevice) { return Result<uint64_t>(2); });
  ON_CALL(*nvml, NvLinkActive).WillByDefault([](NvmlDevice, int link) {
    return link < 4 ? Result<bool>(link < 3) : Result<bool>(InvalidArgument("no link"));
  });
  ON_CALL(*nvml, NvLinkErrors).WillByDefault([](NvmlDevice, int) {
    return Result<NvmlLinkErrors>(NvmlLinkErrors{1, 2, 3});
  });
  const auto source = NvmlHealthSource(std::move(nvml), {"GPU-1", "GPU-gone"});
  xids = {{MockNvml::Device(1), 79}, {MockNvml::Device(1), 31}};
  std::vector<GpuReading> readings = source->Read();
  ASSERT_EQ(readings.size(), 2u);
  EXPECT_THAT(readings[0].xids, ElementsAre(79u, 31u));
  EXPECT_EQ(readings[0].uncorrected_ecc, 2u);
  EXPECT_EQ(readings[0].active_links, 3);
  EXPECT_EQ(readings[0].link_errors->recoveries, 6u);
  EXPECT_FALSE(readings[0].lost);
  EXPECT_FALSE(readings[1].uncorrected_ecc.has_value());
  EXPECT_THAT(source->Read()[0].xids, IsEmpty()) << "each comes once";
}

TEST(GpuHealthTest, ALostGpuIsNamedAndWhatIsNotReportedIsNoFault) {
  auto nvml = std::make_unique<NiceMock<MockNvml>>(1);
  ON_CALL(*nvml, UncorrectedEccErrors).WillByDefault([](NvmlDevice) {
    return Result<uint64_t>(Unimplemented("no ECC"));
  });
  ON_CALL(*nvml, ClockLimits).WillByDefault([](NvmlDevice) {
    return Result<uint64_t>(Unavailable("gone").WithDetail({.reason = "NVML_GPU_IS_LOST"}));
  });
  const std::vector<GpuReading> readings = NvmlHealthSource(std::move(nvml), {"GPU-0"})->Read();
  EXPECT_TRUE(readings[0].lost);
  EXPECT_FALSE(readings[0].uncorrected_ecc.has_value());
  EXPECT_FALSE(readings[0].active_links.has_value());
}

TEST(GpuHealthTest, TheWatchReportsFaultsAndForgetsThemWhenTold) {
  const std::string path = testing::TempDir() + "/gpu_health";
  std::ofstream(path) << "1 xid 31\n1 xid 79\n1 ecc 4\n7 xid 79\nnonsense\n";
  std::vector<std::pair<int, uint32_t>> faults;
  auto watch = GpuWatch::Start(FileHealthSource(path, 2), EmulatedTopology(2, 1 << 20),
                               [&](int gpu, uint32_t xid) { faults.emplace_back(gpu, xid); });
  ASSERT_TRUE(watch.ok()) << watch.status().ToString();
  EXPECT_THAT((*watch)->Conditions()[0].xids, IsEmpty());
  EXPECT_EQ((*watch)->Conditions()[1].xids.size(), 2u);
  EXPECT_EQ(FaultsOf((*watch)->Conditions()[1]).size(), 2u);
  (*watch)->Acknowledge(1);
  EXPECT_THAT(FaultsOf((*watch)->Conditions()[1]), ElementsAre(Pair(GpuFault::kEcc, testing::_)));
  EXPECT_EQ((*watch)->Conditions()[1].xids.size(), 2u) << "counted all the same";
  watch->reset();
  EXPECT_THAT(faults, ElementsAre(Pair(1, 79u)));
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tandem::daemon
