#include "daemon/observe/http_password_limit.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HttpPasswordLimitTest : public testing::Test {
 protected:
  milliseconds Wait(const std::string& address) const {
    return std::chrono::duration_cast<milliseconds>(limit_.WaitOf(address, now_));
  }
  void Wrong(const std::string& address, int times = 1) {
    for (int i = 0; i < times; ++i) limit_.NoteWrong(address, now_);
  }

  HttpPasswordLimit limit_{{.burst = 3, .interval = seconds(1), .addresses = 4}};
  HttpPasswordLimit::Clock::time_point now_{std::chrono::hours(5)};
};

TEST_F(HttpPasswordLimitTest, AnAddressWaitsOnceItsBurstIsSpent) {
  EXPECT_EQ(Wait("a"), milliseconds(0));
  Wrong("a", 2);
  EXPECT_EQ(Wait("a"), milliseconds(0));
  Wrong("a");
  EXPECT_EQ(Wait("a"), seconds(1));
  EXPECT_EQ(Wait("b"), milliseconds(0));
}

TEST_F(HttpPasswordLimitTest, OneTryComesBackWithEachInterval) {
  Wrong("a", 3);
  now_ += milliseconds(400);
  EXPECT_EQ(Wait("a"), milliseconds(600));
  now_ += milliseconds(600);
  EXPECT_EQ(Wait("a"), milliseconds(0));
  Wrong("a");
  EXPECT_EQ(Wait("a"), seconds(1));
}

TEST_F(HttpPasswordLimitTest, AQuietAddressHasItsBurstAgain) {
  Wrong("a", 3);
  now_ += seconds(3);
  Wrong("a", 2);
  EXPECT_EQ(Wait("a"), milliseconds(0));
  Wrong("a");
  EXPECT_EQ(Wait("a"), seconds(1));
}

TEST_F(HttpPasswordLimitTest, TheTableIsBounded) {
  for (int i = 0; i < 100; ++i) Wrong(std::to_string(i));
  EXPECT_EQ(limit_.addresses(), 4U);
}

TEST_F(HttpPasswordLimitTest, OtherAddressesDoNotPushASpentOneOut) {
  Wrong("a", 3);
  for (int i = 0; i < 100; ++i) Wrong(std::to_string(i));
  EXPECT_EQ(Wait("a"), seconds(1));
  // Full buckets are forgotten first.
  now_ += seconds(2);
  Wrong("b");
  EXPECT_EQ(limit_.addresses(), 2U);
}

}  // namespace
}  // namespace tandem::daemon
