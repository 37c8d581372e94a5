// Memory by bare addresses on a GPU that several engines share: the rank decides the share.
#include <gtest/gtest.h>

#include <vector>

#include "client/tests/fake_daemon_test.h"
#include "client/tests/slow_device.h"

namespace tandem::client {
namespace {

class SharedGpuTest : public HostClientTest {
 protected:
  void SetUp() override {
    MakeDaemon("host", "GPU-0#1");
    client_ =
        ConnectThrough(std::make_unique<FakeControl>(daemon_), {}, std::make_shared<SlowDevice>()).value();
    stream_ = HostStream::Create().value();
  }
  std::shared_ptr<Group> Join(const std::string& gpu_uuid) {
    JoinOptions join{.job_key = "0123456789abcdef", .world_size = 2, .gpu_uuid = gpu_uuid};
    return client_->JoinGroup(join).value();
  }
  std::shared_ptr<Plan> Prepare(const std::shared_ptr<Group>& group) {
    OpRequest request{.op = Op::kAllReduce};
    request.operands = {{Role::kInput, {DType::kF32, {256}}}, {Role::kOutput, {DType::kF32, {256}}}};
    return group->Prepare("reduce", request).value();
  }
  std::vector<std::string> Registered() {
    std::lock_guard lock(daemon_->mutex);
    std::vector<std::string> gpus;
    for (const RegisterInfo& memory : daemon_->registered) gpus.push_back(memory.gpu_uuid);
    return gpus;
  }
  const std::vector<std::byte> in_ = std::vector<std::byte>(1024), out_ = std::vector<std::byte>(1024);
};

TEST_F(SharedGpuTest, MemoryIsRegisteredWithTheRanksShare) {
  auto group = Join("GPU-0#1");
  auto memory = client_->RegisterCuda(in_.data(), in_.size()).value();
  EXPECT_EQ(memory->gpu_uuid(), "GPU-0#1");
  EXPECT_EQ(Registered(), std::vector<std::string>{"GPU-0#1"});
  auto plan = Prepare(group);
  const Binding bindings[] = {{.memory = memory.get()}, {.pointer = out_.data()}};
  EXPECT_TRUE(plan->Launch(stream_.get(), bindings).ok());
  const LaunchEntry entry = Arrive(Engine());
  EXPECT_EQ(entry.bindings[0].registration_id, memory->registration_id());
  EXPECT_NE(entry.bindings[1].registration_id, 0u);
  Finish(Engine(), entry);
  EXPECT_EQ(Registered(), (std::vector<std::string>{"GPU-0#1", "GPU-0#1"}));
}

// One process with two ranks on one GPU, as tests have it: each rank's launches have a separate
// registration.
TEST_F(SharedGpuTest, EachRankOfAProcessHasARegistrationOfItsShare) {
  auto first = Prepare(Join("GPU-0#0"));
  auto second = Prepare(Join("GPU-0#1"));
  for (int times = 0; times < 2; ++times) {
    for (const auto& plan : {first, second}) {
      const Binding bindings[] = {{.pointer = in_.data()}, {.pointer = out_.data()}};
      EXPECT_TRUE(plan->Launch(stream_.get(), bindings).ok());
      ChannelConsumer* engine = Engine(plan == first ? 0 : 1);
      Finish(engine, Arrive(engine));
    }
  }
  EXPECT_EQ(Registered(), (std::vector<std::string>{"GPU-0#0", "GPU-0#0", "GPU-0#1", "GPU-0#1"}));
}

TEST_F(SharedGpuTest, WithoutARankNobodyKnowsTheShare) {
  const Status status = client_->RegisterCuda(in_.data(), in_.size()).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.detail().reason, "NO_SHARE");
  EXPECT_TRUE(Registered().empty());
}

}  // namespace
}  // namespace tandem::client
