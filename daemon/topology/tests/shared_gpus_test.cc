#include "daemon/topology/shared_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/gpu_name.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(ShareGpus, SharesAreGpusOfTheirOwnWithAPartOfTheMemory) {
  const Topology whole = EmulatedTopology(2, uint64_t{8} << 30);
  Result<Topology> shared = ShareGpus(whole, 4);
  ASSERT_TRUE(shared.ok()) << shared.status().ToString();
  ASSERT_EQ(shared->size(), 8);
  EXPECT_EQ(Classify(*shared), TopologyClass::kNvSwitch);
  EXPECT_EQ(shared->gpus[0].uuid, whole.gpus[0].uuid + "#0");
  EXPECT_EQ(shared->gpus[7].uuid, whole.gpus[1].uuid + "#3");
  for (int i = 0; i < 8; ++i) {
    const GpuInfo& gpu = shared->gpus[static_cast<size_t>(i)];
    EXPECT_EQ(DeviceUuid(gpu.uuid), whole.gpus[static_cast<size_t>(i % 2)].uuid)
        << "neighbours are of different devices";
    EXPECT_EQ(gpu.memory_bytes, uint64_t{2} << 30);
    EXPECT_NE(gpu.model, whole.gpus[0].model) << "the table of whole GPUs would hold for it";
    for (int j = 0; j < 8; ++j) {
      EXPECT_EQ(shared->HasPeerAccess(i, j), i != j);
      EXPECT_EQ(shared->pcie[i][j] == PcieDistance::kSame, i == j)
          << "a topology file has it on the diagonal only";
    }
  }
}

TEST(ShareGpus, KeepsWhatLiesBetweenDevices) {
  Topology whole = EmulatedTopology(2);
  for (GpuInfo& gpu : whole.gpus) gpu.switch_links = 0;
  whole.p2p[0][1] = whole.p2p[1][0] = false;
  const Topology shared = *ShareGpus(whole, 2);
  // 0 and 2 are the first device's.
  EXPECT_TRUE(shared.HasPeerAccess(0, 2));
  EXPECT_FALSE(shared.HasPeerAccess(0, 1));
  EXPECT_EQ(shared.LinkCount(0, 3), 0);
  const int first_device[] = {0, 2};
  EXPECT_EQ(Classify(Subset(shared, first_device)), TopologyClass::kFullMesh);
}

TEST(ShareGpus, OneEngineAGpuChangesNothing) {
  const Topology same = *ShareGpus(EmulatedTopology(3), 1);
  EXPECT_EQ(same.source, "emulated");
  EXPECT_EQ(same.gpus[2].uuid, EmulatedTopology(3).gpus[2].uuid);
  EXPECT_FALSE(SharesDevice(same));
}

TEST(ShareGpus, RefusesMoreThanThereCanBe) {
  EXPECT_THAT(ShareGpus(EmulatedTopology(3), 3).status().message(),
              HasSubstr("3 engines on each of 3 GPUs: at most 8"));
  EXPECT_FALSE(ShareGpus(EmulatedTopology(1), 0).ok());
}

TEST(SharesDevice, AsksForTheGroupsGpusOnly) {
  const Topology shared = *ShareGpus(EmulatedTopology(2), 2);
  const int apart[] = {0, 1}, together[] = {0, 1, 2};
  EXPECT_FALSE(SharesDevice(Subset(shared, apart)));
  EXPECT_TRUE(SharesDevice(Subset(shared, together)));
}

TEST(GpuName, AGpuOfItsOwnIsItsDevice) {
  EXPECT_EQ(DeviceUuid("GPU-6e1a"), "GPU-6e1a");
  EXPECT_EQ(DeviceUuid(SharedGpuName("GPU-6e1a", 3)), "GPU-6e1a");
}

}  // namespace
}  // namespace tandem
