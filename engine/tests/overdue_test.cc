// Programs that have started and do not end: their group breaks by the deadline, with a reason that names the
// peer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/planner/planner.h"
#include "engine/tests/engine_node.h"
#include "engine/tests/wrapped_backend.h"
#include "program/packet_layout.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Rank 0 waits for a signal from rank 1 that rank 1's program does not send.
uint64_t AddHangingPlan(EngineNode* node, TestGroup* group) {
  std::vector<plan::RankProgram> programs(2);
  programs[1].rank = 1;
  for (plan::RankProgram& program : programs) {
    program.world_size = 2;
    program.signal_count = 2;
  }
  plan::Step wait;
  wait.work = plan::WaitStep{1, 1};
  programs[0].steps.push_back(wait);
  plan::Step signal;
  signal.work = plan::SignalStep{0, 0};
  programs[1].steps.push_back(signal);
  return node->AddPlan(group, programs, {});
}

TEST(OverdueTest, AProgramThatCannotEndBreaksItsGroupAndNamesThePeer) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1}, 3000);  // time for rank 1's program to end on a busy machine
  TestGroup bystander = node.AddGroup(101, {0, 1});
  uint64_t hanging = AddHangingPlan(&node, &group);
  uint64_t other = node.AddBarrierPlan(&bystander);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  const auto begin = Clock::now();
  channel0->Launch(Entry(hanging));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(hanging)).status.ok());
  ASSERT_TRUE(channel0->Wait(1));
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(3000));
  const LaunchOutcome outcome = channel0->producer.Outcome(1);
  EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded) << outcome.status.ToString();
  EXPECT_EQ(outcome.who_rank, 1);
  EXPECT_THAT(outcome.status.message(), HasSubstr("launch 1 of plan " + std::to_string(hanging)));
  EXPECT_THAT(outcome.status.message(), HasSubstr("wait for signals of rank 1"));
  // tandemd hears it with the reason, and breaks the group on the other engines.
  v1::Message message;
  ASSERT_TRUE(node.Await(
      0, [](const v1::Message& m) { return m.has_launch_failed() && m.launch_failed().breaks_group(); },
      &message));
  EXPECT_EQ(message.launch_failed().group_id(), group.id);
  EXPECT_EQ(message.launch_failed().generation(), group.generation);
  EXPECT_EQ(message.launch_failed().code(), static_cast<int>(Code::kDeadlineExceeded));
  EXPECT_EQ(message.launch_failed().who(), "rank 1");
  // Even without tandemd the log has them.
  EXPECT_EQ(channel1->LaunchAndWait(Entry(hanging)).status.code(), Code::kUnavailable);
  EXPECT_EQ(channel0->LaunchAndWait(Entry(hanging)).status.code(), Code::kDeadlineExceeded);
  channel0->Launch(Entry(other));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(other)).status.ok());
  ASSERT_TRUE(channel0->Wait(3));
  EXPECT_TRUE(channel0->producer.Outcome(3).status.ok());
}

TEST(OverdueTest, ALaunchMayRunAsLongAsItsOwnDeadlineAndWaitForLanesLonger) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0}, 400);
  std::vector<uint64_t> gates;
  for (uint16_t index : {0, 1}) {
    plan::RankProgram program;
    program.world_size = 1;
    program.signal_count = 2;
    plan::Step wait;
    wait.work = plan::WaitStep{0, index};
    program.steps.push_back(wait);
    gates.push_back(node.AddPlan(&group, {program}, {}));
  }
  auto first = node.OpenChannel(0);
  auto second = node.OpenChannel(0);
  LaunchEntry patient = Entry(gates[0]);
  patient.deadline_ns = 60'000'000'000;
  first->Launch(patient);
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  second->Launch(Entry(gates[1]));
  ASSERT_TRUE(node.AwaitQueued(0, 2));
  // Past the group's deadline, that of the second launch too; but that one has not had the lanes yet.
  for (const auto until = Clock::now() + std::chrono::seconds(1); Clock::now() < until;
       std::this_thread::yield()) {
    ASSERT_EQ(first->producer.Done(), 0u);
    ASSERT_EQ(second->producer.Done(), 0u);
  }
  // The second one's gate is open before it gets the lanes: its time on them is not the test's.
  node.SignalWord(group, 0, 0, 1)->store(1000);
  node.SignalWord(group, 0, 0, 0)->store(1000);
  ASSERT_TRUE(first->Wait(1));
  ASSERT_TRUE(second->Wait(1));
  EXPECT_TRUE(first->producer.Outcome(1).status.ok()) << first->producer.Outcome(1).status.ToString();
  EXPECT_TRUE(second->producer.Outcome(1).status.ok()) << second->producer.Outcome(1).status.ToString();
}

// A kernel of packets: sends the packets of the rank, unless the rank is `silent`, then waits for ever.
class PacketLane : public WrappedLane {
 public:
  PacketLane(std::unique_ptr<Lane> wrapped, int silent) : WrappedLane(std::move(wrapped)), silent_(silent) {}
  Status Collective(const CollectiveArgs& args) override {
    const auto& packets = *args.As<PacketsArgs>();
    const PacketLayout layout{.half_bytes = packets.packet_bytes, .world = args.world_size};
    for (int peer = 0; peer < args.world_size && args.rank != silent_; ++peer) {
      if (peer == args.rank) continue;
      const uint64_t bytes =
          static_cast<uint64_t>(packets.pieces[static_cast<size_t>(peer)]) * DTypeBytes(args.dtype);
      for (uint64_t i = 0; i < PacketLayout::packets_of(bytes); ++i) {
        const uint64_t packet = layout.first_packet(0, args.rank) + i;
        std::byte* at = packets.packets[static_cast<size_t>(peer)] + packet * PacketLayout::kPacketBytes;
        reinterpret_cast<Word*>(at + PacketLayout::kDataBytes)->store(args.launch_number);
      }
    }
    return lane().WaitWord(args.abort_word, 1);
  }

 private:
  int silent_;
};

class PacketBackend : public WrappedBackend {
 public:
  PacketBackend(std::unique_ptr<Backend> backend, int silent)
      : WrappedBackend(std::move(backend), [silent](std::unique_ptr<Lane> lane, int, WrappedBackend&) {
          return std::make_unique<PacketLane>(std::move(lane), silent);
        }) {}
  bool HasCollective(const CollectiveArgs& args) const override { return args.As<PacketsArgs>() != nullptr; }
};

// The failure of rank 0's launch of an all-reduce by packets among so many ranks, of which one sends nothing.
LaunchOutcome OverdueByPackets(int world, int silent) {
  EngineNode node(world, 8, [silent](std::unique_ptr<Backend> backend) {
    return std::make_unique<PacketBackend>(std::move(backend), silent);
  });
  std::vector<int> gpus;
  for (int gpu = 0; gpu < world; ++gpu) gpus.push_back(gpu);
  TestGroup group = node.AddGroup(100, gpus, 3000);  // the others send within it on a busy machine
  OpRequest request;
  request.op = Op::kAllReduce;
  request.algorithm = Algorithm::kLowLatency;
  for (Role role : {Role::kInput, Role::kOutput}) {
    request.operands.push_back({role, {DType::kF32, {64}, {}}, false, -1});
  }
  plan::GroupContext context;
  context.topology = EmulatedTopology(world);
  context.packet_kernels = true;
  auto plan = plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(world), request), context);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  v1::PlanSlot slot;
  slot.set_span_bytes(256);
  slot.set_alignment(4);
  slot.set_alias_of(-1);
  LaunchEntry entry = Entry(node.AddPlan(&group, plan->programs, {slot, slot}),
                            {{group.registration, 0}, {group.registration, 256}});
  std::vector<std::unique_ptr<TestChannel>> channels;
  for (int gpu : gpus) channels.push_back(node.OpenChannel(gpu));
  // Only rank 0's launch runs for too long.
  for (int rank = world - 1; rank >= 0; --rank) {
    entry.deadline_ns = rank == 0 ? 0 : 60'000'000'000;
    channels[static_cast<size_t>(rank)]->Launch(entry);
  }
  EXPECT_TRUE(channels[0]->Wait(1));
  return channels[0]->producer.Outcome(1);
}

TEST(OverdueTest, AKernelThatWaitsForPacketsNamesTheRankThatHasNotSentThem) {
  std::map<std::pair<int, int>, std::future<LaunchOutcome>> outcomes;
  for (const auto& [world, silent] : {std::pair(2, 1), std::pair(3, 1), std::pair(3, 2)})
    outcomes[{world, silent}] = std::async(std::launch::async, OverdueByPackets, world, silent);
  for (auto& [node, end] : outcomes) {
    const int silent = node.second;
    const LaunchOutcome outcome = end.get();
    EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded) << outcome.status.ToString();
    EXPECT_THAT(outcome.status.message(),
                HasSubstr("its lanes wait for packets of rank " + std::to_string(silent)));
    EXPECT_EQ(outcome.who_rank, silent);
  }
}

TEST(OverdueTest, AKernelThatHasAllPacketsBlamesNobody) {
  const LaunchOutcome outcome = OverdueByPackets(2, 0);
  EXPECT_THAT(outcome.status.message(), HasSubstr("all packets of its peers have come"));
  EXPECT_EQ(outcome.who_rank, -1);
}

TEST(OverdueTest, NoDeadlineThatAClientAsksForHoldsTheLanesForGood) {
  constexpr uint64_t kSecond = 1'000'000'000, kHour = 3600 * kSecond;
  EXPECT_EQ(RunLimitNs(0, 10 * kSecond), 10 * kSecond);
  EXPECT_EQ(RunLimitNs(5 * kSecond, 10 * kSecond), 10 * kSecond);
  EXPECT_EQ(RunLimitNs(60 * kSecond, 10 * kSecond), 60 * kSecond);
  EXPECT_EQ(RunLimitNs(~uint64_t{0}, 10 * kSecond), kHour);
  EXPECT_EQ(RunLimitNs(2 * kHour, 3 * kHour), 3 * kHour);  // the group's counts as it is
}

}  // namespace
}  // namespace tandem::engine
