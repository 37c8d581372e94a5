#include "daemon/topology/nvml_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "daemon/topology/topology_file.h"
#include "drivers/nvml/mock_nvml.h"

namespace tandem {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::NiceMock;
using ::testing::Return;

using Nvml = NiceMock<MockNvml>;

Status Lost() { return Unavailable("GPU_IS_LOST (15)"); }

// Gives GPU i one active link for each element of links[i]: another GPU's index, or -1 for a switch.
void Plug(Nvml& nvml, std::vector<std::vector<int>> links) {
  ON_CALL(nvml, NvLinkActive).WillByDefault([links](NvmlDevice device, int link) -> Result<bool> {
    if (link >= static_cast<int>(links[MockNvml::Index(device)].size()))
      return InvalidArgument("no such link");
    return true;
  });
  ON_CALL(nvml, NvLinkRemoteType)
      .WillByDefault([links](NvmlDevice device, int link) -> Result<NvmlRemoteType> {
        return links[MockNvml::Index(device)][link] < 0 ? NvmlRemoteType::kSwitch : NvmlRemoteType::kGpu;
      });
  ON_CALL(nvml, NvLinkRemoteBusId).WillByDefault([links](NvmlDevice device, int link) -> Result<std::string> {
    int remote = links[MockNvml::Index(device)][link];
    return remote < 0 ? Result<std::string>(std::string("00000000:F0:00.0")) : MockNvml::BusId(remote);
  });
}

NvmlTopology MustBuild(Nvml& nvml) {
  Result<NvmlTopology> built = BuildNvmlTopology(nvml);
  EXPECT_TRUE(built.ok()) << built.status().ToString();
  return built.ok() ? *built : NvmlTopology();
}

TEST(NvmlTopology, SwitchedNode) {
  Nvml nvml(8);
  Plug(nvml, std::vector<std::vector<int>>(8, std::vector<int>(18, -1)));
  ON_CALL(nvml, FabricInfo).WillByDefault(Return(NvmlFabricInfo{3, 0}));
  ON_CALL(nvml, NumaNode).WillByDefault([](const std::string& bus_id) {
    return bus_id < "00000000:A4" ? 0 : 1;
  });
  NvmlTopology built = MustBuild(nvml);
  EXPECT_THAT(built.warnings, IsEmpty());
  EXPECT_EQ(built.driver_version, "580.1");
  const Topology& topology = built.topology;
  EXPECT_EQ(topology.source, "nvml");
  EXPECT_EQ(Classify(topology), TopologyClass::kNvSwitch);
  EXPECT_EQ(topology.LinkCount(0, 7), 18);
  const GpuInfo& gpu = topology.gpus[5];
  EXPECT_EQ(gpu.uuid, "GPU-5");
  EXPECT_EQ(gpu.model, "Test GPU");
  EXPECT_EQ(gpu.pci_bus_id, "0000:a5:00.0");
  EXPECT_EQ(gpu.numa_node, 1);
  EXPECT_EQ(gpu.memory_bytes, uint64_t{80} << 30);
  EXPECT_EQ(gpu.fabric_state, "completed");
}

TEST(NvmlTopology, TheCubeMeshOfADgx1IsFound) {
  Result<Topology> fixture = LoadTopology(TANDEM_SOURCE_DIR "/tests/fixtures/topology/dgx-1v.toml");
  ASSERT_TRUE(fixture.ok());
  std::vector<std::vector<int>> links(8);
  for (int i = 0; i < 8; ++i) {
    for (int j = 0; j < 8; ++j) links[i].insert(links[i].end(), fixture->nvlinks[i][j], j);
  }
  Nvml nvml(8);
  Plug(nvml, links);
  NvmlTopology built = MustBuild(nvml);
  EXPECT_THAT(built.warnings, IsEmpty());
  EXPECT_EQ(built.topology.nvlinks, fixture->nvlinks);
  EXPECT_EQ(Classify(built.topology), TopologyClass::kHybridCubeMesh);
}

TEST(NvmlTopology, WithoutNvLinkItIsPcieOnly) {
  Nvml nvml(2);
  NvmlTopology built = MustBuild(nvml);
  EXPECT_EQ(Classify(built.topology), TopologyClass::kPcieOnly);
  EXPECT_THAT(built.warnings, IsEmpty());
}

TEST(NvmlTopology, InactiveAndCpuLinksDoNotCount) {
  Nvml nvml(2);
  Plug(nvml, {{1, 1, 1}, {0, 0, 0}});
  ON_CALL(nvml, NvLinkActive).WillByDefault([](NvmlDevice, int link) -> Result<bool> {
    if (link > 2) return InvalidArgument("no such link");
    return link != 0;
  });
  ON_CALL(nvml, NvLinkRemoteType(_, 1)).WillByDefault(Return(NvmlRemoteType::kIbmNpu));
  NvmlTopology built = MustBuild(nvml);
  EXPECT_EQ(built.topology.nvlinks[0][1], 1);
  EXPECT_THAT(built.warnings, IsEmpty());
}

TEST(NvmlTopology, ADriverThatKnowsNoRemoteTypesStillFindsGpus) {
  Nvml nvml(2);
  Plug(nvml, {{1, 1}, {0, 0}});
  ON_CALL(nvml, NvLinkRemoteType).WillByDefault([](NvmlDevice, int) -> Result<NvmlRemoteType> {
    return Unimplemented("old driver");
  });
  EXPECT_EQ(MustBuild(nvml).topology.nvlinks[0][1], 2);
}

TEST(NvmlTopology, LinkErrorsAreWarningsAndNoLinks) {
  Nvml nvml(2);
  Plug(nvml, {{1, 1, 1, 1}, {0, 0, 0, 0}});
  ON_CALL(nvml, NvLinkActive(MockNvml::Device(0), 0)).WillByDefault([](NvmlDevice, int) -> Result<bool> {
    return Lost();
  });
  ON_CALL(nvml, NvLinkRemoteType(MockNvml::Device(0), 1))
      .WillByDefault([](NvmlDevice, int) -> Result<NvmlRemoteType> { return Lost(); });
  ON_CALL(nvml, NvLinkRemoteBusId(MockNvml::Device(0), 2))
      .WillByDefault([](NvmlDevice, int) -> Result<std::string> { return std::string("00000000:EE:00.0"); });
  NvmlTopology built = MustBuild(nvml);
  EXPECT_EQ(built.topology.nvlinks[0][1], 1);
  EXPECT_EQ(built.topology.nvlinks[1][0], 1);
  EXPECT_THAT(built.warnings,
              ElementsAre(HasSubstr("GPU-0: NVLink 0 unknown: GPU_IS_LOST"),
                          HasSubstr("GPU-0: NVLink 1 is not counted: GPU_IS_LOST"),
                          HasSubstr("GPU-0: NVLink 2 is not counted: it ends at 0000:ee:00.0"),
                          "GPU-0 reports 1 NVLinks to GPU-1, which reports 4 back"));
}

TEST(NvmlTopology, LibraryErrorsAreUnavailable) {
  Nvml none(0);
  EXPECT_EQ(BuildNvmlTopology(none).status().code(), Code::kUnavailable);
  EXPECT_THAT(BuildNvmlTopology(none).status().message(), HasSubstr("no GPU"));
  Nvml broken(1);
  ON_CALL(broken, DeviceCount).WillByDefault([]() -> Result<int> { return Internal("UNINITIALIZED (1)"); });
  EXPECT_EQ(BuildNvmlTopology(broken).status().code(), Code::kUnavailable);
  EXPECT_THAT(BuildNvmlTopology(broken).status().message(), HasSubstr("UNINITIALIZED"));
  Nvml silent(1);
  ON_CALL(silent, DriverVersion).WillByDefault([]() -> Result<std::string> { return Lost(); });
  EXPECT_EQ(MustBuild(silent).driver_version, "");
}

// Each call without which a GPU cannot be used: that GPU is left out, the other stays at position 0.
class NvmlGpuLost : public ::testing::TestWithParam<int> {};

TEST_P(NvmlGpuLost, TheOthersGoOn) {
  Nvml nvml(2);
  NvmlDevice lost = MockNvml::Device(0);
  auto text_error = [](NvmlDevice) -> Result<std::string> { return Lost(); };
  switch (GetParam()) {
    case 0:
      ON_CALL(nvml, DeviceByIndex(0)).WillByDefault([](int) -> Result<NvmlDevice> { return Lost(); });
      break;
    case 1: ON_CALL(nvml, Uuid(lost)).WillByDefault(text_error); break;
    case 2: ON_CALL(nvml, Name(lost)).WillByDefault(text_error); break;
    case 3: ON_CALL(nvml, PciBusId(lost)).WillByDefault(text_error); break;
    case 4:
      ON_CALL(nvml, MemoryBytes(lost)).WillByDefault([](NvmlDevice) -> Result<uint64_t> { return Lost(); });
      break;
  }
  NvmlTopology built = MustBuild(nvml);
  ASSERT_EQ(built.topology.size(), 1);
  EXPECT_EQ(built.topology.gpus[0].uuid, "GPU-1");
  EXPECT_THAT(built.warnings, ElementsAre("GPU 0 is left out: GPU_IS_LOST (15)"));
  EXPECT_EQ(Classify(built.topology), TopologyClass::kSingle);
}

INSTANTIATE_TEST_SUITE_P(EachCall, NvmlGpuLost, ::testing::Range(0, 5));

TEST(NvmlTopology, NoUsableGpuNamesEveryReason) {
  Nvml nvml(2);
  ON_CALL(nvml, DeviceByIndex(0)).WillByDefault([](int) -> Result<NvmlDevice> { return Lost(); });
  ON_CALL(nvml, DeviceByIndex(1)).WillByDefault([](int) -> Result<NvmlDevice> {
    return PermissionDenied("NO_PERMISSION (4)");
  });
  Result<NvmlTopology> built = BuildNvmlTopology(nvml);
  EXPECT_EQ(built.status().code(), Code::kUnavailable);
  EXPECT_THAT(built.status().message(), HasSubstr("GPU_IS_LOST"));
  EXPECT_THAT(built.status().message(), HasSubstr("GPU 1 is left out: NO_PERMISSION"));
}

TEST(NvmlTopology, OnlyTheGpusThatASchedulerGave) {
  Nvml nvml(4);
  Plug(nvml, {{-1}, {-1}, {-1}, {-1}});
  for (const char* visible : {"GPU-3,GPU-1", "1,3", " 3, GPU-1,"}) {
    Result<NvmlTopology> built = BuildNvmlTopology(nvml, visible);
    ASSERT_TRUE(built.ok()) << visible << ": " << built.status().ToString();
    ASSERT_EQ(built->topology.size(), 2) << visible;
    EXPECT_EQ(built->topology.gpus[0].uuid, "GPU-1");
    EXPECT_EQ(built->topology.gpus[1].uuid, "GPU-3");
    EXPECT_THAT(built->warnings, IsEmpty());
    EXPECT_EQ(Classify(built->topology), TopologyClass::kNvSwitch);
  }
  EXPECT_THAT(BuildNvmlTopology(nvml, "").status().message(), HasSubstr("hides every GPU"));
  Result<NvmlTopology> absent = BuildNvmlTopology(nvml, "0,7");
  EXPECT_EQ(absent.status().code(), Code::kUnavailable);
  EXPECT_THAT(absent.status().message(), HasSubstr("'7'"));
  EXPECT_THAT(BuildNvmlTopology(nvml, "MIG-0").status().message(), HasSubstr("'MIG-0'"));
}

TEST(NvmlTopology, OfSixteenGpusEightAreUsedAndTheRestNamed) {
  Nvml nvml(16);
  NvmlTopology built = MustBuild(nvml);
  EXPECT_EQ(built.topology.size(), kMaxGpus);
  ASSERT_EQ(built.warnings.size(), 1u);
  EXPECT_THAT(built.warnings[0], HasSubstr("more than 8 GPUs; not used: GPU-8, GPU-9"));
}

TEST(NvmlTopology, ModesAndFabricStates) {
  Nvml nvml(8);
  auto mode = [&](int gpu, NvmlComputeMode value) {
    ON_CALL(nvml, ComputeMode(MockNvml::Device(gpu))).WillByDefault(Return(value));
  };
  mode(0, NvmlComputeMode::kExclusiveThread);
  mode(1, NvmlComputeMode::kProhibited);
  mode(2, NvmlComputeMode::kExclusiveProcess);
  mode(3, static_cast<NvmlComputeMode>(77));
  ON_CALL(nvml, ComputeMode(MockNvml::Device(4))).WillByDefault([](NvmlDevice) -> Result<NvmlComputeMode> {
    return Unimplemented("not supported");
  });
  ON_CALL(nvml, ComputeMode(MockNvml::Device(5))).WillByDefault([](NvmlDevice) -> Result<NvmlComputeMode> {
    return Lost();
  });
  auto fabric = [&](int gpu, NvmlFabricInfo value) {
    ON_CALL(nvml, FabricInfo(MockNvml::Device(gpu))).WillByDefault(Return(value));
  };
  fabric(0, {0, 0});
  fabric(1, {1, 0});
  fabric(2, {2, 0});
  fabric(3, {3, 0});
  fabric(4, {3, 999});
  fabric(5, {9, 0});
  ON_CALL(nvml, FabricInfo(MockNvml::Device(6))).WillByDefault([](NvmlDevice) -> Result<NvmlFabricInfo> {
    return Lost();
  });
  NvmlTopology built = MustBuild(nvml);
  std::vector<ComputeMode> modes;
  std::vector<std::string> states;
  for (const GpuInfo& gpu : built.topology.gpus) {
    modes.push_back(gpu.compute_mode);
    states.push_back(gpu.fabric_state);
  }
  EXPECT_THAT(modes, ElementsAre(ComputeMode::kExclusiveProcess, ComputeMode::kProhibited,
                                 ComputeMode::kExclusiveProcess, ComputeMode::kDefault, ComputeMode::kDefault,
                                 ComputeMode::kDefault, ComputeMode::kDefault, ComputeMode::kDefault));
  EXPECT_THAT(states, ElementsAre("none", "not_started", "in_progress", "completed",
                                  "error: registration ended with NVML error 999",
                                  "error: unknown fabric state 9", "error: GPU_IS_LOST (15)", "none"));
  EXPECT_THAT(built.warnings,
              ElementsAre(HasSubstr("GPU-3: compute mode 77"), HasSubstr("GPU-5: compute mode unknown")));
}

TEST(NvmlTopology, AFabricThatIsNotReadyIsNamed) {
  Nvml nvml(2);
  Plug(nvml, {{-1, -1}, {-1, -1}});
  ON_CALL(nvml, FabricInfo(MockNvml::Device(1))).WillByDefault(Return(NvmlFabricInfo{2, 0}));
  NvmlTopology built = MustBuild(nvml);
  EXPECT_THAT(built.warnings,
              ElementsAre("GPU-1: NVSwitch fabric is in_progress; is the fabric manager running?"));
}

TEST(NvmlTopology, MigHasNoPeerAccess) {
  Nvml nvml(3);
  ON_CALL(nvml, MigEnabled(MockNvml::Device(0))).WillByDefault(Return(true));
  ON_CALL(nvml, MigEnabled(MockNvml::Device(1))).WillByDefault([](NvmlDevice) -> Result<bool> {
    return Unimplemented("no MIG");
  });
  ON_CALL(nvml, MigEnabled(MockNvml::Device(2))).WillByDefault([](NvmlDevice) -> Result<bool> {
    return Lost();
  });
  NvmlTopology built = MustBuild(nvml);
  EXPECT_TRUE(built.topology.gpus[0].mig_enabled);
  EXPECT_FALSE(built.topology.gpus[1].mig_enabled);
  EXPECT_FALSE(built.topology.p2p[0][1]);
  EXPECT_FALSE(built.topology.p2p[1][0]);
  EXPECT_TRUE(built.topology.p2p[1][2]);
  EXPECT_THAT(built.warnings, ElementsAre(HasSubstr("GPU-2: MIG mode unknown")));
}

TEST(NvmlTopology, PeerAccessNeedsReadsAndWrites) {
  Nvml nvml(2);
  ON_CALL(nvml, P2pStatus(MockNvml::Device(0), _, NvmlP2pIndex::kWrite))
      .WillByDefault(Return(NvmlP2pStatus::kChipsetNotSupported));
  NvmlTopology pcie = MustBuild(nvml);
  EXPECT_FALSE(pcie.topology.p2p[0][1]);
  EXPECT_TRUE(pcie.topology.p2p[1][0]);
  EXPECT_THAT(pcie.warnings, IsEmpty()) << "common on PCIe";
  Plug(nvml, {{1}, {0}});
  NvmlTopology linked = MustBuild(nvml);
  EXPECT_THAT(linked.warnings,
              ElementsAre("GPU-0 has no peer access to GPU-1 in spite of NVLinks: chipset not supported"));
  EXPECT_EQ(Classify(linked.topology), TopologyClass::kPcieOnly);
}

TEST(NvmlTopology, UnknownPeerAccessAndDistanceAreCautious) {
  Nvml nvml(2);
  ON_CALL(nvml, P2pStatus(MockNvml::Device(1), _, NvmlP2pIndex::kRead))
      .WillByDefault([](NvmlDevice, NvmlDevice, NvmlP2pIndex) -> Result<NvmlP2pStatus> { return Lost(); });
  ON_CALL(nvml, CommonAncestor).WillByDefault([](NvmlDevice, NvmlDevice) -> Result<NvmlTopologyLevel> {
    return Lost();
  });
  NvmlTopology built = MustBuild(nvml);
  EXPECT_FALSE(built.topology.p2p[1][0]);
  EXPECT_EQ(built.topology.pcie[0][1], PcieDistance::kSys);
  EXPECT_THAT(built.warnings, ElementsAre(HasSubstr("PCIe distance of GPU-0 and GPU-1 unknown"),
                                          HasSubstr("GPU-1 has no peer access to GPU-0: GPU_IS_LOST")));
}

TEST(NvmlTopology, EveryPcieLevelHasItsDistance) {
  const std::array<std::pair<NvmlTopologyLevel, PcieDistance>, 7> levels = {{
      {NvmlTopologyLevel::kInternal, PcieDistance::kPix},
      {NvmlTopologyLevel::kSingle, PcieDistance::kPix},
      {NvmlTopologyLevel::kMultiple, PcieDistance::kPxb},
      {NvmlTopologyLevel::kHostBridge, PcieDistance::kPhb},
      {NvmlTopologyLevel::kNode, PcieDistance::kNode},
      {NvmlTopologyLevel::kSystem, PcieDistance::kSys},
      {static_cast<NvmlTopologyLevel>(60), PcieDistance::kSys},
  }};
  for (const auto& [level, distance] : levels) {
    Nvml nvml(2);
    ON_CALL(nvml, CommonAncestor).WillByDefault(Return(level));
    EXPECT_EQ(MustBuild(nvml).topology.pcie[0][1], distance);
    EXPECT_EQ(MustBuild(nvml).topology.pcie[0][0], PcieDistance::kSame);
  }
}

}  // namespace
}  // namespace tandem
