#include "daemon/topology/topology_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "daemon/topology/tests/topology_fixture.h"
#include "daemon/topology/topology_file.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(LinkMatrix, LooksAsPeopleKnowIt) {
  EXPECT_EQ(LinkMatrix(Fixture("a100-pcie-bridges.toml")),
            "      GPU0  GPU1  GPU2  GPU3  NUMA\n"
            "GPU0   X    NV12  SYS   SYS   0\n"
            "GPU1  NV12   X    SYS   SYS   0\n"
            "GPU2  SYS   SYS    X    NV12  1\n"
            "GPU3  SYS   SYS   NV12   X    1\n"
            "\n"
            "Legend:  X = self; NV# = # NVLinks, direct or through NVSwitches; SYS = the link between NUMA "
            "nodes\n");
}

TEST(LinkMatrix, ACubeMeshShowsItsDoubleLinks) {
  std::string matrix = LinkMatrix(Fixture("dgx-1v.toml"));
  EXPECT_THAT(matrix, HasSubstr("GPU3  NV2   NV1   NV2    X    SYS   SYS   SYS   NV1   0\n"));
  EXPECT_THAT(matrix, Not(HasSubstr("PIX"))) << "no pair talks over a PCIe switch here";
}

TEST(LinkMatrix, SwitchedLinksAreCounted) {
  Topology topology = Fixture("hgx-h200.toml");
  EXPECT_THAT(LinkMatrix(topology), HasSubstr("GPU0   X    NV18  NV18  NV18  NV18  NV18  NV18  NV18  0\n"));
  topology.gpus[0].numa_node = -1;
  EXPECT_THAT(LinkMatrix(topology), HasSubstr("NV18  -\n"));
}

TEST(TopologyMatrix, NamesGpusClassAndPairsWithoutPeerAccess) {
  std::string text = TopologyMatrix(Fixture("hgx-h200.toml"));
  EXPECT_THAT(
      text,
      HasSubstr("GPU-HGXH200-0003  NVIDIA H200  0000:5d:00.0  141.0 GiB  default       off  completed\n"));
  EXPECT_THAT(text, HasSubstr("Class: nvswitch (from "));
  EXPECT_THAT(text, Not(HasSubstr("No peer access")));
  Topology cut = Fixture("a100-sxm4-full-mesh.toml");
  cut.p2p[1][2] = false;
  text = TopologyMatrix(cut);
  EXPECT_THAT(text, HasSubstr("No peer access: GPU1-GPU2\n"));
  EXPECT_THAT(text, HasSubstr("NV4")) << "the links are plugged all the same";
  EXPECT_THAT(text, HasSubstr("Class: irregular"));
}

TEST(TopologyMatrix, AnEmptyTopologyIsPrintable) {
  EXPECT_THAT(TopologyMatrix(Topology{}), HasSubstr("Class: single"));
}

TEST(TopologyJson, HoldsEverything) {
  Topology topology = Fixture("dgx-1v.toml");
  topology.gpus[1].memory_bytes = 77;
  topology.p2p[0][1] = false;
  nlohmann::json json = nlohmann::json::parse(TopologyJson(topology));
  EXPECT_EQ(json["class"], "irregular");
  EXPECT_THAT(json["source"].get<std::string>(), HasSubstr("dgx-1v.toml"));
  ASSERT_EQ(json["gpus"].size(), 8u);
  EXPECT_EQ(json["gpus"][1]["memory_bytes"], 77);
  EXPECT_EQ(json["gpus"][7]["uuid"], "GPU-DGX1V-0007");
  EXPECT_EQ(json["gpus"][7]["numa_node"], 1);
  EXPECT_EQ(json["gpus"][0]["compute_mode"], "default");
  EXPECT_EQ(json["nvlinks"][0][1], 1);
  EXPECT_EQ(json["links"][0][1], 0);
  EXPECT_EQ(json["links"][0][4], 2);
  EXPECT_EQ(json["pcie"][0][1], "PIX");
  EXPECT_EQ(json["p2p"][0][1], false);
  EXPECT_EQ(json["p2p"][0][2], true);
}

TEST(TopologyJson, OneLineOnRequestAndNeverBrokenUtf8) {
  Topology topology = EmulatedTopology(2);
  topology.gpus[0].model = "bad \xff byte";
  std::string text = TopologyJson(topology, -1);
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(text)["gpus"][1]["uuid"], "EMU-0000-0001");
}

}  // namespace
}  // namespace tandem
