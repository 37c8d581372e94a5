#include "ipc/channel.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ipc/futex.h"

namespace tandem {
namespace {

struct Ends {
  explicit Ends(uint32_t entries) {
    memory = std::move(*CreateChannelMemory(entries));
    producer = std::move(*ChannelProducer::Map(memory.ring.get(), memory.words.get(), entries));
    consumer = std::move(*ChannelConsumer::Map(memory.ring.get(), memory.words.get(), entries));
  }
  ChannelMemory memory;
  ChannelProducer producer;
  ChannelConsumer consumer;
};

TEST(ChannelTest, RefusesSizesThatAreNoPowerOfTwo) {
  for (uint32_t entries : {0u, 1u, 3u, 100u, kMaxChannelEntries * 2}) {
    EXPECT_EQ(CreateChannelMemory(entries).status().code(), Code::kInvalidArgument) << entries;
  }
}

TEST(ChannelTest, RefusesDescriptorsThatAreNoChannel) {
  Ends ends(8);
  EXPECT_FALSE(ChannelConsumer::Map(ends.memory.words.get(), ends.memory.ring.get(), 8).ok());
  EXPECT_FALSE(ChannelConsumer::Map(ends.memory.ring.get(), ends.memory.words.get(), 16).ok());
}

TEST(ChannelTest, EntriesCrossWholeAndInOrderOverManyWraps) {
  Ends ends(4);
  LaunchEntry taken;
  for (uint64_t i = 1; i <= 1000; ++i) {
    LaunchEntry entry;
    entry.plan_id = i * 3;
    entry.binding_count = kMaxBindings;
    for (int b = 0; b < kMaxBindings; ++b) entry.bindings[b] = {i, i + static_cast<uint64_t>(b)};
    ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
    ASSERT_TRUE(ends.consumer.Poll(&taken));
    EXPECT_EQ(taken.sequence, i);
    EXPECT_EQ(taken.plan_id, i * 3);
    EXPECT_EQ(taken.bindings[23].offset, i + 23);
  }
  EXPECT_FALSE(ends.consumer.Poll(&taken));
}

TEST(ChannelTest, AsManyBindingsCrossAsAnEntryHas) {
  Ends ends(4);
  for (uint32_t count = 0; count <= kMaxBindings; ++count) {
    LaunchEntry entry, taken;
    entry.binding_count = count;
    for (LaunchBinding& binding : entry.bindings) binding = {7, count};
    ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
    ASSERT_TRUE(ends.consumer.Poll(&taken));
    EXPECT_EQ(taken.binding_count, count);
    for (uint32_t b = 0; b < kMaxBindings; ++b) {
      EXPECT_EQ(taken.bindings[b].registration_id, b < count ? 7u : 0u) << b << " of " << count;
    }
  }
}

// A count from the ring is a client's word: the engine's checks get it as it is, and nothing behind the entry
// is touched.
TEST(ChannelTest, ALyingBindingCountNeverLeavesTheEntry) {
  Ends ends(4);
  struct {
    LaunchEntry entry;
    uint64_t behind = 42;
  } taken;
  LaunchEntry entry;
  entry.binding_count = 0xffffffff;
  ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
  ASSERT_TRUE(ends.consumer.Poll(&taken.entry));
  EXPECT_EQ(taken.entry.binding_count, 0xffffffffu);
  EXPECT_EQ(taken.behind, 42u);
}

TEST(ChannelTest, AFullRingSaysSoAndTakesNoSequence) {
  Ends ends(4);
  LaunchEntry entry;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
  EXPECT_EQ(ends.producer.TryPush(&entry).code(), Code::kResourceExhausted);
  EXPECT_EQ(ends.producer.NextSequence(), 5u);
  ASSERT_TRUE(ends.consumer.Poll(&entry));
  EXPECT_EQ(ends.producer.Room(), 1u);
  EXPECT_TRUE(ends.producer.TryPush(&entry).ok());
}

TEST(ChannelTest, OutcomesArePublishedAndOverwrittenOnesAreKnownAsSuch) {
  Ends ends(4);
  const Status late =
      DeadlineExceeded("rank 2 is late").WithDetail({.reason = "RANK_LATE", .who = {}, .field = {}});
  ends.consumer.PublishStatus(1, late, 7, 2);
  ends.consumer.Complete(1);
  LaunchOutcome outcome = ends.producer.Outcome(1);
  EXPECT_EQ(outcome.status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(outcome.status.message(), "rank 2 is late");
  EXPECT_EQ(outcome.who_rank, 2);
  EXPECT_EQ(outcome.status.detail(), (StatusDetail{.reason = "RANK_LATE", .who = "rank 2", .ranks = {2}}));
  EXPECT_EQ(outcome.generation, 7u);
  EXPECT_EQ(ends.producer.Failures(), 1u);
  EXPECT_EQ(ends.producer.Outcome(2).status.code(), Code::kFailedPrecondition);
  ends.consumer.PublishOk(5, 7);
  EXPECT_TRUE(ends.producer.Outcome(5).status.ok());
  EXPECT_EQ(ends.producer.Outcome(1).status.code(), Code::kDataLoss);
}

TEST(ChannelTest, TheCauseOfAFailureCrossesWhole) {
  Ends ends(4);
  uint64_t launch = 0;
  for (const StatusDetail& cause :
       {StatusDetail{.reason = "A", .who = "ranks 0, 7", .ranks = {0, 7}, .started = true},
        StatusDetail{.reason = "B", .who = "gpu 0", .pid = 4194303, .gpu = 0},
        StatusDetail{.reason = "C", .who = "gpu 253", .gpu = 253, .started = false},
        StatusDetail{.reason = "D", .who = "pid 12", .pid = 12}, StatusDetail{}}) {
    ends.consumer.PublishStatus(++launch, Unavailable("it failed").WithDetail(cause), 1);
    EXPECT_EQ(ends.producer.Outcome(launch).status.detail(), cause);
    ends.consumer.PublishCaptured(3, launch, Unavailable("it failed").WithDetail(cause), 1);
    uint64_t number = 0;
    EXPECT_EQ(ends.producer.CapturedFailure(3, &number).status.detail(), cause);
  }
}

// A launch that has begun has its OK. A launch that has not arrived cannot have begun on any rank. The state
// of others is not known.
TEST(ChannelTest, AReleaseTellsWhetherALaunchHadStarted) {
  for (const Code code : {Code::kAborted, Code::kUnavailable}) {
    Ends ends(8);
    LaunchEntry entry;
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
    ends.producer.request()->store(2);
    ends.consumer.PublishOk(1, 1);
    ends.producer.words().Release(Status(code, "the engine is gone"));
    EXPECT_EQ(ends.producer.Outcome(1).status.detail().started, true);
    EXPECT_EQ(ends.producer.Outcome(2).status.detail().started, std::nullopt);
    // A daemon that is gone may have left its engine behind, which sees the launch arrive.
    const bool gone = code == Code::kAborted;
    EXPECT_EQ(ends.producer.Outcome(3).status.detail().started, gone ? std::optional(false) : std::nullopt);
  }
}

TEST(ChannelTest, ALaunchThatAReleaseCutsShortIsNotTakenForAGoodOne) {
  Ends ends(8);
  LaunchEntry entry;
  for (uint64_t i = 1; i <= 4; ++i) {
    ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
    ends.consumer.PublishOk(i, 1);
  }
  ends.consumer.PublishStatus(3, Unavailable("rank 1 is gone"), 1, 1);
  ends.consumer.Complete(2);
  for (int i = 0; i < 2; ++i) {  // by tandemd, and again by the client's watchdog
    ends.producer.words().Release(Aborted("the engine ended"));
    EXPECT_TRUE(ends.producer.Outcome(1).status.ok());
    EXPECT_TRUE(ends.producer.Outcome(2).status.ok());
    EXPECT_EQ(ends.producer.Outcome(3).status.code(), Code::kUnavailable);
    EXPECT_EQ(ends.producer.Outcome(4).status.code(), Code::kAborted);
  }
}

TEST(ChannelTest, AChannelThatIsBeingEndedCutsLaunchesShortBeforeItsReasonIsThere) {
  Ends ends(8);
  LaunchEntry entry;
  ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
  ends.consumer.PublishOk(1, 1);
  Mapping words = std::move(*Mapping::Map(ends.memory.words.get(), 0, sizeof(ChannelWordsHeader), true));
  words.As<ChannelWordsHeader>()->released.store(2);
  ends.consumer.done()->store(kReleaseValue);
  EXPECT_EQ(ends.producer.words().ClosedStatus().code(), Code::kUnavailable);
  EXPECT_EQ(ends.producer.Outcome(1).status.code(), Code::kUnavailable);
}

TEST(ChannelTest, LongTextsAreCutAndLongReasonsLeftOut) {
  Ends ends(4);
  const auto publish = [&](size_t reason_bytes) {
    ends.consumer.PublishStatus(
        1,
        Internal(std::string(5000, 'x'))
            .WithDetail({.reason = std::string(reason_bytes, 'R'), .who = {}, .field = {}}),
        1);
    const Status status = ends.producer.Outcome(1).status;
    EXPECT_EQ(status.message(), std::string(kStatusTextBytes - 1, 'x'));
    return status.detail().reason;
  };
  EXPECT_EQ(publish(kStatusReasonBytes - 1), std::string(kStatusReasonBytes - 1, 'R'));
  EXPECT_EQ(publish(kStatusReasonBytes), "") << "a reason that is cut is another";
  // No trace of a failure stays in a later failure, or in a launch that ended well.
  publish(3);
  ends.consumer.PublishStatus(1, Internal(""), 1);
  EXPECT_EQ(ends.producer.Outcome(1).status, Internal(""));
  publish(3);
  ends.consumer.PublishOk(1, 1);
  EXPECT_EQ(ends.producer.Outcome(1).status, Status::Ok());
}

TEST(ChannelTest, ReleaseFreesEveryWaitKeepsTheFirstReasonAndServesReplays) {
  Ends ends(4);
  LaunchEntry entry;
  ASSERT_TRUE(ends.producer.TryPush(&entry).ok());
  ChannelWords words = std::move(*ChannelWords::Map(ends.memory.words.get(), 4));
  const Status ended =
      Aborted("the engine ended").WithDetail({.reason = "ENGINE_RESTARTED", .who = {}, .field = {}});
  words.Release(ended);
  words.Release(Unavailable("too late"));
  EXPECT_EQ(ends.producer.Done(), kReleaseValue);
  EXPECT_EQ(ends.producer.Outcome(1).status, ended.WithStarted(false));
  EXPECT_EQ(ends.producer.TryPush(&entry).code(), Code::kUnavailable);
  ends.producer.captured_done(3)->store(0);  // a replayed graph's last write
  words.Release(Aborted(""));
  EXPECT_EQ(ends.producer.captured_done(3)->load(), kReleaseValue);
}

TEST(ChannelTest, CapturedSlotsAreReusedOnlyAfterTheEngineHasTakenNote) {
  Ends ends(128);
  LaunchEntry entry;
  std::vector<int> slots;
  for (int i = 0; i < kCapturedSlots; ++i) slots.push_back(*ends.producer.Arm(&entry));
  EXPECT_EQ(ends.producer.Arm(&entry).status().code(), Code::kResourceExhausted);
  LaunchEntry taken;
  while (ends.consumer.Poll(&taken)) ends.consumer.SetArmed(taken.captured_slot, true);
  ASSERT_TRUE(ends.producer.Disarm(slots[5]).ok());
  EXPECT_EQ(ends.producer.Arm(&entry).status().code(), Code::kResourceExhausted);
  ASSERT_TRUE(ends.consumer.Poll(&taken));
  EXPECT_EQ(taken.kind, EntryKind::kDisarm);
  ends.consumer.SetArmed(taken.captured_slot, false);
  EXPECT_EQ(*ends.producer.Arm(&entry), slots[5]);
}

TEST(ChannelTest, AFailedReplayStaysKnownWhenLaterOnesGoWell) {
  Ends ends(4);
  EXPECT_EQ(ends.producer.CapturedFailures(3), 0u);
  ends.consumer.PublishCaptured(
      3, 1, DeadlineExceeded("rank 1 is late").WithDetail({.reason = "RANK_LATE", .who = {}, .field = {}}), 5,
      1);
  ends.consumer.PublishCaptured(3, 2, Status::Ok(), 5);
  EXPECT_TRUE(ends.producer.CapturedOutcome(3).status.ok());
  EXPECT_EQ(ends.producer.CapturedFailures(3), 1u);
  EXPECT_EQ(ends.producer.Failures(), 1u);
  uint64_t number = 0;
  LaunchOutcome failure = ends.producer.CapturedFailure(3, &number);
  EXPECT_EQ(number, 1u);
  EXPECT_EQ(failure.status.message(), "rank 1 is late");
  EXPECT_EQ(failure.status.detail().reason, "RANK_LATE");
  EXPECT_EQ(failure.generation, 5u);
  EXPECT_EQ(failure.who_rank, 1);
  ends.consumer.PublishCaptured(3, 1, Unavailable("rank 1 is gone"), 5, 1);  // another graph's first
  EXPECT_EQ(ends.producer.CapturedFailure(3, &number).status.code(), Code::kUnavailable);
  EXPECT_EQ(number, 2u);
  EXPECT_EQ(ends.producer.CapturedFailures(4), 0u);
}

TEST(ChannelTest, ALyingProducerIndexNeverLeavesTheRing) {
  Ends ends(4);
  Mapping ring = std::move(*Mapping::Map(ends.memory.ring.get(), 0, RingBytes(4), true));
  ring.As<RingHeader>()->producer.store(~uint64_t{0});
  ring.As<RingHeader>()->entries.store(1u << 30);
  LaunchEntry taken;
  for (int i = 0; i < 100; ++i)
    ASSERT_TRUE(ends.consumer.Poll(&taken));  // garbage, which the engine's checks refuse
  EXPECT_EQ(taken.plan_id, 0u);
}

TEST(ChannelTest, APushWakesASleepingEngine) {
  Ends ends(8);
  constexpr uint64_t kPushes = 200;
  std::thread engine([&] {
    LaunchEntry taken;
    for (uint64_t i = 1; i <= kPushes;) {
      if (ends.consumer.Poll(&taken)) {
        EXPECT_EQ(taken.sequence, i++);
        continue;
      }
      ends.consumer.AnnounceSleep();
      FutexWaiter waiter{ends.consumer.sleep_word(), 1};
      // A lost wake would sleep for the whole minute, and the test's deadline below would pass.
      if (!ends.consumer.HasEntry()) FutexWaitAny({&waiter, 1}, 60'000'000'000);
      ends.consumer.EndSleep();
    }
  });
  auto start = std::chrono::steady_clock::now();
  for (uint64_t i = 1; i <= kPushes; ++i) {
    LaunchEntry entry;
    while (!ends.producer.TryPush(&entry).ok()) std::this_thread::yield();
    if (i % 3 == 0) std::this_thread::yield();
  }
  engine.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(59));
}

}  // namespace
}  // namespace tandem
