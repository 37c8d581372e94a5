#include "common/rate_limiter.h"

#include <gtest/gtest.h>

namespace tandem {
namespace {

using std::chrono::milliseconds;

class RateLimiterTest : public testing::Test {
 protected:
  // Tokens that `user` gets out of many tries at one moment.
  int Taken(const std::string& user, milliseconds at) {
    int taken = 0;
    for (int i = 0; i < 100; ++i) taken += limiter.Take(user, start + at) ? 1 : 0;
    return taken;
  }
  const RateLimiter::Clock::time_point start = RateLimiter::Clock::now();
  RateLimiter limiter{{.per_second = 10, .burst = 5}};
};

TEST_F(RateLimiterTest, ABurstAndThenTheRate) {
  EXPECT_EQ(Taken("a", milliseconds(0)), 5);
  EXPECT_EQ(Taken("a", milliseconds(50)), 0);
  EXPECT_EQ(Taken("a", milliseconds(100)), 1);
  EXPECT_EQ(Taken("a", milliseconds(350)), 2);
  EXPECT_EQ(Taken("a", milliseconds(400)), 1) << "half a token is kept";
  EXPECT_EQ(Taken("a", milliseconds(60000)), 5) << "a rest gives no more than a burst";
}

TEST_F(RateLimiterTest, UsersDoNotTakeEachOthersTokens) {
  EXPECT_EQ(Taken("a", milliseconds(0)), 5);
  EXPECT_EQ(Taken("b", milliseconds(0)), 5);
}

TEST_F(RateLimiterTest, UsersThatHaveRestedAreForgotten) {
  for (int i = 0; i < 10000; ++i) limiter.Take(std::to_string(i), start + milliseconds(i));
  EXPECT_LT(limiter.users(), 2000u);
  EXPECT_EQ(Taken("9999", milliseconds(9999)), 4) << "one that has not is known";
}

}  // namespace
}  // namespace tandem
