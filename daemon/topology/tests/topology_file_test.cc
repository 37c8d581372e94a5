#include "daemon/topology/topology_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <random>

#include "daemon/topology/tests/topology_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kTwoGpus[] = "gpus = [{}, {}]\n";

std::string ParseError(const std::string& text) {
  Result<Topology> topology = ParseTopology(text, "t.toml");
  return topology.ok() ? "no error" : topology.status().message();
}

void ExpectSame(const Topology& a, const Topology& b) {
  ASSERT_EQ(a.size(), b.size());
  for (int i = 0; i < a.size(); ++i) {
    const GpuInfo& x = a.gpus[i];
    const GpuInfo& y = b.gpus[i];
    EXPECT_EQ(x.uuid, y.uuid);
    EXPECT_EQ(x.model, y.model);
    EXPECT_EQ(x.pci_bus_id, y.pci_bus_id);
    EXPECT_EQ(x.numa_node, y.numa_node);
    EXPECT_EQ(x.memory_bytes, y.memory_bytes);
    EXPECT_EQ(x.mig_enabled, y.mig_enabled);
    EXPECT_EQ(x.compute_mode, y.compute_mode);
    EXPECT_EQ(x.fabric_state, y.fabric_state);
    EXPECT_EQ(x.switch_links, y.switch_links);
  }
  EXPECT_EQ(a.nvlinks, b.nvlinks);
  EXPECT_EQ(a.pcie, b.pcie);
  EXPECT_EQ(a.p2p, b.p2p);
}

struct FixtureCase {
  const char* file;
  int gpus;
  TopologyClass topology_class;
  int links_of_gpu0;  // summed over all links, to switches too
};

class TopologyFixture : public ::testing::TestWithParam<FixtureCase> {};

TEST_P(TopologyFixture, HasItsClassAndSurvivesARoundTrip) {
  const FixtureCase& expected = GetParam();
  Topology topology = Fixture(expected.file);
  ASSERT_EQ(topology.size(), expected.gpus);
  EXPECT_THAT(topology.source, HasSubstr(expected.file));
  EXPECT_EQ(Classify(topology), expected.topology_class);
  for (int i = 0; i < topology.size(); ++i) {
    int links = topology.gpus[i].switch_links;
    for (int j = 0; j < topology.size(); ++j) links += topology.nvlinks[i][j];
    EXPECT_EQ(links, expected.links_of_gpu0) << "all GPUs of these machines have the same number; GPU " << i;
  }
  Result<Topology> again = ParseTopology(WriteTopology(topology), "again");
  ASSERT_TRUE(again.ok()) << again.status().ToString();
  ExpectSame(*again, topology);
}

INSTANTIATE_TEST_SUITE_P(
    All, TopologyFixture,
    ::testing::Values(FixtureCase{"dgx-1v.toml", 8, TopologyClass::kHybridCubeMesh, 6},
                      FixtureCase{"dgx-2.toml", 8, TopologyClass::kNvSwitch, 6},
                      FixtureCase{"dgx-a100.toml", 8, TopologyClass::kNvSwitch, 12},
                      FixtureCase{"hgx-h200.toml", 8, TopologyClass::kNvSwitch, 18},
                      FixtureCase{"a100-pcie-bridges.toml", 4, TopologyClass::kPairs, 12},
                      FixtureCase{"a100-sxm4-full-mesh.toml", 4, TopologyClass::kFullMesh, 12},
                      FixtureCase{"pcie-only.toml", 8, TopologyClass::kPcieOnly, 0},
                      FixtureCase{"emulated-4.toml", 4, TopologyClass::kNvSwitch, 18}),
    [](const auto& info) {
      std::string name = info.param.file;
      name = name.substr(0, name.find('.'));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST(TopologyFixtures, SubGroupsAreClassifiedOnTheirOwnLinks) {
  Topology dgx1 = Fixture("dgx-1v.toml");
  EXPECT_EQ(Classify(Subset(dgx1, std::array{0, 1, 2, 3})), TopologyClass::kFullMesh);
  EXPECT_EQ(Classify(Subset(dgx1, std::array{7, 5, 4, 6})), TopologyClass::kFullMesh);
  EXPECT_EQ(Classify(Subset(dgx1, std::array{2, 6})), TopologyClass::kFullMesh);
  EXPECT_EQ(Classify(Subset(dgx1, std::array{2, 7})), TopologyClass::kPcieOnly);
  EXPECT_EQ(Classify(Subset(dgx1, std::array{0, 1, 2, 3, 4, 5})), TopologyClass::kIrregular);
  EXPECT_EQ(FindHybridCubeMesh(dgx1)->mate[3], 7);
  Topology bridges = Fixture("a100-pcie-bridges.toml");
  EXPECT_EQ(Classify(Subset(bridges, std::array{0, 1})), TopologyClass::kFullMesh);
  EXPECT_EQ(Classify(Subset(bridges, std::array{1, 2})), TopologyClass::kPcieOnly);
  EXPECT_EQ(Classify(Subset(Fixture("hgx-h200.toml"), std::array{5, 2, 7})), TopologyClass::kNvSwitch);
}

TEST(TopologyFixtures, TheEmulatedOneIsWhatTheHostBackendMakes) {
  ExpectSame(Fixture("emulated-4.toml"), EmulatedTopology(4));
}

TEST(ParseTopology, AnEmptyTableIsAGpu) {
  Result<Topology> topology = ParseTopology(kTwoGpus, "t.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().ToString();
  EXPECT_EQ(topology->gpus[1].uuid, "EMU-0000-0001");
  EXPECT_EQ(topology->pcie[0][1], PcieDistance::kNode);
  EXPECT_TRUE(topology->p2p[0][1]);
  EXPECT_FALSE(topology->p2p[1][1]);
  EXPECT_EQ(Classify(*topology), TopologyClass::kPcieOnly);
}

TEST(ParseTopology, DefaultsHoldUntilAGpuSaysOtherwise) {
  Result<Topology> topology = ParseTopology(
      "[gpu_defaults]\nswitch_links = 4\ncompute_mode = "
      "'exclusive_process'\n[[gpus]]\n[[gpus]]\nswitch_links = 2\n"
      "numa_node = 1\nmig_enabled = true\n[[gpus]]\n",
      "t.toml");
  ASSERT_TRUE(topology.ok()) << topology.status().ToString();
  EXPECT_EQ(topology->gpus[0].compute_mode, ComputeMode::kExclusiveProcess);
  EXPECT_EQ(topology->gpus[1].switch_links, 2);
  EXPECT_EQ(topology->pcie[0][1], PcieDistance::kSys);
  EXPECT_FALSE(topology->p2p[0][1]) << "MIG has no peer access";
  EXPECT_EQ(topology->LinkCount(0, 1), 0);
  EXPECT_EQ(topology->LinkCount(0, 2), 4);
}

TEST(ParseTopology, RandomTopologiesSurviveARoundTrip) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    Topology topology = EmulatedTopology(1 + static_cast<int>(random() % 8));
    for (int i = 0; i < topology.size(); ++i) {
      GpuInfo& gpu = topology.gpus[i];
      gpu.model = "odd \"name\" \\ \x01 ü";
      gpu.numa_node = static_cast<int>(random() % 5) - 1;
      gpu.memory_bytes = 1 + random();
      gpu.switch_links = static_cast<int>(random() % 65);
      gpu.compute_mode = static_cast<ComputeMode>(random() % 3);
      for (int j = 0; j < i; ++j) {
        topology.nvlinks[i][j] = topology.nvlinks[j][i] = static_cast<int>(random() % 65);
        topology.pcie[i][j] = topology.pcie[j][i] = static_cast<PcieDistance>(1 + random() % 5);
        topology.p2p[i][j] = topology.p2p[j][i] = random() % 2 == 0;
      }
    }
    Result<Topology> again = ParseTopology(WriteTopology(topology), "again");
    ASSERT_TRUE(again.ok()) << again.status().ToString();
    ExpectSame(*again, topology);
  }
}

TEST(ParseTopology, UnknownKeysNameTheLine) {
  EXPECT_EQ(ParseError("gpus = [{}]\n\nnvlink = []\n"),
            "t.toml:3: unknown key 'nvlink'; known here are gpu_defaults, gpus, nvlinks, pcie, p2p_failures");
  EXPECT_THAT(ParseError("[[gpus]]\n[[gpus]]\nname = 'x'\n"),
              StartsWith("t.toml:3: unknown key 'gpus[1].name'"));
  EXPECT_THAT(ParseError("gpus = [{}]\n[gpu_defaults]\nname = 'x'\n"),
              StartsWith("t.toml:3: unknown key 'gpu_defaults.name'"));
  EXPECT_THAT(ParseError("gpus = [{}, {}]\nnvlinks = [{gpus = [0, 1], links = 1, speed = 2}]"),
              HasSubstr("unknown key 'nvlinks[0].speed'"));
}

TEST(ParseTopology, GpusAreChecked) {
  EXPECT_THAT(ParseError(""), HasSubstr("no 'gpus' array"));
  EXPECT_THAT(ParseError("gpus = 4"), HasSubstr("t.toml:1: gpus must be an array"));
  EXPECT_THAT(ParseError("gpus = []"), HasSubstr("there are 0 gpus"));
  EXPECT_THAT(ParseError("gpus = [{},{},{},{},{},{},{},{},{}]"),
              HasSubstr("there are 9 gpus; the limits are 1 to 8"));
  EXPECT_THAT(ParseError("gpus = [1]"), HasSubstr("gpus[0] must be a table"));
  EXPECT_THAT(ParseError("gpus = [{uuid = 'a'},\n{uuid = 'a'}]"),
              HasSubstr("t.toml:2: gpus[1].uuid 'a' is not unique"));
  EXPECT_THAT(ParseError("gpus = [{uuid = 'EMU-0000-0001'}, {}]"), HasSubstr("not unique"));
  EXPECT_THAT(ParseError("gpus = [{uuid = ''}]"), HasSubstr("must not be empty"));
  EXPECT_THAT(ParseError("gpus = [{uuid = \"a\\u0000\"}]"), HasSubstr("NUL"));
  EXPECT_THAT(ParseError("gpus = [{model = 3}]"), HasSubstr("gpus[0].model must be a string"));
  EXPECT_THAT(ParseError("gpus = [{memory_bytes = 0}]"), HasSubstr("memory_bytes = 0 is out of range"));
  EXPECT_THAT(ParseError("gpus = [{memory_bytes = '1'}]"), HasSubstr("must be an integer"));
  EXPECT_THAT(ParseError("gpus = [{numa_node = -2}]"), HasSubstr("the limits are -1 to 1023"));
  EXPECT_THAT(ParseError("gpus = [{switch_links = 65}]"), HasSubstr("the limits are 0 to 64"));
  EXPECT_THAT(ParseError("gpus = [{mig_enabled = 1}]"), HasSubstr("must be true or false"));
  EXPECT_THAT(ParseError("gpus = [{compute_mode = 'fast'}]"),
              HasSubstr("none of default, exclusive_process"));
  EXPECT_THAT(ParseError("gpus = [{}]\ngpu_defaults = 1"), HasSubstr("gpu_defaults must be a table"));
  EXPECT_THAT(ParseError("gpus = [{}]\ngpu_defaults = {uuid = 'a'}"),
              HasSubstr("gpu_defaults.uuid belongs to each"));
}

TEST(ParseTopology, NvLinksAreChecked) {
  std::string two = kTwoGpus;
  EXPECT_EQ(ParseError(two + "nvlinks = []"), "no error");
  EXPECT_THAT(ParseError(two + "nvlinks = 1"), HasSubstr("must be a matrix or a list"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, 1]]"), HasSubstr("t.toml:2: nvlinks must have 2 rows"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, 1],\n[1]]"),
              HasSubstr("t.toml:3: nvlinks[1] must have 2 elements"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, 1], 1]"), HasSubstr("nvlinks[1] must have 2 elements"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, 1], [2, 0]]"),
              HasSubstr("nvlinks[1][0] = 2 contradicts nvlinks[0][1] = 1"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[1, 0], [0, 0]]"), HasSubstr("nvlinks[0][0] is on the diagonal"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, -1], [-1, 0]]"),
              HasSubstr("nvlinks[0][1] = -1 is out of range"));
  EXPECT_THAT(ParseError(two + "nvlinks = [[0, 1.0], [1, 0]]"), HasSubstr("must be an integer"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0, 1]}]"), HasSubstr("must have both gpus and links"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0, 2], links = 1}]"), HasSubstr("limits are 0 to 1"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [1, 1], links = 1}]"), HasSubstr("two different GPUs"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0], links = 1}]"), HasSubstr("must be two positions"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0, 1], links = 0}]"),
              HasSubstr("the limits are 1 to 64"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0, 1], links = 1}, {gpus = [1, 0], links = 1}]"),
              HasSubstr("nvlinks[1] names a pair again"));
  EXPECT_THAT(ParseError(two + "nvlinks = [{gpus = [0, 1], links = 1}, [0, 1]]"),
              HasSubstr("like the first"));
}

TEST(ParseTopology, PcieAndPeerAccessAreChecked) {
  std::string two = kTwoGpus;
  EXPECT_THAT(ParseError(two + "pcie = 1"), HasSubstr("must be one distance for all pairs, or a matrix"));
  EXPECT_THAT(ParseError(two + "pcie = 'FAR'"), HasSubstr("none of X, PIX, PXB, PHB, NODE, SYS"));
  EXPECT_THAT(ParseError(two + "pcie = 'X'"), HasSubstr("only for the diagonal"));
  EXPECT_THAT(ParseError(two + "pcie = [['X', 'X'], ['X', 'X']]"), HasSubstr("pcie[0][1] must not be 'X'"));
  EXPECT_THAT(ParseError(two + "pcie = [['SYS', 'PIX'], ['PIX', 'X']]"), HasSubstr("pcie[0][0] must be 'X'"));
  EXPECT_THAT(ParseError(two + "pcie = [['X', 'PIX'], ['SYS', 'X']]"),
              HasSubstr("pcie[1][0] contradicts pcie[0][1]"));
  EXPECT_THAT(ParseError(two + "p2p_failures = 1"), HasSubstr("list of pairs"));
  EXPECT_THAT(ParseError(two + "p2p_failures = [0, 1]"), HasSubstr("must be two positions"));
  EXPECT_THAT(ParseError(two + "p2p_failures = [[0, 0]]"), HasSubstr("two different GPUs"));
  Result<Topology> cut = ParseTopology(two + "p2p_failures = [[1, 0]]", "t.toml");
  ASSERT_TRUE(cut.ok());
  EXPECT_FALSE(cut->p2p[0][1]);
  EXPECT_FALSE(cut->p2p[1][0]);
}

TEST(ParseTopology, BrokenTomlNamesTheLine) {
  EXPECT_THAT(ParseError("gpus = [{}]\n\npcie = \n"), StartsWith("t.toml:3: "));
}

TEST(LoadTopology, FilesThatCannotBeReadSayWhy) {
  Result<Topology> absent = LoadTopology("/nonexistent/topology.toml");
  EXPECT_EQ(absent.status().code(), Code::kNotFound);
  EXPECT_THAT(absent.status().message(), HasSubstr("/nonexistent/topology.toml"));
  EXPECT_FALSE(LoadTopology("/").ok());
  std::string path = ::testing::TempDir() + "topology_file_test_big.toml";
  std::ofstream(path) << std::string((1 << 20) + 1, '#');
  EXPECT_THAT(LoadTopology(path).status().message(), HasSubstr("larger than 1 MiB"));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace tandem
