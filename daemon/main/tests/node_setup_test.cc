// How tandemd chooses its backend and topology, without a GPU: NVML is a mock.
#include "daemon/main/node_setup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/topology/topology_file.h"
#include "drivers/nvml/mock_nvml.h"

namespace tandem::daemon {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::NiceMock;

NodeSources Machine(int gpus, bool cuda_built = true) {
  return {.cuda_built = cuda_built, .open_nvml = [gpus]() -> Result<std::unique_ptr<NvmlApi>> {
            if (gpus == 0) return Unavailable("no libnvidia-ml.so.1");
            return std::unique_ptr<NvmlApi>(std::make_unique<NiceMock<MockNvml>>(gpus));
          }};
}

Config With(BackendKind backend, const std::string& topology_file = {}) {
  Config config;
  config.backend = backend;
  config.topology_file = topology_file;
  return config;
}

const std::string kCubeMesh = TANDEM_SOURCE_DIR "/tests/fixtures/topology/dgx-1v.toml";

TEST(ChooseNodeTest, AutoTakesCudaWhereThereAreGpusAndABuildForThem) {
  Result<NodeChoice> node = ChooseNode(With(BackendKind::kAuto), Machine(2));
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  EXPECT_EQ(node->backend, "cuda");
  ASSERT_EQ(node->topology.size(), 2);
  EXPECT_EQ(node->topology.gpus[1].uuid, "GPU-1");
  EXPECT_EQ(node->topology.gpus[1].memory_bytes, uint64_t{80} << 30);
}

TEST(ChooseNodeTest, AutoTakesTheHostElseAndSaysWhy) {
  Result<NodeChoice> without_gpus = ChooseNode(With(BackendKind::kAuto), Machine(0));
  ASSERT_TRUE(without_gpus.ok());
  EXPECT_EQ(without_gpus->backend, "host");
  EXPECT_THAT(without_gpus->notes, Contains(HasSubstr("no libnvidia-ml.so.1")));
  Result<NodeChoice> without_cuda = ChooseNode(With(BackendKind::kAuto), Machine(2, false));
  ASSERT_TRUE(without_cuda.ok());
  EXPECT_EQ(without_cuda->backend, "host");
  EXPECT_EQ(without_cuda->topology.source, "emulated");
}

TEST(ChooseNodeTest, TakesOnlyTheGpusThatASchedulerGave) {
  NodeSources machine = Machine(4);
  machine.visible_devices = "GPU-2,GPU-3";
  Result<NodeChoice> node = ChooseNode(With(BackendKind::kCuda), machine);
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  ASSERT_EQ(node->topology.size(), 2);
  EXPECT_EQ(node->topology.gpus[0].uuid, "GPU-2");
  machine.visible_devices = "9";
  EXPECT_THAT(ChooseNode(With(BackendKind::kCuda), machine).status().message(),
              HasSubstr("CUDA_VISIBLE_DEVICES names '9'"));
}

TEST(ChooseNodeTest, HostIsTakenBesideGpusWhenAskedFor) {
  Result<NodeChoice> node = ChooseNode(With(BackendKind::kHost), Machine(2));
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(node->backend, "host");
  EXPECT_EQ(node->topology.gpus[0].uuid, "EMU-0000-0000");
}

TEST(ChooseNodeTest, CudaWithoutGpusOrABuildIsRefusedWithTheReason) {
  Status without_gpus = ChooseNode(With(BackendKind::kCuda), Machine(0)).status();
  EXPECT_EQ(without_gpus.code(), Code::kFailedPrecondition);
  EXPECT_THAT(without_gpus.message(), HasSubstr("no libnvidia-ml.so.1"));
  Status without_cuda = ChooseNode(With(BackendKind::kCuda), Machine(2, false)).status();
  EXPECT_EQ(without_cuda.code(), Code::kFailedPrecondition);
  EXPECT_THAT(without_cuda.message(), HasSubstr("built without"));
}

TEST(ChooseNodeTest, AFilesLinksAreForcedOnRealGpusWhichKeepTheirNames) {
  Result<NodeChoice> node = ChooseNode(With(BackendKind::kCuda, kCubeMesh), Machine(8));
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  EXPECT_EQ(Classify(node->topology), TopologyClass::kHybridCubeMesh);
  EXPECT_EQ(node->topology.gpus[7].uuid, "GPU-7");
  EXPECT_EQ(node->topology.gpus[7].model, "Test GPU");
  EXPECT_EQ(node->topology.gpus[7].memory_bytes, uint64_t{80} << 30);
  EXPECT_THAT(node->notes, Contains(HasSubstr("dgx-1v.toml")));
}

TEST(ChooseNodeTest, AFileDoesNotGivePeerAccessThatIsNotThere) {
  NodeSources machine = Machine(8);
  machine.open_nvml = []() -> Result<std::unique_ptr<NvmlApi>> {
    auto nvml = std::make_unique<NiceMock<MockNvml>>(8);
    ON_CALL(*nvml, P2pStatus)
        .WillByDefault([](NvmlDevice, NvmlDevice, NvmlP2pIndex) -> Result<NvmlP2pStatus> {
          return NvmlP2pStatus::kNotSupported;
        });
    return std::unique_ptr<NvmlApi>(std::move(nvml));
  };
  Result<NodeChoice> node = ChooseNode(With(BackendKind::kCuda, kCubeMesh), machine);
  ASSERT_TRUE(node.ok());
  EXPECT_EQ(Classify(node->topology), TopologyClass::kPcieOnly);
}

TEST(ChooseNodeTest, AFileOfMoreGpusThanThereAreIsRefused) {
  Status status = ChooseNode(With(BackendKind::kCuda, kCubeMesh), Machine(4)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("8 GPUs; this node has 4"));
}

TEST(ChooseNodeTest, AnEngineOfASharedGpuSeesTheDevicesOnce) {
  Config config = With(BackendKind::kCuda);
  config.testing.engines_per_gpu = 2;
  Result<NodeChoice> node = ChooseNode(config, Machine(2));
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  ASSERT_EQ(node->topology.size(), 4);
  EXPECT_EQ(node->topology.gpus[3].uuid, "GPU-1#1");
  EXPECT_THAT(EngineEnvironment(*node, node->topology.gpus[3]), Contains("CUDA_VISIBLE_DEVICES=GPU-1,GPU-0"));
  EXPECT_THAT(EngineEnvironment(*node, node->topology.gpus[3]), Contains("CUDA_DEVICE_MAX_CONNECTIONS=24"));
  config.testing.engines_per_gpu = 8;
  EXPECT_THAT(ChooseNode(config, Machine(2)).status().message(), HasSubstr("at most 8"));
}

TEST(ChooseNodeTest, AFilesLinksAreForcedOnSharesToo) {
  Config config = With(BackendKind::kCuda, kCubeMesh);
  config.testing.engines_per_gpu = 4;
  Result<NodeChoice> node = ChooseNode(config, Machine(2));
  ASSERT_TRUE(node.ok()) << node.status().ToString();
  EXPECT_EQ(Classify(node->topology), TopologyClass::kHybridCubeMesh);
}

TEST(ChooseNodeTest, AnEngineSeesItsGpuFirst) {
  NodeChoice node = *ChooseNode(With(BackendKind::kCuda), Machine(2));
  EXPECT_THAT(EngineEnvironment(node, node.topology.gpus[1]), Contains("CUDA_VISIBLE_DEVICES=GPU-1,GPU-0"));
  EXPECT_THAT(EngineEnvironment(node, node.topology.gpus[1]), Contains("CUDA_DEVICE_MAX_CONNECTIONS=32"));
  NodeChoice host = *ChooseNode(With(BackendKind::kHost), Machine(0));
  EXPECT_THAT(EngineEnvironment(host, host.topology.gpus[0]), IsEmpty());
}

}  // namespace
}  // namespace tandem::daemon
