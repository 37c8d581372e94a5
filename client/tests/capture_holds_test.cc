// A hold keeps plans for a capture, and drops them at its end.
#include "client/lib/base/capture_holds.h"

#include <gtest/gtest.h>

#include <future>

#include "client/lib/base/deferred_reclaimer.h"
#include "tandem/host_stream.h"

namespace tandem::client {
namespace {

// Fulfils a promise when it is dropped.
std::shared_ptr<void> Tracked(std::promise<void>& dropped) {
  return {&dropped, [](std::promise<void>* promise) { promise->set_value(); }};
}

bool IsReady(const std::future<void>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

TEST(CaptureHoldsTest, AHoldKeepsOneObjectForAKeyUntilItEnds) {
  CaptureHolds holds;
  auto hold = holds.Add(7).value();
  std::promise<void> dropped;
  const std::future<void> is_dropped = dropped.get_future();
  int made = 0, key = 0;
  const auto make = [&] {
    ++made;
    return Tracked(dropped);
  };
  EXPECT_TRUE(holds.Keep(7, &key, make));
  EXPECT_TRUE(holds.Keep(7, &key, make));
  EXPECT_EQ(made, 1);
  EXPECT_FALSE(IsReady(is_dropped));
  hold.reset();
  EXPECT_TRUE(IsReady(is_dropped));
}

TEST(CaptureHoldsTest, ACaptureWithoutAHoldKeepsNothing) {
  CaptureHolds holds;
  auto hold = holds.Add(7).value();
  int key = 0;
  const auto make = []() -> std::shared_ptr<void> {
    ADD_FAILURE() << "nobody would hold it";
    return nullptr;
  };
  EXPECT_FALSE(holds.Keep(8, &key, make));
  hold.reset();
  EXPECT_FALSE(holds.Keep(7, &key, make));
}

TEST(CaptureHoldsTest, ACaptureHasOneHold) {
  CaptureHolds holds;
  auto hold = holds.Add(7).value();
  EXPECT_EQ(holds.Add(7).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(holds.Add(8).ok());
}

TEST(CaptureHoldsTest, AHoldOfTheHostBackendNeedsACapture) {
  auto stream = HostStream::Create().value();
  EXPECT_EQ(CaptureHold::Begin(stream.get()).status().code(), Code::kFailedPrecondition);
  EXPECT_EQ(CaptureHold::Begin(static_cast<HostStream*>(nullptr)).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(stream->BeginCapture().ok());
  EXPECT_TRUE(CaptureHold::Begin(stream.get()).ok());
  EXPECT_TRUE(stream->EndCapture().ok());
}

TEST(CaptureHoldsTest, AnObjectIsDroppedAfterItsWorkHasEnded) {
  std::promise<void> dropped, asked;
  const std::future<void> is_dropped = dropped.get_future();
  std::future<void> was_asked = asked.get_future();
  std::atomic<bool> ended{false}, first{true};
  DeferredReclaimer::Get().DiscardAfter(
      [&] {
        if (first.exchange(false)) asked.set_value();
        return ended.load();
      },
      Tracked(dropped));
  was_asked.wait();
  EXPECT_FALSE(IsReady(is_dropped));
  ended = true;
  EXPECT_EQ(is_dropped.wait_for(std::chrono::seconds(60)), std::future_status::ready);
}

}  // namespace
}  // namespace tandem::client
