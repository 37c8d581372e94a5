#include "daemon/supervisor/restart_policy.h"

#include <gtest/gtest.h>

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;

RestartOptions Options(int initial_ms, int max_ms, int count, int window_ms) {
  RestartOptions options;
  options.backoff_initial = milliseconds(initial_ms);
  options.backoff_max = milliseconds(max_ms);
  options.crash_loop_count = count;
  options.crash_loop_window = milliseconds(window_ms);
  return options;
}

TEST(RestartPolicyTest, BackOffDoublesUpToItsBound) {
  RestartPolicy policy(Options(100, 350, 10, 60000));
  RestartPolicy::Time now{};
  EXPECT_EQ(policy.OnCrash(now), milliseconds(100));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(200));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(350));
  EXPECT_EQ(policy.OnCrash(now), milliseconds(350));
}

TEST(RestartPolicyTest, FuseBlowsWithinTheWindowOnly) {
  RestartPolicy policy(Options(1, 10, 3, 1000));
  RestartPolicy::Time now{};
  for (int i = 0; i < 10; ++i) {
    now += milliseconds(600);  // never three within a second
    EXPECT_TRUE(policy.OnCrash(now).has_value()) << i;
  }
  EXPECT_FALSE(policy.OnCrash(now + milliseconds(1)).has_value());
}

TEST(RestartPolicyTest, WhatOthersBlockNeverBlowsTheFuse) {
  RestartOptions options;
  options.crash_loop_count = 2;
  options.blocked_initial = milliseconds(50);
  options.blocked_max = milliseconds(150);
  RestartPolicy policy(options);
  EXPECT_EQ(policy.OnBlocked(), milliseconds(50));
  EXPECT_EQ(policy.OnBlocked(), milliseconds(100));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(policy.OnBlocked(), milliseconds(150));
  EXPECT_EQ(policy.crashes(), 0);
  policy.OnLife();
  EXPECT_EQ(policy.OnBlocked(), milliseconds(50));
}

TEST(RestartPolicyTest, OldCrashesAreForgotten) {
  RestartPolicy policy(Options(100, 10000, 5, 1000));
  RestartPolicy::Time now{};
  EXPECT_EQ(policy.OnCrash(now), milliseconds(100));
  EXPECT_EQ(policy.OnCrash(now + milliseconds(5000)), milliseconds(100));
}

}  // namespace
}  // namespace tandem::daemon
