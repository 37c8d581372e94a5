#include "daemon/main/peer_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace tandem::daemon {
namespace {

TEST(CallerTest, IsTheProcessAtTheOtherEnd) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
  const UniqueFd own(pair[0]), other(pair[1]);
  const std::optional<Caller> caller = IdentifyCaller(own.get());
  ASSERT_TRUE(caller.has_value());
  EXPECT_EQ(caller->uid, ::geteuid());
  EXPECT_EQ(caller->pid, ::getpid());
  EXPECT_TRUE(caller->in_own_namespace);
  EXPECT_THAT(caller->groups, testing::Contains(::getegid()));
  EXPECT_THAT(CallerText(*caller), testing::StartsWith("uid=" + std::to_string(::geteuid()) +
                                                       " pid=" + std::to_string(::getpid()) + " command=\""));
}

TEST(CallerTest, NoSocketHasNone) { EXPECT_FALSE(IdentifyCaller(-1).has_value()); }

TEST(CallerTest, TheCommandIsQuoted) {
  EXPECT_EQ(CallerText({.uid = 7, .pid = 8, .command = "a \"b\" uid=0", .groups = {}}),
            "uid=7 pid=8 command=\"a \\\"b\\\" uid=0\"");
}

}  // namespace
}  // namespace tandem::daemon
