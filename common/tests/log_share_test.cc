#include "common/log_share.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using std::chrono::milliseconds;

class SharesTest : public testing::Test {
 protected:
  int Taken(const std::string& user, int tries, milliseconds at = milliseconds(0)) {
    int taken = 0;
    for (int i = 0; i < tries; ++i) taken += shares.Take(user, start + at) ? 1 : 0;
    return taken;
  }
  const log::Counter::Clock::time_point start = log::Counter::Clock::now();
  log::Shares shares{{.user = {.per_second = 1, .burst = 10}, .all = {.per_second = 2, .burst = 25}}};
};

TEST_F(SharesTest, AUserHasItsShareAndAllUsersHaveTheirs) {
  EXPECT_EQ(Taken("uid=1", 1000), 10);
  EXPECT_EQ(Taken("uid=2", 1000), 10);
  EXPECT_EQ(Taken("uid=3", 1000), 5) << "what all users together may write";
}

TEST_F(SharesTest, WhatIsLeftOutIsCounted) {
  Taken("uid=1", 1000);
  Taken("uid=2", 5);
  EXPECT_TRUE(shares.left_out().Take(milliseconds(10000), start + milliseconds(9000)).empty());
  const auto reports = shares.left_out().Take(milliseconds(10000), start + milliseconds(12000));
  ASSERT_EQ(reports.size(), 1u) << "uid=2 has written all its lines";
  EXPECT_EQ(reports[0].user, "uid=1");
  EXPECT_EQ(reports[0].events, 990u);
  EXPECT_DOUBLE_EQ(reports[0].seconds, 12);
  EXPECT_TRUE(shares.left_out().Take(milliseconds(0), start + milliseconds(12000)).empty());
}

TEST_F(SharesTest, ManyUsersMakeFewReports) {
  log::Counter counter;
  for (int uid = 0; uid < 1000; ++uid) counter.Count("uid=" + std::to_string(uid), start);
  const auto reports = counter.Take(milliseconds(0), start);
  ASSERT_LT(reports.size(), 20u);
  EXPECT_EQ(reports.back().user, "");
  uint64_t all = 0;
  for (const auto& report : reports) all += report.events;
  EXPECT_EQ(all, 1000u);
}

}  // namespace
}  // namespace tandem
