// Launches whose input comes in chunks: no lane waits for a client, so that late chunks hold up nobody else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "daemon/planner/planner.h"
#include "engine/tests/engine_node.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSide = 8;
constexpr int kChunks = 2;
constexpr uint64_t kMatrixBytes = kSide * kSide * 4, kBOffset = 4096, kCOffset = 8192, kWordsOffset = 12288;

class HeldTest : public ::testing::Test {
 protected:
  void Begin(int world, uint64_t deadline_ms) {
    std::vector<int> gpus;
    for (int gpu = 0; gpu < world; ++gpu) gpus.push_back(gpu);
    node_ = std::make_unique<EngineNode>(world, 2);
    group_ = node_->AddGroup(100, gpus, deadline_ms);
    bystander_ = node_->AddGroup(101, gpus);
    other_ = node_->AddBarrierPlan(&bystander_);
    product_ = AddProduct(gpus.size());
    for (const int gpu : gpus) {
      channels_.push_back(node_->OpenChannel(gpu));
      others_.push_back(node_->OpenChannel(gpu));
      auto* values = reinterpret_cast<float*>(node_->Data(group_, gpu));
      for (int64_t i = 0; i < kSide * kSide; ++i) {
        values[i] = static_cast<float>(gpu + i);
        values[kBOffset / 4 + i] = i % (kSide + 1) == 0 ? 1.0f : 0.0f;
      }
    }
  }
  uint64_t AddProduct(size_t world) {
    const TensorSpec matrix{DType::kF32, {kSide, kSide}, {}};
    OpRequest request;
    request.op = Op::kAsyncInputMatmul;
    request.chunk_pivot = 1;
    request.operands = {{Role::kA, matrix, false, -1},
                        {Role::kB, matrix, false, -1},
                        {Role::kC, matrix, false, -1},
                        {Role::kChunkSignals, {DType::kI32, {kChunks}, {}}, false, -1}};
    plan::GroupContext context;
    context.topology = EmulatedTopology(static_cast<int>(world));
    const auto planned = plan::MakePlan(std::vector<OpRequest>(world, request), context);
    EXPECT_TRUE(planned.ok()) << planned.status().ToString();
    std::vector<v1::PlanSlot> slots(4);
    for (v1::PlanSlot& slot : slots) {
      slot.set_span_bytes(kMatrixBytes);
      slot.set_alignment(4);
      slot.set_alias_of(-1);
    }
    slots[3].set_span_bytes(kChunks * 4);
    return node_->AddPlan(&group_, planned->programs, slots);
  }
  uint64_t LaunchProduct(int rank) {
    const uint64_t memory = group_.registration;
    return channels_[static_cast<size_t>(rank)]->Launch(
        Entry(product_, {{memory, 0}, {memory, kBOffset}, {memory, kCOffset}, {memory, kWordsOffset}}));
  }
  LaunchOutcome Outcome(int rank, uint64_t sequence) {
    TestChannel& channel = *channels_[static_cast<size_t>(rank)];
    EXPECT_TRUE(channel.Wait(sequence));
    return channel.producer.Outcome(sequence);
  }
  void Announce(int rank, int chunk) {
    auto* words = reinterpret_cast<std::atomic<uint32_t>*>(node_->Data(group_, rank) + kWordsOffset);
    words[chunk].store(1, std::memory_order_release);
  }
  void RunOther() {
    std::vector<uint64_t> sequences;
    for (const auto& channel : others_) sequences.push_back(channel->Launch(Entry(other_)));
    for (size_t rank = 0; rank < others_.size(); ++rank) {
      ASSERT_TRUE(others_[rank]->Wait(sequences[rank]));
      const Status status = others_[rank]->producer.Outcome(sequences[rank]).status;
      EXPECT_TRUE(status.ok()) << status.ToString();
    }
  }
  bool AwaitAwaited(int rank, const std::string& text) {
    return node_->AwaitQueue(rank, [&](const v1::Queue& queue) {
      return queue.items_size() == 1 && queue.items(0).awaits() == text && !queue.items(0).started();
    });
  }

  std::unique_ptr<EngineNode> node_;
  TestGroup group_, bystander_;
  uint64_t product_ = 0, other_ = 0;
  std::vector<std::unique_ptr<TestChannel>> channels_, others_;
};

TEST_F(HeldTest, OtherGroupsRunWhileChunksAreLate) {
  Begin(1, 60000);
  const uint64_t sequence = LaunchProduct(0);
  ASSERT_TRUE(AwaitAwaited(0, "chunk 0 of 2 of its input"));
  for (int round = 0; round < 20; ++round) RunOther();
  Announce(0, 0);
  ASSERT_TRUE(AwaitAwaited(0, "chunk 1 of 2 of its input"));
  RunOther();
  Announce(0, 1);
  const LaunchOutcome outcome = Outcome(0, sequence);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_EQ(std::memcmp(node_->Data(group_, 0), node_->Data(group_, 0) + kCOffset, kMatrixBytes), 0);
}

TEST_F(HeldTest, ARankWithLateChunksDelaysNoOtherRank) {
  Begin(2, 60000);
  Announce(1, 0);
  Announce(1, 1);
  const uint64_t late = LaunchProduct(0), ready = LaunchProduct(1);
  EXPECT_TRUE(Outcome(1, ready).status.ok());
  ASSERT_TRUE(AwaitAwaited(0, "chunk 0 of 2 of its input"));
  Announce(0, 1);
  Announce(0, 0);
  EXPECT_TRUE(Outcome(0, late).status.ok());
}

TEST_F(HeldTest, ChunksThatNeverComeEndTheirLaunchAlone) {
  Begin(2, 300);
  Announce(1, 0);
  Announce(1, 1);
  Announce(0, 0);
  const uint64_t late = LaunchProduct(0), ready = LaunchProduct(1);
  const LaunchOutcome outcome = Outcome(0, late);
  EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(outcome.status.detail().reason, "CHUNKS_LATE") << outcome.status.ToString();
  EXPECT_EQ(outcome.status.detail().started, std::optional(false));
  EXPECT_EQ(outcome.who_rank, 0);
  EXPECT_THAT(outcome.status.message(), HasSubstr("chunk 1 of 2 of rank 0's input"));
  EXPECT_TRUE(Outcome(1, ready).status.ok());
  // The group goes on.
  Announce(0, 1);
  const uint64_t next = LaunchProduct(0), its = LaunchProduct(1);
  EXPECT_TRUE(Outcome(0, next).status.ok());
  EXPECT_TRUE(Outcome(1, its).status.ok());
}

TEST_F(HeldTest, ABreakEndsAHeldLaunch) {
  Begin(1, 60000);
  const uint64_t sequence = LaunchProduct(0);
  ASSERT_TRUE(AwaitAwaited(0, "chunk 0 of 2 of its input"));
  ASSERT_TRUE(node_->Break(0, group_, Code::kUnavailable, "rank 0 has died", 0).ok());
  const LaunchOutcome outcome = Outcome(0, sequence);
  EXPECT_EQ(outcome.status.code(), Code::kUnavailable) << outcome.status.ToString();
  RunOther();
}

TEST_F(HeldTest, ThePlansRemovalEndsAHeldLaunch) {
  Begin(1, 60000);
  const uint64_t sequence = LaunchProduct(0);
  ASSERT_TRUE(AwaitAwaited(0, "chunk 0 of 2 of its input"));
  v1::Command command;
  command.mutable_remove_plan()->set_plan_id(product_);
  ASSERT_TRUE(node_->Call(0, command).ok());
  EXPECT_EQ(Outcome(0, sequence).status.detail().reason, "RELEASED");
  RunOther();
}

}  // namespace
}  // namespace tandem::engine
