// The library's core against a fake gRPC plugin; the test plays the engine on the channels' other ends.
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <thread>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class ClientTest : public HostClientTest {};

TEST_F(ClientTest, LaunchesAreStreamOrdered) {
  std::atomic<int> before{0}, after{0};
  std::atomic<uint64_t> gate{0};
  ASSERT_TRUE(stream_->WaitWord(&gate, 1).ok());
  ASSERT_TRUE(stream_->Enqueue([&] { before = 1; }).ok());
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ASSERT_TRUE(stream_->Enqueue([&] { after = 1; }).ok());
  ChannelConsumer* engine = Engine();
  EXPECT_EQ(engine->Request(), 0u) << "the rank arrived before its stream";
  gate = 1;
  LaunchEntry entry = Arrive(engine);
  EXPECT_EQ(entry.plan_id, plan_->info().plan_id);
  EXPECT_EQ(entry.sequence, 1u);
  EXPECT_EQ(entry.group_generation, 1u);
  EXPECT_EQ(before, 1);
  EXPECT_EQ(after, 0);
  EXPECT_FALSE(plan_->Query().value());
  Finish(engine, entry);
  EXPECT_TRUE(stream_->Synchronize(kLong).ok());
  EXPECT_EQ(after, 1);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, LaunchesOfAPlanOnSeveralStreamsFollowOneAnother) {
  auto second = HostStream::Create().value();
  std::atomic<uint64_t> gate{0};
  for (uint64_t round = 0; round < 3; ++round) {
    ASSERT_TRUE(stream_->WaitWord(&gate, round + 1).ok());
    ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
    ASSERT_TRUE(plan_->Launch(second.get(), {}).ok());
    LaunchEntry late;
    ASSERT_TRUE(Engine(1)->Poll(&late));
    gate = round + 1;
    const LaunchEntry early = Arrive(Engine(0));
    std::this_thread::sleep_for(Milliseconds(20));
    EXPECT_LT(Engine(1)->Request(), late.sequence) << "it arrived while the one before was under way";
    Finish(Engine(0), early, round == 1 ? Code::kDeadlineExceeded : Code::kOk, "rank 1 has not launched");
    AwaitArrival(Engine(1), late);
    Finish(Engine(1), late);
    EXPECT_TRUE(second->Synchronize(kLong).ok());
    EXPECT_EQ(plan_->Wait(kLong).code(), round == 1 ? Code::kDeadlineExceeded : Code::kOk);
  }
}

TEST_F(ClientTest, ALaunchWaitsForOneOfAStreamThatIsGone) {
  auto first = HostStream::Create().value();
  ASSERT_TRUE(plan_->Launch(first.get(), {}).ok());
  first.reset();
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  (void)Arrive(Engine(0));
  LaunchEntry late;
  ASSERT_TRUE(Engine(1)->Poll(&late));
  EXPECT_EQ(Engine(1)->Request(), 0u);
  // The channel's end lets the next launch arrive.
  Engine(0)->words().Release(Aborted("engine of GPU 0 has ended"));
  AwaitArrival(Engine(1), late);
  Finish(Engine(1), late);
  EXPECT_TRUE(stream_->Synchronize(kLong).ok());
  EXPECT_EQ(plan_->Wait(kLong).code(), Code::kAborted);
}

TEST_F(ClientTest, AFailureIsReturnedOnceByTheNextCall) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  Finish(engine, Arrive(engine), Code::kDeadlineExceeded, "rank 1 has not launched");
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  Status next = plan_->Launch(stream_.get(), {});
  EXPECT_EQ(next.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(next.message(), "rank 1 has not launched");
  EXPECT_EQ(next.detail().who, "rank 1");
  EXPECT_EQ(next.detail().reason, "RANK_LATE");
  // The launch that reported it was made nevertheless, as on the other ranks.
  Finish(engine, Arrive(engine));
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, AWrongLaunchArrivesAndIsToldOnce) {
  Binding extra{nullptr, 0};
  EXPECT_EQ(plan_->Launch(stream_.get(), {&extra, 1}).code(), Code::kInvalidArgument);
  ChannelConsumer* engine = Engine();
  LaunchEntry entry = Arrive(engine);
  EXPECT_EQ(entry.binding_count, 1u);
  Finish(engine, entry, Code::kInvalidArgument, "1 bindings for 0 slots");
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, BindingsAreCheckedAgainstTheMemory) {
  OpRequest request{.op = Op::kAllReduce, .operands = {}, .transfers = {}};
  request.operands.push_back({Role::kInput, {DType::kF32, {256}, {}}});
  auto plan = group_->Prepare("bound", request).value();
  auto memory = client_->AllocateRegistered(1024, "GPU-0").value();
  Binding binding{memory.get(), 4};
  EXPECT_EQ(plan->Launch(stream_.get(), {&binding, 1}).code(), Code::kOutOfRange);
  binding.offset = ~uint64_t{0};
  EXPECT_EQ(plan->Launch(stream_.get(), {&binding, 1}).code(), Code::kOutOfRange);
  binding.offset = 0;
  EXPECT_TRUE(plan->Launch(stream_.get(), {&binding, 1}).ok());
  ChannelConsumer* engine = Engine();
  for (int i = 0; i < 3; ++i) Finish(engine, Arrive(engine));
  EXPECT_TRUE(plan->Wait(kLong).ok());
}

TEST_F(ClientTest, AFullRingWaitsForRoom) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  for (uint32_t i = 1; i < kRingEntries; ++i) ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  LaunchOptions hasty;
  hasty.deadline = Milliseconds(50);
  Status full = plan_->Launch(stream_.get(), {}, hasty);
  EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.ToString();
  std::thread engine_thread([&] {
    for (uint32_t i = 0; i < kRingEntries + 1; ++i) Finish(engine, Arrive(engine));
  });
  EXPECT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  engine_thread.join();
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, TheWatchdogReleasesStreamsWhenTheDaemonIsGone) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Arrive(Engine());
  daemon_->gone = true;
  daemon_->TellLoss("the daemon is gone");
  EXPECT_TRUE(stream_->Synchronize(kLong).ok());
  Status status = plan_->Wait(kLong);
  EXPECT_EQ(status.code(), Code::kUnavailable) << status.ToString();
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).code(), Code::kUnavailable);
}

TEST_F(ClientTest, ARestartIsToldOnceAndThePlanGoesOn) {
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  Arrive(engine);
  engine->words().Release(Aborted("engine of GPU 0 has ended"));
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  TellRestart(2);
  Status reported = plan_->Launch(stream_.get(), {});
  EXPECT_EQ(reported.code(), Code::kAborted) << reported.ToString();
  EXPECT_EQ(reported.message(), "engine of GPU 0 has ended");
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* next = Engine(1);
  ASSERT_NE(next, nullptr) << "no new channel was opened";
  LaunchEntry entry = Arrive(next);
  EXPECT_EQ(entry.group_generation, 2u);
  EXPECT_EQ(entry.sequence, 1u);
  Finish(next, entry, Code::kOk, "", 2);
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, ABrokenGroupTakesNoLaunches) {
  ControlEvent event;
  event.event.kind = ClientEvent::Kind::kGroupBroken;
  event.event.group_id = group_->id();
  event.event.status = Unavailable("rank 1 (pid 5) was lost");
  daemon_->Tell(event);
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).message(), "rank 1 (pid 5) was lost");
}

TEST_F(ClientTest, ReplaysOfACapturedLaunchAreServedUntilTheGraphIsGone) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  {
    HostGraphExec exec = [&] {
      HostGraph graph = stream_->EndCapture().value();
      return graph.Instantiate().value();
    }();
    LaunchEntry arm = Arrive(engine);
    ASSERT_EQ(arm.kind, EntryKind::kArm);
    int slot = arm.captured_slot;
    engine->SetArmed(slot, true);
    for (int replay = 1; replay <= 3; ++replay) {
      ASSERT_TRUE(exec.Launch(*stream_).ok());
      auto deadline = Clock::now() + kLong;
      while (!engine->TakeDoorbell(slot) && Clock::now() < deadline) std::this_thread::yield();
      ASSERT_LT(Clock::now(), deadline) << "the doorbell of replay " << replay << " did not ring";
      if (replay == 2) engine->PublishCaptured(slot, 2, DeadlineExceeded("rank 1 is late"), 1, 1);
      if (replay == 3) engine->PublishCaptured(slot, 3, Status::Ok(), 1);
      engine->CompleteCaptured(slot);
      ASSERT_TRUE(stream_->Synchronize(kLong).ok());
      EXPECT_EQ(plan_->Wait(kLong).code(), replay == 2 ? Code::kDeadlineExceeded : Code::kOk);
    }
    // After the daemon's end a replay still never hangs, however often.
    daemon_->TellLoss("the daemon is gone");
    for (int replay = 0; replay < 3; ++replay) {
      ASSERT_TRUE(exec.Launch(*stream_).ok());
      EXPECT_TRUE(stream_->Synchronize(kLong).ok());
    }
  }
}

TEST_F(ClientTest, ManyThreadsAndStreamsLaunchTogether) {
  constexpr int kThreads = 3, kLaunches = 500;
  std::atomic<bool> stop{false};
  std::thread engine_thread([&] {
    std::array<std::optional<LaunchEntry>, 2> taken;  // a channel each; launches arrive in turn
    while (!stop) {
      for (size_t i = 0; i < taken.size() && daemon_->Engine(i) != nullptr; ++i) {
        ChannelConsumer* engine = daemon_->Engine(i);
        LaunchEntry entry;
        if (!taken[i].has_value() && engine->Poll(&entry)) taken[i] = entry;
        if (!taken[i].has_value() || engine->Request() < taken[i]->sequence) continue;
        Finish(engine, *taken[i]);
        taken[i].reset();
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // Two threads share the fixture's stream, the third has a separate one.
      auto own = HostStream::Create().value();
      HostStream* stream = t == 0 ? own.get() : stream_.get();
      for (int i = 0; i < kLaunches; ++i) EXPECT_TRUE(plan_->Launch(stream, {}).ok());
      EXPECT_TRUE(stream->Synchronize(kLong).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(plan_->Wait(kLong).ok());
  stop = true;
  engine_thread.join();
}

TEST_F(ClientTest, TheEngineHearsThatAGraphIsGoneThoughTheSessionIsIdle) {
  ASSERT_TRUE(stream_->BeginCapture().ok());
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  ChannelConsumer* engine = Engine();
  ASSERT_EQ(Arrive(engine).kind, EntryKind::kArm);
  (void)stream_->EndCapture().value();  // gone at once
  LaunchEntry entry;
  auto deadline = Clock::now() + kLong;
  while (!engine->Poll(&entry) && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(entry.kind, EntryKind::kDisarm);
}

TEST_F(ClientTest, AStreamThatFollowsADestroyedOneHasAChannelOfItsOwn) {
  auto first = HostStream::Create().value();
  uint64_t first_id = first->id();
  ASSERT_TRUE(plan_->Launch(first.get(), {}).ok());
  ASSERT_NE(daemon_->Engine(0), nullptr);
  first.reset();  // its launch is under way; most likely the next stream gets its address
  auto second = HostStream::Create().value();
  EXPECT_NE(second->id(), first_id);
  ASSERT_TRUE(plan_->Launch(second.get(), {}).ok());
  ASSERT_NE(daemon_->Engine(1), nullptr);
  for (size_t i = 0; i < 2; ++i) {
    LaunchEntry entry;
    ASSERT_TRUE(daemon_->Engine(i)->Poll(&entry));
    EXPECT_EQ(entry.sequence, 1u);
    Finish(daemon_->Engine(i), entry);
  }
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ClientTest, SignalsAndBarriersNameWhoDidNotCome) {
  auto tensor = group_->Allocate({1024}, DType::kF32).value();
  EXPECT_TRUE(tensor->PutSignal(1, 0, kLong).ok());
  EXPECT_EQ(tensor->SignalPad(1)[0], 1u);
  Status again = tensor->PutSignal(1, 0, Milliseconds(20));
  EXPECT_EQ(again.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(again.detail().who, "rank 1");
  EXPECT_EQ(tensor->WaitSignal(1, 0, Milliseconds(20)).code(), Code::kDeadlineExceeded);
  // The peer's answer, by hand: its row of this rank's pad.
  std::atomic_ref<uint32_t>(tensor->SignalPad(0)[static_cast<size_t>(tensor->channels())]).store(1);
  EXPECT_TRUE(tensor->WaitSignal(1, 0, kLong).ok());
  Status barrier = tensor->Barrier(3, Milliseconds(20));
  EXPECT_EQ(barrier.code(), Code::kDeadlineExceeded);
  EXPECT_NE(barrier.message().find("rank 1"), std::string::npos);
  EXPECT_EQ(tensor->PutSignal(2, 0, kLong).code(), Code::kOutOfRange);
  EXPECT_EQ(tensor->PutSignal(1, tensor->channels(), kLong).code(), Code::kOutOfRange);
  EXPECT_EQ(tensor->GetBuffer(1, {1025}, DType::kF32).status().code(), Code::kOutOfRange);
  ASSERT_TRUE(tensor->Memset32(stream_.get(), 1, 8, 42, 2).ok());
  ASSERT_TRUE(stream_->Synchronize(kLong).ok());
  auto* words = reinterpret_cast<uint32_t*>(tensor->GetBuffer(1, {4}, DType::kI32).value());
  EXPECT_EQ(words[1], 0u);
  EXPECT_EQ(words[2], 42u);
  EXPECT_EQ(words[3], 42u);
  EXPECT_EQ(tensor->Memset32(stream_.get(), 1, 4092, 1, 2).code(), Code::kOutOfRange);
}

TEST_F(ClientTest, ADetachIsNoLossOfTheDaemon) {
  std::atomic<int> lost{0};
  client_->OnEvent([&](const ClientEvent& event) { lost += event.kind == ClientEvent::Kind::kDaemonLost; });
  daemon_->at_detach = [&] { daemon_->TellLoss("the daemon is gone"); };
  EXPECT_TRUE(client_->Detach().ok());
  EXPECT_EQ(lost, 0);
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).message(), "the client has detached");
}

TEST_F(ClientTest, TheSameKeyIsTheSameHandleAndReleasedOnce) {
  EXPECT_EQ(group_->Prepare("empty", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value(),
            plan_);
  EXPECT_TRUE(plan_->Release().ok());
  EXPECT_EQ(plan_->Release().code(), Code::kFailedPrecondition);
  EXPECT_EQ(plan_->Launch(stream_.get(), {}).code(), Code::kFailedPrecondition);
  plan_.reset();
  EXPECT_EQ(daemon_->released_plans.size(), 1u);
}

}  // namespace
}  // namespace tandem::client
