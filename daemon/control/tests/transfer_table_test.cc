#include "daemon/control/base/transfer_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <future>

namespace tandem::daemon {
namespace {

std::vector<UniqueFd> Fds(int count) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < count; ++i) fds.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}
const auto kSoon = std::chrono::milliseconds(20);
const auto kLong = std::chrono::seconds(30);

TEST(TransferTable, WaitsForAllParts) {
  TransferTable table(4);
  auto claim = std::async(std::launch::async, [&] { return table.Claim(9, Waiter::For(kLong)); });
  ASSERT_TRUE(table.Add(9, 1, 3, Fds(2)).ok());
  ASSERT_TRUE(table.Add(9, 0, 3, Fds(1)).ok());
  auto fds = claim.get();
  ASSERT_TRUE(fds.ok());
  EXPECT_EQ(fds->size(), 3u);
  EXPECT_EQ(table.descriptors(), 0u);
  EXPECT_EQ(table.Claim(9, Waiter::For(kSoon)).status().code(), Code::kNotFound);
}

TEST(TransferTable, TellsTheClaimerWhatWasWrong) {
  TransferTable table(4);
  ASSERT_TRUE(table.Add(1, 0, 3000, Fds(2)).ok());
  EXPECT_EQ(table.descriptors(), 0u);
  const Status many = table.Claim(1, Waiter::For(kSoon)).status();
  EXPECT_EQ(many.code(), Code::kInvalidArgument);
  EXPECT_EQ(many.detail().usage, 3000);
  EXPECT_EQ(table.Add(2, 1, 2, Fds(2)).code(), Code::kInvalidArgument);
  EXPECT_EQ(table.Claim(2, Waiter::For(kSoon)).status().code(), Code::kInvalidArgument);
  ASSERT_TRUE(table.Add(3, 0, 2, Fds(1)).ok());
  EXPECT_EQ(table.Add(3, 0, 2, Fds(1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(table.Add(4, UINT32_MAX, 2, Fds(1)).code(), Code::kInvalidArgument);
}

TEST(TransferTable, ReapsOrphansAndBoundsTheirNumber) {
  TransferTable table(2);
  ASSERT_TRUE(table.Add(1, 0, 2, Fds(1)).ok());
  ASSERT_TRUE(table.Add(2, 0, 2, Fds(1)).ok());
  EXPECT_EQ(table.Add(3, 0, 2, Fds(1)).code(), Code::kResourceExhausted);
  EXPECT_TRUE(table.ReapOrphans(std::chrono::hours(1)));
  EXPECT_EQ(table.descriptors(), 2u);
  EXPECT_FALSE(table.ReapOrphans(std::chrono::milliseconds(0)));
  EXPECT_EQ(table.descriptors(), 0u);
}

TEST(TransferTable, ClosingEndsClaims) {
  TransferTable table(2);
  auto claim = std::async(std::launch::async, [&] { return table.Claim(9, Waiter::For(kLong)); });
  table.Close();
  EXPECT_EQ(claim.get().status().code(), Code::kUnavailable);
  EXPECT_EQ(table.Add(9, 0, 1, Fds(1)).code(), Code::kUnavailable);
}

}  // namespace
}  // namespace tandem::daemon
