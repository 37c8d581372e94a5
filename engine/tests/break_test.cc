// Groups that break with launches on lanes: nobody's launch ends with OK on what a lane that was let go has
// sent, and nobody waits for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <thread>

#include "engine/tests/engine_node.h"
#include "engine/tests/wrapped_backend.h"

namespace tandem::engine {
namespace {

using ::testing::HasSubstr;

template <typename Work>
plan::Step On(uint16_t lane, Work work) {
  plan::Step step;
  step.lane = lane;
  step.work = std::move(work);
  return step;
}

std::vector<plan::RankProgram> Programs(int signals) {
  std::vector<plan::RankProgram> programs(2);
  programs[1].rank = 1;
  for (plan::RankProgram& program : programs) {
    program.world_size = 2;
    program.signal_count = signals;
  }
  return programs;
}

// A process that does nothing, to be somebody's engine in an arrival table.
class Bystander {
 public:
  Bystander() {
    pid_ = ::fork();
    if (pid_ == 0) {
      while (true) ::pause();
    }
    identity_ = ProcessIdentity::Of(pid_);
  }
  ~Bystander() { End(); }
  const ProcessIdentity& identity() const { return identity_; }
  void End() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  ProcessIdentity identity_;
};

// Each of these engines has one launch, and it is on its lanes.
bool OneHasStarted(EngineNode& node, std::initializer_list<int> gpus) {
  return std::all_of(gpus.begin(), gpus.end(), [&](int gpu) {
    return node.AwaitQueue(gpu,
                           [](const v1::Queue& q) { return q.items_size() == 1 && q.items(0).started(); });
  });
}

TEST(BreakTest, WhatAFreedLaneSendsNeverEndsAPeersLaunchWithOk) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  // Rank 1 sends once its gate opens, and needs what rank 0 makes of it. Rank 0's lane is let go before that.
  std::vector<plan::RankProgram> programs = Programs(2);
  programs[0].steps = {On(0, plan::WaitStep{1, 0}), On(0, plan::SignalStep{1, 0})};
  programs[1].lanes = 2;
  programs[1].steps = {On(0, plan::WaitStep{0, 0}), On(1, plan::WaitStep{1, 1}),
                       On(1, plan::SignalStep{0, 0})};
  uint64_t plan = node.AddPlan(&group, programs, {});
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  channel0->Launch(Entry(plan));
  channel1->Launch(Entry(plan));
  ASSERT_TRUE(OneHasStarted(node, {0, 1}));
  // Rank 1's engine gets no command: it reads the break in the log.
  ASSERT_TRUE(node.Break(0, group, Code::kUnavailable, "rank 1's client is gone", 1).ok());
  ASSERT_TRUE(channel0->Wait(1));
  EXPECT_EQ(channel0->producer.Outcome(1).status.code(), Code::kUnavailable);
  // By now rank 0's signal is under way: rank 1's gate opens, and its launch runs to its end.
  node.SignalWord(group, 1, 1, 1)->store(uint64_t{1} << 62);
  ASSERT_TRUE(channel1->Wait(1));
  EXPECT_EQ(channel1->producer.Outcome(1).status.code(), Code::kUnavailable);
}

// The host's stand-in for NCCL aborts for all ranks at once: not before the peers have marked what they run.
TEST(BreakTest, AnEngineThatHasNotReadTheStartEndsNoPeersCollectiveWithOk) {
  EngineGate gate;
  EngineNode node(2, 8, HeldBackend::Wrapper(&gate));
  TestGroup group = node.AddGroup(100, {0, 1});
  std::vector<plan::RankProgram> programs = Programs(0);
  for (plan::RankProgram& program : programs) {
    plan::NcclStep barrier;
    barrier.kind = plan::NcclKind::kBarrier;
    program.steps = {On(0, barrier)};
  }
  const uint64_t plan = node.AddPlan(&group, programs, {});
  auto channel0 = node.OpenChannel(0), channel1 = node.OpenChannel(1);
  channel0->Launch(Entry(plan));
  ASSERT_TRUE(node.AwaitQueued(0, 1));
  v1::Command hold, end;
  hold.mutable_make_unique_id();
  ASSERT_TRUE(node.Send(0, hold).ok());
  gate.AwaitReached();
  channel1->Launch(Entry(plan));
  EXPECT_TRUE(OneHasStarted(node, {1}));
  end.mutable_break_group()->set_group_id(group.id);
  end.mutable_break_group()->set_code(static_cast<int>(Code::kUnavailable));
  const auto broken = node.Send(0, end);
  // Before it looks into the log again, it is to have both commands.
  const bool received = node.AwaitReceived(0);
  gate.open = true;
  ASSERT_TRUE(broken.ok() && received);
  ASSERT_TRUE(node.Await(0, [&](const v1::Message& m) { return m.has_ack() && m.ack().id() == *broken; }));
  // Rank 1's engine gets the command later. Until then its launch must not end with OK. It ends as failed if
  // this thread is stopped for longer than a break in the log waits for its command.
  for (int i = 0; i < 100 && channel1->producer.Done() == 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(node.Call(1, end).ok());
  for (TestChannel* channel : {channel0.get(), channel1.get()}) {
    ASSERT_TRUE(channel->Wait(1));
    EXPECT_EQ(channel->producer.Outcome(1).status.code(), Code::kUnavailable);
  }
}

class ImpersonatedPeerTest : public ::testing::Test {
 protected:
  // Rank 0 has a launch on its lanes that waits for rank 1, whose engine the test plays as `owner`.
  void LaunchWith(const ProcessIdentity& owner) {
    node_.Impersonate(1);
    group_ = node_.AddGroup(100, {0, 1});
    std::vector<plan::RankProgram> programs = Programs(1);
    programs[0].steps = {On(0, plan::WaitStep{1, 0}), On(0, plan::SignalStep{1, 0})};
    const uint64_t plan = node_.AddPlan(&group_, programs, {});
    channel_ = node_.OpenChannel(0);
    ArrivalTable& table = node_.Arrivals(group_);
    table.SetOwner(1, owner);
    channel_->Launch(Entry(plan));
    while (table.Count(0, 0) == 0) std::this_thread::yield();
    table.Arrive(0, 1, table.Digest(0, 0), 1);
    ASSERT_TRUE(
        node_.AwaitQueue(0, [](const v1::Queue& q) { return q.items_size() == 1 && q.items(0).started(); }));
  }
  void Break() { ASSERT_TRUE(node_.Break(0, group_, Code::kUnavailable, "rank 1 is lost", 1).ok()); }
  void ExpectEnd() {
    ASSERT_TRUE(channel_->Wait(1));
    EXPECT_EQ(channel_->producer.Outcome(1).status.message(), "rank 1 is lost");
  }

  EngineNode node_{2};
  TestGroup group_;
  std::unique_ptr<TestChannel> channel_;
};

TEST_F(ImpersonatedPeerTest, LanesWaitForALivingPeersMark) {
  LaunchWith(ProcessIdentity::Of(::getpid()));
  Break();
  // A second after the break the peer is reported, once: until then, and then, nothing has been let go.
  v1::Message message;
  ASSERT_TRUE(node_.Await(
      0, [](const v1::Message& m) { return m.has_peer_silent(); }, &message));
  EXPECT_EQ(message.peer_silent().gpu(), 1);
  EXPECT_EQ(message.peer_silent().group_id(), group_.id);
  EXPECT_EQ(channel_->producer.Done(), 0u);
  EXPECT_EQ(node_.SignalWord(group_, 0, 1, 0)->load(), 0u);
  node_.Arrivals(group_).SetBroken(1);
  ExpectEnd();
}

// The time that a peer has for its mark begins with the break, also where only the log has it.
TEST_F(ImpersonatedPeerTest, APeerHasItsTimeAfterABreakThatTheLogTells) {
  LaunchWith(ProcessIdentity::Of(::getpid()));
  const auto begin = std::chrono::steady_clock::now();
  node_.log().Append({.kind = LogKind::kBreak,
                      .mask = 0,
                      .plan = static_cast<uint32_t>(group_.id),
                      .count = static_cast<uint16_t>(group_.generation)});
  v1::Message message;
  ASSERT_TRUE(node_.Await(
      0, [](const v1::Message& m) { return m.has_peer_silent(); }, &message));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  node_.Arrivals(group_).SetBroken(1);
  ASSERT_TRUE(channel_->Wait(1));
  EXPECT_EQ(channel_->producer.Outcome(1).status.code(), Code::kUnavailable);
}

TEST_F(ImpersonatedPeerTest, TheLogTellsThePeers) {
  LaunchWith(ProcessIdentity::Of(::getpid()));
  Break();
  uint64_t position = 0;
  LogEntry entry;
  do {
    ASSERT_EQ(node_.log().Read(position++, &entry), LogRead::kEntry);
  } while (entry.kind != LogKind::kBreak);
  EXPECT_EQ(entry.plan, group_.id);
  EXPECT_EQ(entry.count, group_.generation);
  node_.Arrivals(group_).SetBroken(1);
  ExpectEnd();
}

TEST_F(ImpersonatedPeerTest, LanesDoNotWaitForAPeerThatHasEnded) {
  Bystander peer;
  LaunchWith(peer.identity());
  Break();
  EXPECT_FALSE(peer.identity().Gone());
  EXPECT_EQ(channel_->producer.Done(), 0u);
  peer.End();
  ExpectEnd();
}

TEST_F(ImpersonatedPeerTest, LanesDoNotWaitForAnEngineThatNeverHadTheGroup) {
  LaunchWith({});
  Break();
  ExpectEnd();
}

TEST(BreakTest, AnEngineThatEndsTellsItsPeersByTheLog) {
  EngineNode node(2);
  TestGroup group = node.AddGroup(100, {0, 1});
  std::vector<plan::RankProgram> programs = Programs(2);
  programs[0].steps = {On(0, plan::WaitStep{1, 0})};
  programs[1].steps = {On(0, plan::WaitStep{0, 1})};
  uint64_t plan = node.AddPlan(&group, programs, {});
  auto channel0 = node.OpenChannel(0);
  auto channel1 = node.OpenChannel(1);
  channel0->Launch(Entry(plan));
  channel1->Launch(Entry(plan));
  ASSERT_TRUE(OneHasStarted(node, {0, 1}));
  node.EndEngine(0);
  ASSERT_TRUE(channel0->Wait(1));
  ASSERT_TRUE(channel1->Wait(1));
  EXPECT_EQ(channel0->producer.Outcome(1).status.code(), Code::kUnavailable);
  EXPECT_EQ(channel1->producer.Outcome(1).status.code(), Code::kUnavailable);
}

// Refused by the backend when it is enqueued, not before. Its program needs 64 bytes of workspace.
plan::MatmulStep RefusedProduct() {
  plan::View view;
  view.dtype = DType::kI32;
  view.extent = {4, 4};
  view.stride = {4, 1};
  plan::MatmulStep product;
  product.a = product.b = product.c = view;
  return product;
}

TEST(BreakTest, AProgramThatCannotBeEnqueuedHasFailedBeforeItIsDone) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0});
  plan::RankProgram program;
  program.workspace_bytes = 64;
  program.steps = {On(0, RefusedProduct())};
  uint64_t plan = node.AddPlan(&group, {program}, {});
  auto channel = node.OpenChannel(0);
  LaunchOutcome outcome = channel->LaunchAndWait(Entry(plan));
  EXPECT_EQ(outcome.status.code(), Code::kInvalidArgument) << outcome.status.ToString();
  EXPECT_THAT(outcome.status.message(), HasSubstr("could not be enqueued"));
  EXPECT_EQ(outcome.who_rank, 0);
}

TEST(BreakTest, AProgramThatCannotBeEnqueuedLeavesNoLaneWaiting) {
  EngineNode node(1);
  TestGroup group = node.AddGroup(100, {0}), bystander = node.AddGroup(101, {0});
  plan::RankProgram program;
  program.workspace_bytes = 64;
  program.lanes = 2;
  program.signal_count = 1;
  // Lane 1 waits already for what nobody sends, when lane 0 refuses its product.
  program.steps = {On(1, plan::WaitStep{0, 0}), On(0, RefusedProduct())};
  const uint64_t refused = node.AddPlan(&group, {program}, {});
  plan::RankProgram forking;
  forking.lanes = 2;
  forking.signal_count = 1;
  forking.steps = {On(0, plan::SignalStep{0, 0}), On(1, plan::WaitStep{0, 0})};
  const uint64_t other = node.AddPlan(&bystander, {forking}, {});
  auto channel = node.OpenChannel(0);
  const LaunchOutcome outcome = channel->LaunchAndWait(Entry(refused));
  EXPECT_EQ(outcome.status.code(), Code::kInvalidArgument) << outcome.status.ToString();
  const LaunchOutcome next = channel->LaunchAndWait(Entry(other));
  EXPECT_TRUE(next.status.ok()) << next.status.ToString();
}

}  // namespace
}  // namespace tandem::engine
