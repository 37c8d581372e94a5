// Whole engines in one process: launches through channels, matched across ranks, in all the ways in which
// they end.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"
#include "engine/tests/engine_node.h"
#include "tandem/host_stream.h"

namespace tandem::engine {
namespace {

std::vector<int> Gpus(int world) {
  std::vector<int> gpus;
  for (int i = 0; i < world; ++i) gpus.push_back(i);
  return gpus;
}

class EngineWorldTest : public testing::TestWithParam<int> {};

TEST_P(EngineWorldTest, EmptyPlansEndOnAllRanks) {
  int world = GetParam();
  EngineNode node(world);
  TestGroup group = node.AddGroup(100, Gpus(world));
  uint64_t plan = node.AddEmptyPlan(&group);
  std::vector<std::unique_ptr<TestChannel>> channels;
  for (int gpu = 0; gpu < world; ++gpu) channels.push_back(node.OpenChannel(gpu));
  for (int round = 1; round <= 50; ++round) {
    for (auto& channel : channels) ASSERT_EQ(channel->Launch(Entry(plan)), static_cast<uint64_t>(round));
    for (auto& channel : channels) {
      ASSERT_TRUE(channel->Wait(static_cast<uint64_t>(round)));
      EXPECT_TRUE(channel->producer.Outcome(static_cast<uint64_t>(round)).status.ok());
    }
  }
}

TEST_P(EngineWorldTest, BarriersAndSumsRunOnLanes) {
  int world = GetParam();
  EngineNode node(world, 2);
  TestGroup group = node.AddGroup(100, Gpus(world));
  uint64_t barrier = node.AddBarrierPlan(&group);
  OpRequest request;
  request.op = Op::kAllReduce;
  constexpr int64_t kCount = 1000;
  request.operands = {{Role::kInput, {DType::kF32, {kCount}, {}}, false, -1},
                      {Role::kOutput, {DType::kF32, {kCount}, {}}, false, -1}};
  plan::GroupContext context;
  context.topology = EmulatedTopology(world);
  Result<plan::OperationPlan> planned =
      plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(world), request), context);
  ASSERT_TRUE(planned.ok()) << planned.status().ToString();
  v1::PlanSlot slot;
  slot.set_span_bytes(kCount * 4);
  slot.set_alignment(4);
  slot.set_alias_of(-1);
  uint64_t sum = node.AddPlan(&group, planned->programs, {slot, slot});
  std::vector<std::unique_ptr<TestChannel>> channels;
  for (int gpu = 0; gpu < world; ++gpu) {
    channels.push_back(node.OpenChannel(gpu));
    float* data = reinterpret_cast<float*>(node.Data(group, gpu));
    for (int64_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(gpu + i);
  }
  LaunchEntry entry = Entry(sum, {{group.registration, 0}, {group.registration, 8192}});
  for (int round = 0; round < 10; ++round) {
    std::vector<uint64_t> last;
    for (auto& channel : channels) {
      channel->Launch(Entry(barrier));
      last.push_back(channel->Launch(entry));
    }
    for (size_t i = 0; i < channels.size(); ++i) {
      ASSERT_TRUE(channels[i]->Wait(last[i]));
      LaunchOutcome outcome = channels[i]->producer.Outcome(last[i]);
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.ToString();
    }
  }
  for (int rank = 0; rank < world; ++rank) {
    const float* out = reinterpret_cast<const float*>(node.Data(group, rank) + 8192);
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(out[i], static_cast<float>(world * i + world * (world - 1) / 2))
          << "rank " << rank << " at " << i;
    }
  }
  // The lane writes done, the engine counts a moment later.
  auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (node.stats(0).Launches() < 20 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  EXPECT_EQ(node.stats(0).Launches(), 20u);
  EXPECT_EQ(node.stats(0).Failures(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Worlds, EngineWorldTest, testing::Values(1, 2, 4));

// Only some launches have events; the others' times must fit between those.
TEST(EngineTest, LaunchesWithoutEventsAreTimedToo) {
  constexpr uint64_t kLaunches = 40;
  EngineNode node(2, 2);
  TestGroup group = node.AddGroup(100, Gpus(2));
  uint64_t barrier = node.AddBarrierPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  for (uint64_t i = 0; i < kLaunches; ++i) {
    uint64_t first = channel0->Launch(Entry(barrier)), second = channel1->Launch(Entry(barrier));
    ASSERT_TRUE(channel0->Wait(first) && channel1->Wait(second));
  }
  std::vector<TraceRecord> launches;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (launches.size() < kLaunches && std::chrono::steady_clock::now() < deadline) {
    launches = node.stats(0).ReadTrace();
    std::erase_if(launches, [](const TraceRecord& record) { return record.step >= 0; });
  }
  ASSERT_EQ(launches.size(), kLaunches);
  // Those with events come into the trace a little later.
  std::sort(launches.begin(), launches.end(),
            [](const auto& a, const auto& b) { return a.launch < b.launch; });
  uint64_t end = 0;
  for (const TraceRecord& launch : launches) {
    EXPECT_GE(launch.start_ns, end) << "launch " << launch.launch << " began before the one before it ended";
    EXPECT_GT(launch.start_ns, launch.arrive_ns) << launch.launch;
    EXPECT_GE(launch.end_ns, launch.start_ns) << launch.launch;
    end = launch.end_ns;
  }
}

// Its first launch is timed and sampled, and nobody has had time to read its events.
TEST(EngineTest, AReleasedPlansEventsAreReadBeforeItGoes) {
  EngineNode node(2, 2);
  TestGroup group = node.AddGroup(100, Gpus(2));
  for (int round = 0; round < 5; ++round) {
    const uint64_t plan = node.AddBarrierPlan(&group);
    auto channel0 = node.OpenChannel(0);
    auto channel1 = node.OpenChannel(1);
    const uint64_t first = channel0->Launch(Entry(plan)), second = channel1->Launch(Entry(plan));
    ASSERT_TRUE(channel0->Wait(first) && channel1->Wait(second));
    v1::Command remove;
    remove.mutable_remove_plan()->set_plan_id(plan);
    for (int gpu : {0, 1}) ASSERT_TRUE(node.Call(gpu, remove).ok());
    int launches = 0, steps = 0;
    for (const TraceRecord& record : node.stats(0).ReadTrace()) {
      if (record.plan_id != plan) continue;
      EXPECT_GT(record.start_ns, 0u);
      EXPECT_GE(record.end_ns, record.start_ns);
      ++(record.step < 0 ? launches : steps);
    }
    EXPECT_EQ(launches, 1);
    EXPECT_GT(steps, 0);
  }
}

TEST(EngineTest, StreamsPipelineLaunches) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddBarrierPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  std::vector<std::unique_ptr<HostStream>> streams;
  for (TestChannel* channel : {channel0.get(), channel1.get()}) {
    auto stream = HostStream::Create();
    ASSERT_TRUE(stream.ok());
    for (int i = 0; i < 40; ++i) {
      LaunchEntry entry = Entry(plan);
      ASSERT_TRUE(channel->producer.TryPush(&entry).ok());
      ASSERT_TRUE((*stream)->WriteWord(channel->producer.request(), entry.sequence).ok());
      ASSERT_TRUE((*stream)->WaitWord(channel->producer.done(), entry.sequence).ok());
    }
    streams.push_back(std::move(*stream));
  }
  // The streams wait on the channels' words: those stay mapped until both are through.
  for (auto& stream : streams) ASSERT_TRUE(stream->Synchronize(std::chrono::seconds(60)).ok());
  EXPECT_EQ(channel0->producer.Done(), 40u);
  EXPECT_EQ(channel1->producer.Done(), 40u);
  EXPECT_EQ(channel0->producer.Failures(), 0u);
}

TEST(EngineTest, GroupsInOppositeOrdersDoNotBlockEachOther) {
  EngineNode node(2, 1);  // one hardware queue: lanes block each other if the order differs
  TestGroup first = node.AddGroup(100, {0, 1});
  TestGroup second = node.AddGroup(101, {1, 0});
  uint64_t plan_a = node.AddBarrierPlan(&first);
  uint64_t plan_b = node.AddBarrierPlan(&second);
  std::array<std::unique_ptr<TestChannel>, 4> channels;
  for (int i = 0; i < 4; ++i) channels[static_cast<size_t>(i)] = node.OpenChannel(i / 2);
  for (uint64_t round = 1; round <= 30; ++round) {
    channels[0]->Launch(Entry(plan_a));
    channels[1]->Launch(Entry(plan_b));
    channels[3]->Launch(Entry(plan_b));
    channels[2]->Launch(Entry(plan_a));
    for (auto& channel : channels) {
      ASSERT_TRUE(channel->Wait(round));
      EXPECT_TRUE(channel->producer.Outcome(round).status.ok());
    }
  }
}

TEST(EngineTest, ALateRankIsNamedThenTheDeadlineEndsIt) {
  EngineNode node(3);
  TestGroup group =
      node.AddGroup(100, Gpus(3), 4000);  // a stopped engine still reports it before its deadline
  uint64_t plan = node.AddBarrierPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  auto channel2 = node.OpenChannel(2);
  // Rank 2's launch ends with rank 0's, by the group's deadline, however late rank 0's comes.
  LaunchEntry patient = Entry(plan);
  patient.deadline_ns = 60'000'000'000;
  channel2->Launch(patient);
  ASSERT_TRUE(node.AwaitQueued(2, 1));
  channel0->Launch(Entry(plan));
  v1::Message late;
  ASSERT_TRUE(node.Await(
      0, [](const v1::Message& m) { return m.has_late(); }, &late));
  ASSERT_EQ(late.late().missing_ranks_size(), 1);
  EXPECT_EQ(late.late().missing_ranks(0), 1);
  for (TestChannel* channel : {channel0.get(), channel2.get()}) {
    ASSERT_TRUE(channel->Wait(1));
    LaunchOutcome outcome = channel->producer.Outcome(1);
    EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded);
    EXPECT_EQ(outcome.who_rank, 1);
  }
  // The late rank's launch fails too, and the next ones meet.
  EXPECT_EQ(channel1->LaunchAndWait(Entry(plan)).status.code(), Code::kDeadlineExceeded);
  for (TestChannel* channel : {channel0.get(), channel1.get(), channel2.get()}) channel->Launch(patient);
  for (TestChannel* channel : {channel0.get(), channel1.get(), channel2.get()}) {
    ASSERT_TRUE(channel->Wait(2));
    EXPECT_TRUE(channel->producer.Outcome(2).status.ok());
  }
}

TEST(EngineTest, DifferentTagsFailOnAllRanks) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddEmptyPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  LaunchEntry tagged = Entry(plan);
  tagged.tag_digest = 7;
  channel0->Launch(Entry(plan));
  channel1->Launch(tagged);
  for (TestChannel* channel : {channel0.get(), channel1.get()}) {
    ASSERT_TRUE(channel->Wait(1));
    EXPECT_EQ(channel->producer.Outcome(1).status.code(), Code::kInvalidArgument);
    EXPECT_EQ(channel->producer.Outcome(1).who_rank, 1);
  }
}

TEST(EngineTest, ARefusedLaunchFailsEverywhereAndCountsStayAligned) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  std::vector<plan::RankProgram> programs(2);
  programs[1].rank = 1;
  programs[0].world_size = programs[1].world_size = 2;
  v1::PlanSlot slot;
  slot.set_span_bytes(4096);
  slot.set_alignment(4);
  slot.set_alias_of(-1);
  uint64_t plan = node.AddPlan(&group, programs, {slot});
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  uint64_t end = EngineNode::kDataBytes;
  struct Case {
    std::vector<LaunchBinding> bindings;
    Code code;
  };
  std::vector<Case> cases = {{{{group.registration, end - 4095}}, Code::kOutOfRange},
                             {{{group.registration, ~uint64_t{0} - 100}}, Code::kOutOfRange},
                             {{{group.registration, 2}}, Code::kInvalidArgument},
                             {{{group.registration + 999, 0}}, Code::kNotFound},
                             {{{0, 0}}, Code::kInvalidArgument},
                             {{}, Code::kInvalidArgument}};
  for (const Case& c : cases) {
    uint64_t good = channel0->Launch(Entry(plan, {{group.registration, 0}}));
    EXPECT_EQ(channel1->LaunchAndWait(Entry(plan, c.bindings)).status.code(), c.code);
    ASSERT_TRUE(channel0->Wait(good));
    LaunchOutcome outcome = channel0->producer.Outcome(good);
    EXPECT_EQ(outcome.status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(outcome.who_rank, 1);
  }
  uint64_t sequence0 = channel0->Launch(Entry(plan, {{group.registration, 0}}));
  LaunchOutcome outcome = channel1->LaunchAndWait(Entry(plan, {{group.registration, end - 4096}}));
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.ToString();
  EXPECT_TRUE(channel0->Wait(sequence0));
}

TEST(EngineTest, OverlappingLaunchesOfOnePlanFailTheLaterOneOnAllRanks) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddEmptyPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto other0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  channel0->Launch(Entry(plan));
  // Arrived for certain once the engine reports it in its queue.
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  EXPECT_EQ(other0->LaunchAndWait(Entry(plan)).status.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(plan)).status.ok());
  EXPECT_TRUE(channel0->Wait(1));
  EXPECT_EQ(channel1->LaunchAndWait(Entry(plan)).status.code(), Code::kFailedPrecondition);
  channel0->Launch(Entry(plan));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(plan)).status.ok());
}

TEST(EngineTest, CapturedLaunchesReplayAndFailForGoodAfterABreak) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddBarrierPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  LaunchEntry entry = Entry(plan);
  Result<int> slot = channel0->producer.Arm(&entry);
  ASSERT_TRUE(slot.ok());
  auto replay = [&] {
    channel0->producer.doorbell(*slot)->store(1);
    auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (static_cast<int64_t>(channel0->producer.captured_done(*slot)->load() - 1) < 0) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    channel0->producer.captured_done(*slot)->store(0);
    return true;
  };
  for (uint64_t i = 1; i <= 20; ++i) {
    channel1->Launch(Entry(plan));
    ASSERT_TRUE(replay());
    EXPECT_TRUE(channel0->producer.CapturedOutcome(*slot).status.ok());
    ASSERT_TRUE(channel1->Wait(i));
  }
  ASSERT_TRUE(node.Break(0, group, Code::kUnavailable, "rank 1 is gone", 1).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(replay());
    EXPECT_EQ(channel0->producer.CapturedOutcome(*slot).status.code(), Code::kUnavailable);
  }
  EXPECT_EQ(channel0->producer.Failures(), 3u);
}

TEST(EngineTest, ABreakReleasesLanesAndNamesTheRank) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  TestGroup bystander = node.AddGroup(101, {0});
  uint64_t plan = node.AddBarrierPlan(&group);
  uint64_t other = node.AddEmptyPlan(&bystander);
  // Rank 1's program of `hanging` does nothing, so that rank 0's lane waits for a signal that never comes.
  std::vector<plan::RankProgram> programs(2);
  programs[1].rank = 1;
  programs[0].world_size = programs[1].world_size = 2;
  programs[0].signal_count = programs[1].signal_count = 2;
  plan::Step wait;
  wait.work = plan::WaitStep{1, 1};
  programs[0].steps.push_back(wait);
  plan::Step signal;
  signal.work = plan::SignalStep{0, 0};
  programs[1].steps.push_back(signal);
  uint64_t hanging = node.AddPlan(&group, programs, {});
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  auto bystander_channel = node.OpenChannel(0);
  channel0->Launch(Entry(hanging));
  ASSERT_TRUE(channel1->LaunchAndWait(Entry(hanging)).status.ok());
  EXPECT_EQ(channel0->producer.Done(), 0u);
  ASSERT_TRUE(node.Break(0, group, Code::kUnavailable, "rank 1 (pid 77) has died", 1, 77).ok());
  ASSERT_TRUE(channel0->Wait(1));
  LaunchOutcome outcome = channel0->producer.Outcome(1);
  EXPECT_EQ(outcome.status.code(), Code::kUnavailable);
  EXPECT_EQ(outcome.status.message(), "rank 1 (pid 77) has died");
  EXPECT_EQ(outcome.who_rank, 1);
  EXPECT_EQ(outcome.status.detail().ranks, std::vector<uint32_t>{1});
  EXPECT_EQ(outcome.status.detail().pid, 77);
  EXPECT_EQ(channel0->LaunchAndWait(Entry(plan)).status.code(), Code::kUnavailable);
  EXPECT_TRUE(bystander_channel->LaunchAndWait(Entry(other)).status.ok());
  v1::Command remove;
  remove.mutable_remove_group()->set_group_id(group.id);
  EXPECT_TRUE(node.Call(0, remove).ok());
}

TEST(EngineTest, AnOlderGenerationIsAbortedAndToldTheNewOne) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0}, 10000, 5);
  uint64_t plan = node.AddEmptyPlan(&group);
  auto channel = node.OpenChannel(0);
  LaunchOutcome outcome = channel->LaunchAndWait(Entry(plan, {}, 4));
  EXPECT_EQ(outcome.status.code(), Code::kAborted);
  EXPECT_EQ(outcome.generation, 5u);
  EXPECT_TRUE(channel->LaunchAndWait(Entry(plan, {}, outcome.generation)).status.ok());
}

TEST(EngineTest, DirectLaunchesArriveOnReceipt) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddBarrierPlan(&group);
  auto channel1 = node.OpenChannel(1);
  v1::Command launch;
  launch.mutable_launch()->set_launch_id(55);
  launch.mutable_launch()->set_session_id(1);
  launch.mutable_launch()->set_plan_id(plan);
  launch.mutable_launch()->set_generation(1);
  ASSERT_TRUE(node.Call(0, launch).ok());
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(plan)).status.ok());
  v1::Message done;
  ASSERT_TRUE(node.Await(
      0, [](const v1::Message& m) { return m.has_launch_done(); }, &done));
  EXPECT_EQ(done.launch_done().launch_id(), 55u);
  EXPECT_EQ(done.launch_done().code(), 0);
}

TEST(EngineTest, ARankThatLeavesEndsOnlyLaterLaunches) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddEmptyPlan(&group);
  uint64_t barrier = node.AddBarrierPlan(&group);
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  channel0->Launch(Entry(plan));
  EXPECT_TRUE(channel1->LaunchAndWait(Entry(plan)).status.ok());
  for (int gpu : {1, 0}) {
    v1::Command leave;
    leave.mutable_leave_group()->set_group_id(group.id);
    leave.mutable_leave_group()->set_rank(1);
    ASSERT_TRUE(node.Call(gpu, leave).ok());
  }
  for (uint64_t later : {plan, barrier}) {
    LaunchOutcome outcome = channel0->LaunchAndWait(Entry(later));
    EXPECT_EQ(outcome.status.code(), Code::kUnavailable);
    EXPECT_EQ(outcome.who_rank, 1);
  }
  // A replay that was queued before comes late: not counted, it never waits on the lanes for the launch that
  // rank 0 has ended.
  LaunchOutcome outcome = channel1->LaunchAndWait(Entry(barrier));
  EXPECT_EQ(outcome.status.code(), Code::kUnavailable);
  EXPECT_EQ(outcome.who_rank, 1);
  EXPECT_EQ(node.Arrivals(group).Count(1, 1), 0u);
}

TEST(EngineTest, TheEndOfTheSocketReleasesStreams) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  uint64_t plan = node.AddBarrierPlan(&group);
  auto channel = node.OpenChannel(0);
  uint64_t sequence = channel->Launch(Entry(plan));
  node.EndEngine(0);
  ASSERT_TRUE(channel->Wait(sequence));
  EXPECT_TRUE(channel->producer.words().Released());
  EXPECT_EQ(channel->producer.Outcome(sequence).status.code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::engine
