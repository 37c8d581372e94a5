#include "daemon/topology/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

namespace tandem {
namespace {

using ::testing::HasSubstr;

Topology Unlinked(int gpus) {
  Topology topology = EmulatedTopology(gpus);
  for (GpuInfo& gpu : topology.gpus) gpu.switch_links = 0;
  return topology;
}

void Link(Topology& topology, int i, int j, int links = 1) {
  topology.nvlinks[i][j] = links;
  topology.nvlinks[j][i] = links;
}

void SetP2p(Topology& topology, int i, int j, bool works) {
  topology.p2p[i][j] = works;
  topology.p2p[j][i] = works;
}

Topology CubeMesh() {
  Topology topology = Unlinked(8);
  for (int quad : {0, 4}) {
    for (int i = 0; i < 4; ++i) {
      for (int j = i + 1; j < 4; ++j) Link(topology, quad + i, quad + j);
    }
  }
  for (int i = 0; i < 4; ++i) Link(topology, i, i + 4, 2);
  return topology;
}

TEST(Classify, EmulatedGpusAreAnNvSwitchOfAnySize) {
  EXPECT_EQ(Classify(EmulatedTopology(1)), TopologyClass::kSingle);
  for (int gpus = 2; gpus <= kMaxGpus; ++gpus) {
    Topology topology = EmulatedTopology(gpus, 123);
    EXPECT_EQ(Classify(topology), TopologyClass::kNvSwitch) << gpus;
    EXPECT_EQ(topology.LinkCount(0, gpus - 1), 18);
    EXPECT_EQ(topology.gpus.back().memory_bytes, 123u);
    std::set<std::string> uuids;
    for (const GpuInfo& gpu : topology.gpus) uuids.insert(gpu.uuid);
    EXPECT_EQ(static_cast<int>(uuids.size()), gpus);
  }
  EXPECT_EQ(EmulatedTopology(2).gpus[1].uuid, "EMU-0000-0001");
}

TEST(Classify, LinksDecideTheClass) {
  EXPECT_EQ(Classify(Topology{}), TopologyClass::kSingle);
  EXPECT_EQ(Classify(Unlinked(2)), TopologyClass::kPcieOnly);
  EXPECT_EQ(Classify(Unlinked(8)), TopologyClass::kPcieOnly);

  Topology two = Unlinked(2);
  Link(two, 0, 1, 4);
  EXPECT_EQ(Classify(two), TopologyClass::kFullMesh);

  Topology bridges = Unlinked(4);
  Link(bridges, 0, 2, 12);
  Link(bridges, 1, 3, 12);
  EXPECT_EQ(Classify(bridges), TopologyClass::kPairs);

  Topology ring = Unlinked(4);
  for (int i = 0; i < 4; ++i) Link(ring, i, (i + 1) % 4);
  EXPECT_EQ(Classify(ring), TopologyClass::kIrregular);
  Link(ring, 0, 2);
  EXPECT_EQ(Classify(ring), TopologyClass::kIrregular);
  Link(ring, 1, 3);
  EXPECT_EQ(Classify(ring), TopologyClass::kFullMesh);

  Topology half_switched = EmulatedTopology(4);
  half_switched.gpus[3].switch_links = 0;
  EXPECT_EQ(Classify(half_switched), TopologyClass::kIrregular);
  EXPECT_EQ(half_switched.LinkCount(0, 3), 0);
}

TEST(Classify, LinksWithoutPeerAccessCountForNothing) {
  Topology topology = EmulatedTopology(4);
  SetP2p(topology, 1, 2, false);
  EXPECT_EQ(topology.LinkCount(1, 2), 0);
  EXPECT_EQ(topology.LinkCount(0, 2), 18);
  EXPECT_EQ(Classify(topology), TopologyClass::kIrregular);
  EXPECT_EQ(Classify(Subset(topology, std::array{0, 1, 3})), TopologyClass::kNvSwitch);
  EXPECT_EQ(Classify(Subset(topology, std::array{1, 2})), TopologyClass::kPcieOnly);

  Topology one_way = EmulatedTopology(2);
  one_way.p2p[0][1] = false;
  EXPECT_EQ(Classify(one_way), TopologyClass::kPcieOnly);
}

TEST(Subset, KeepsOrderAndClassifiesOnItsOwnLinks) {
  Topology mesh = CubeMesh();
  Topology quad = Subset(mesh, std::array{7, 4, 6, 5});
  EXPECT_EQ(quad.gpus[0].uuid, mesh.gpus[7].uuid);
  EXPECT_EQ(quad.gpus[3].uuid, mesh.gpus[5].uuid);
  EXPECT_EQ(Classify(quad), TopologyClass::kFullMesh);
  Topology mates = Subset(mesh, std::array{4, 0});
  EXPECT_EQ(Classify(mates), TopologyClass::kFullMesh);
  EXPECT_EQ(mates.LinkCount(0, 1), 2);
  EXPECT_EQ(Classify(Subset(mesh, std::array{0, 5})), TopologyClass::kPcieOnly);
  EXPECT_EQ(Classify(Subset(mesh, std::array{0, 4, 1, 5})), TopologyClass::kIrregular);
  EXPECT_EQ(Classify(Subset(mesh, std::array{0, 1, 6})), TopologyClass::kPairs);
  EXPECT_EQ(Classify(Subset(mesh, std::array{3})), TopologyClass::kSingle);
}

TEST(HybridCubeMesh, NaturalOrderHasTheDocumentedMatchings) {
  Result<HybridCubeMesh> mesh = FindHybridCubeMesh(CubeMesh());
  ASSERT_TRUE(mesh.ok()) << mesh.status().ToString();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(mesh->mate[i], i ^ 4);
    for (int k = 0; k < 3; ++k) EXPECT_EQ(mesh->quad[i][k], (i & 4) | ((i & 3) ^ (k + 1)));
  }
}

// In any order of ranks: the matchings use existing links only and are perfect.
TEST(HybridCubeMesh, EveryRankOrderGivesPerfectMatchings) {
  Topology natural = CubeMesh();
  std::array<int, 8> order;
  std::iota(order.begin(), order.end(), 0);
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    Topology topology = Subset(natural, order);
    ASSERT_EQ(Classify(topology), TopologyClass::kHybridCubeMesh);
    Result<HybridCubeMesh> mesh = FindHybridCubeMesh(topology);
    ASSERT_TRUE(mesh.ok());
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(mesh->mate[mesh->mate[i]], i);
      EXPECT_GT(topology.LinkCount(i, mesh->mate[i]), 0);
      std::set<int> reached = {i, mesh->mate[i]};
      for (int k = 0; k < 3; ++k) {
        int j = mesh->quad[i][k];
        EXPECT_EQ(mesh->quad[j][k], i);
        EXPECT_GT(topology.LinkCount(i, j), 0);
        reached.insert(j);
      }
      EXPECT_EQ(reached.size(), 5u);
    }
  }
}

TEST(HybridCubeMesh, OneLinkMoreOrLessIsAnotherClass) {
  for (int j = 1; j < 8; ++j) {
    Topology changed = CubeMesh();
    bool had = changed.LinkCount(0, j) > 0;
    Link(changed, 0, j, had ? 0 : 1);
    EXPECT_EQ(Classify(changed), TopologyClass::kIrregular) << j;
    Topology unprobed = CubeMesh();
    SetP2p(unprobed, 0, j, false);
    EXPECT_EQ(Classify(unprobed), had ? TopologyClass::kIrregular : TopologyClass::kHybridCubeMesh) << j;
  }
}

// Other graphs of degree four on eight GPUs must not pass for a cube mesh.
TEST(HybridCubeMesh, OtherGraphsOfDegreeFourAreRefused) {
  Topology bipartite = Unlinked(8);
  for (int i = 0; i < 4; ++i) {
    for (int j = 4; j < 8; ++j) Link(bipartite, i, j);
  }
  EXPECT_EQ(Classify(bipartite), TopologyClass::kIrregular);
  Topology circulant = Unlinked(8);
  for (int i = 0; i < 8; ++i) {
    Link(circulant, i, (i + 1) % 8);
    Link(circulant, i, (i + 2) % 8);
  }
  EXPECT_EQ(Classify(circulant), TopologyClass::kIrregular);

  Result<HybridCubeMesh> refused = FindHybridCubeMesh(EmulatedTopology(4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
  EXPECT_THAT(refused.status().message(), HasSubstr("nvswitch"));
}

TEST(Topology, FindNamesTheKnownGpus) {
  Topology topology = EmulatedTopology(2);
  ASSERT_TRUE(topology.Find("EMU-0000-0001").ok());
  EXPECT_EQ(*topology.Find("EMU-0000-0001"), 1);
  Result<int> missing = topology.Find("GPU-x");
  EXPECT_EQ(missing.status().code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(), HasSubstr("EMU-0000-0000, EMU-0000-0001"));
  EXPECT_THAT(Topology{}.Find("x").status().message(), HasSubstr("none"));
}

TEST(Topology, NamesAreThePeoplesOwn) {
  EXPECT_EQ(TopologyClassName(TopologyClass::kHybridCubeMesh), "hybrid_cube_mesh");
  EXPECT_EQ(TopologyClassName(TopologyClass::kIrregular), "irregular");
  EXPECT_EQ(PcieDistanceName(PcieDistance::kPix), "PIX");
  EXPECT_EQ(PcieDistanceName(PcieDistance::kSys), "SYS");
}

}  // namespace
}  // namespace tandem
