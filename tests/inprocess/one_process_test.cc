// All engines and all clients of a node in one process, each rank a thread. The client library, the channels,
// the launch queue, the executor and the host backend run together, for TSan to watch. Values are small
// integers: sums are exact in any order.
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/lib/handles.h"
#include "common/shared_memory.h"
#include "tandem/host_stream.h"
#include "tests/inprocess/node_control.h"

namespace tandem::inprocess {
namespace {

constexpr Milliseconds kLong(120'000);
constexpr int kRounds = 30;
constexpr int64_t kCount = 500;
constexpr int64_t kM = 6, kN = 5, kK = 8;
// Bytes into the symmetric tensor: the sum's, the captured sum's and the product's operands.
constexpr uint64_t kIn = 0, kOut = 4096, kCapturedIn = 8192, kCapturedOut = 12288;
constexpr uint64_t kA = 16384, kB = 20480, kC = 24576;

Operand MakeOperand(Role role, std::vector<int64_t> shape, bool symmetric) {
  Operand operand;
  operand.role = role;
  operand.spec.shape = std::move(shape);
  operand.symmetric = symmetric;
  return operand;
}

OpRequest SumRequest(Algorithm algorithm) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.algorithm = algorithm;
  request.operands = {MakeOperand(Role::kInput, {kCount}, true), MakeOperand(Role::kOutput, {kCount}, true)};
  return request;
}

OpRequest ProductRequest(Algorithm algorithm, int world_size) {
  OpRequest request;
  request.op = Op::kAllGatherMatmul;
  request.algorithm = algorithm;
  request.operands = {MakeOperand(Role::kA, {kM, kK}, false), MakeOperand(Role::kB, {kK, kN}, false),
                      MakeOperand(Role::kC, {kM * world_size, kN}, false)};
  return request;
}

// One rank: a client, its handles, and two streams.
class Rank {
 public:
  Rank(Node* node, int rank, Algorithm sum, Algorithm product) : rank_(rank), world_(node->world_size()) {
    client_ = client::ConnectThrough(node->MakeControl(rank), {}).value();
    JoinOptions join;
    join.job_key = "0123456789abcdef";
    join.name = "tp";
    join.world_size = world_;
    join.rank = rank;
    group_ = client_->JoinGroup(join).value();
    tensor_ = group_->Allocate({int64_t{engine::EngineNode::kDataBytes} / 4}, DType::kF32).value();
    sum_ = group_->Prepare("sum", SumRequest(sum), kLong).value();
    captured_ = group_->Prepare("captured sum", SumRequest(sum), kLong).value();
    product_ = group_->Prepare("product", ProductRequest(product, world_), kLong).value();
    first_ = HostStream::Create().value();
    second_ = HostStream::Create().value();
  }

  // Sums on one stream, products on the other, from two threads.
  void RunRounds() {
    std::thread products([&] {
      for (int round = 0; round < kRounds; ++round) Multiply(round);
      EXPECT_TRUE(second_->Synchronize(kLong).ok());
    });
    for (int round = 0; round < kRounds; ++round) Sum(round);
    EXPECT_TRUE(first_->Synchronize(kLong).ok());
    products.join();
    for (auto& plan : {sum_, product_}) {
      Status ended = plan->Wait(kLong);
      EXPECT_TRUE(ended.ok()) << ended.ToString();
    }
    EXPECT_EQ(wrong_, 0) << "elements of rank " << rank_;
  }

  // The same sum, recorded once and replayed.
  void Replay() {
    ASSERT_TRUE(first_->BeginCapture().ok());
    ASSERT_TRUE(first_->Enqueue([this] { FillSum(kCapturedIn, replayed_); }).ok());
    Binding bindings[] = {{tensor_.get(), kCapturedIn}, {tensor_.get(), kCapturedOut}};
    ASSERT_TRUE(captured_->Launch(first_.get(), bindings).ok());
    ASSERT_TRUE(first_->Enqueue([this] { CheckSum(kCapturedOut, replayed_++); }).ok());
    HostGraph graph = first_->EndCapture().value();
    HostGraphExec exec = graph.Instantiate().value();
    for (int replay = 0; replay < kRounds; ++replay) ASSERT_TRUE(exec.Launch(*first_).ok());
    ASSERT_TRUE(first_->Synchronize(kLong).ok());
    EXPECT_TRUE(captured_->Wait(kLong).ok());
    EXPECT_EQ(replayed_, kRounds);
    EXPECT_EQ(wrong_, 0) << "elements of rank " << rank_ << " in replays";
  }

  // A launch that never comes to its end: rank 0 does not make it.
  void LaunchInVain() { Sum(0, /*check=*/false); }
  void ExpectBroken(const std::string& message) {
    EXPECT_TRUE(first_->Synchronize(kLong).ok()) << "the stream of rank " << rank_ << " was not released";
    EXPECT_EQ(sum_->Wait(kLong).message(), rank_ == 0 ? "" : message);
    EXPECT_EQ(product_->Launch(second_.get(), {}).message(), message);
  }

 private:
  float* At(uint64_t offset) { return reinterpret_cast<float*>(tensor_->data() + offset); }
  void FillSum(uint64_t offset, int round) {
    for (int64_t i = 0; i < kCount; ++i) At(offset)[i] = static_cast<float>(rank_ + i % 7 + round);
  }
  void CheckSum(uint64_t offset, int round) {
    for (int64_t i = 0; i < kCount; ++i) {
      auto expected = static_cast<float>(world_ * (world_ - 1) / 2 + world_ * (i % 7 + round));
      wrong_ += At(offset)[i] == expected ? 0 : 1;
    }
  }
  void Sum(int round, bool check = true) {
    EXPECT_TRUE(first_->Enqueue([this, round] { FillSum(kIn, round); }).ok());
    Binding bindings[] = {{tensor_.get(), kIn}, {tensor_.get(), kOut}};
    Status launched = sum_->Launch(first_.get(), bindings);
    EXPECT_TRUE(launched.ok()) << launched.ToString();
    if (!check) return;
    EXPECT_TRUE(first_->Enqueue([this, round] { CheckSum(kOut, round); }).ok());
  }
  // Row i of rank r's A is r + 1 throughout, B is round + 1 in its first row and 1 below.
  void Multiply(int round) {
    EXPECT_TRUE(second_
                    ->Enqueue([this, round] {
                      for (int64_t i = 0; i < kM * kK; ++i) At(kA)[i] = static_cast<float>(rank_ + 1);
                      for (int64_t i = 0; i < kK * kN; ++i)
                        At(kB)[i] = static_cast<float>(i < kN ? round + 1 : 1);
                    })
                    .ok());
    Binding bindings[] = {{tensor_.get(), kA}, {tensor_.get(), kB}, {tensor_.get(), kC}};
    Status launched = product_->Launch(second_.get(), bindings);
    EXPECT_TRUE(launched.ok()) << launched.ToString();
    EXPECT_TRUE(second_
                    ->Enqueue([this, round] {
                      for (int64_t i = 0; i < world_ * kM * kN; ++i) {
                        auto expected = static_cast<float>((i / (kM * kN) + 1) * (kK + round));
                        wrong_ += At(kC)[i] == expected ? 0 : 1;
                      }
                    })
                    .ok());
  }

  const int rank_, world_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<SymmetricTensor> tensor_;
  std::shared_ptr<Plan> sum_, captured_, product_;
  std::unique_ptr<HostStream> first_, second_;
  std::atomic<int64_t> wrong_{0};
  int replayed_ = 0;
};

struct Case {
  int world_size;
  int hardware_queues;
  Algorithm sum, product;
};

class OneProcessTest : public testing::TestWithParam<Case> {};

TEST_P(OneProcessTest, LaunchesReplaysAndABreak) {
  const Case& test = GetParam();
  const std::string lost = "rank 0 (pid 5) was lost";
  Node node(test.world_size, test.hardware_queues);
  std::barrier together(test.world_size);
  std::vector<std::thread> ranks;
  for (int i = 0; i < test.world_size; ++i) {
    ranks.emplace_back([&, i] {
      Rank rank(&node, i, test.sum, test.product);
      rank.RunRounds();
      rank.Replay();
      together.arrive_and_wait();
      if (i != 0) rank.LaunchInVain();
      together.arrive_and_wait();
      if (i == 0) {
        EXPECT_TRUE(node.AwaitQueued(1, 1));
        node.Break(lost, 0);
      }
      together.arrive_and_wait();
      rank.ExpectBroken(lost);
      together.arrive_and_wait();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

INSTANTIATE_TEST_SUITE_P(Worlds, OneProcessTest,
                         testing::Values(Case{2, 1, Algorithm::kOneShot, Algorithm::kPipeline},
                                         Case{3, 8, Algorithm::kTwoShot, Algorithm::kRing},
                                         Case{4, 2, Algorithm::kTwoShot, Algorithm::kPipeline}));

TEST(SharedMappingsTest, OneFileHasOneAddress) {
  UniqueFd fd = CreateSealedMemfd("one-address", 8192).value();
  Mapping whole = Mapping::Map(fd.get(), 0, 8192, true).value();
  Mapping part = Mapping::Map(fd.get(), 4096, 4096, false).value();
  EXPECT_EQ(part.data(), whole.data() + 4096) << "TSan would not see races between mappings";
}

}  // namespace
}  // namespace tandem::inprocess
