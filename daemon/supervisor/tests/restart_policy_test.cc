#include "daemon/supervisor/restart_policy.h"

#include <gtest/gtest.h>

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;

TEST(RestartPolicyTest, BackOffDoublesUpToItsBound) {
  RestartPolicy policy({milliseconds(100), milliseconds(350), 10, milliseconds(60000)});
  RestartPolicy::Time now{};
  EXPECT_EQ(policy.OnCrash(now), milliseconds(100));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(200));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(350));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(350));
}

TEST(RestartPolicyTest, FuseBlowsWithinTheWindowOnly) {
  RestartPolicy policy({milliseconds(1), milliseconds(10), 3, milliseconds(1000)});
  RestartPolicy::Time now{};
  for (int i = 0; i < 10; ++i) {
    now += milliseconds(600);  // never three within a second
    EXPECT_TRUE(policy.OnCrash(now).has_value()) << i;
  }
  EXPECT_FALSE(policy.OnCrash(now + milliseconds(1)).has_value());
}

TEST(RestartPolicyTest, OldCrashesAreForgotten) {
  RestartPolicy policy({milliseconds(100), milliseconds(10000), 5, milliseconds(1000)});
  RestartPolicy::Time now{};
  EXPECT_EQ(policy.OnCrash(now), milliseconds(100));
  EXPECT_EQ(policy.OnCrash(now + milliseconds(5000)), milliseconds(100));
}

}  // namespace
}  // namespace tandem::daemon
