// The verdict page, as tandemd and a member share it.
#include "ipc/verdict_page.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem {
namespace {

Status Lost(const char* text) {
  return Unavailable(text).WithDetail({.reason = "RANK_LOST", .who = "rank 1", .ranks = {1}, .pid = 42});
}

TEST(VerdictPage, AbortsFromANumberOn) {
  auto fd = VerdictPage::Create();
  ASSERT_TRUE(fd.ok());
  auto daemon = VerdictPage::Map(fd->get());
  auto member = VerdictPage::Map(fd->get());
  ASSERT_TRUE(daemon.ok() && member.ok());
  EXPECT_FALSE(member->Aborts(1));
  daemon->Abort(8, Lost("rank 1 has left"));
  EXPECT_FALSE(member->Aborts(7));
  EXPECT_TRUE(member->Aborts(8));
  const Status why = member->Reason();
  EXPECT_EQ(why.code(), Code::kUnavailable);
  EXPECT_EQ(why.message(), "rank 1 has left");
  EXPECT_EQ(why.detail(), (StatusDetail{.reason = "RANK_LOST", .who = "rank 1", .ranks = {1}, .pid = 42}));
}

TEST(VerdictPage, EndsMoreLaunchesAndNeverFewer) {
  auto fd = VerdictPage::Create();
  ASSERT_TRUE(fd.ok());
  auto page = VerdictPage::Map(fd->get());
  ASSERT_TRUE(page.ok());
  page->Abort(8, Lost("first"));
  page->Abort(9, Lost("later"));
  page->Abort(8, Lost("again"));
  EXPECT_EQ(page->FirstAbortedLaunch(), 8u);
  EXPECT_EQ(page->Reason().message(), "first");
  page->Abort(1, Lost("broken"));
  EXPECT_EQ(page->FirstAbortedLaunch(), 1u);
  EXPECT_EQ(page->Reason().message(), "broken");
  page->SetFinished(7);
  EXPECT_EQ(page->Finished(), 7u);
}

TEST(VerdictPage, AFieldCrossesWhereItHasRoomBehindTheReason) {
  auto fd = VerdictPage::Create();
  ASSERT_TRUE(fd.ok());
  auto page = VerdictPage::Map(fd->get());
  ASSERT_TRUE(page.ok());
  const auto crossed = [&](const std::string& reason, const std::string& field) {
    page->Clear();
    page->Abort(1, InvalidArgument("unlike").WithDetail({.reason = reason, .field = field}));
    return page->Reason().detail();
  };
  EXPECT_EQ(crossed("LAUNCH_MISMATCH", "rows").field, "rows");
  const std::string reason(kStatusReasonBytes - 6, 'R');
  EXPECT_EQ(crossed(reason, "rows").field, "rows");
  for (const std::string& field : {std::string("longer"), std::string()}) {
    const StatusDetail detail = crossed(reason, field);
    EXPECT_EQ(detail.reason, reason);
    EXPECT_EQ(detail.field, "");
  }
  const StatusDetail longest = crossed(std::string(kStatusReasonBytes - 1, 'R'), "");
  EXPECT_EQ(longest.reason, std::string(kStatusReasonBytes - 1, 'R'));
  EXPECT_EQ(longest.field, "");
}

TEST(VerdictPage, KeepsThePlansOfTheLastLaunches) {
  auto fd = VerdictPage::Create();
  ASSERT_TRUE(fd.ok());
  auto daemon = VerdictPage::Map(fd->get());
  auto member = VerdictPage::Map(fd->get());
  ASSERT_TRUE(daemon.ok() && member.ok());
  EXPECT_EQ(daemon->Launched(), 0u);
  EXPECT_EQ(daemon->PlanOfLaunch(1), 0u);
  constexpr uint64_t kLast = 40;
  for (uint64_t number = 1; number <= kLast; ++number) member->SetLaunched(number, 100 + number);
  EXPECT_EQ(daemon->Launched(), kLast);
  EXPECT_EQ(daemon->PlanOfLaunch(kLast), 100 + kLast);
  const uint64_t first = kLast - kLaunchedPlans + 2;
  EXPECT_EQ(daemon->PlanOfLaunch(first), 100 + first);
  EXPECT_EQ(daemon->PlanOfLaunch(first - 1), 0u);
  EXPECT_EQ(daemon->PlanOfLaunch(kLast + 1), 0u);
  member->SetLaunched(0, 0);
  EXPECT_EQ(daemon->PlanOfLaunch(kLast), 0u);
}

TEST(VerdictPage, RefusesOtherMemory) {
  auto small = CreateSealedMemfd("small", 64);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(VerdictPage::Map(small->get()).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
