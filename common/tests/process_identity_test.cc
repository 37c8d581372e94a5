#include "common/process_identity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem {
namespace {

TEST(ProcessIdentityTest, OnesOwnLivesAndNobodyIsNeverGone) {
  const ProcessIdentity own = ProcessIdentity::Of(::getpid());
  EXPECT_EQ(own.pid, ::getpid());
  EXPECT_GT(own.start_ticks, 0u);
  EXPECT_FALSE(own.Gone());
  EXPECT_FALSE(ProcessIdentity{}.Gone());
}

TEST(ProcessIdentityTest, AProcessIsGoneAsAZombieAndWhenReaped) {
  const pid_t child = ::fork();
  if (child == 0) {
    while (true) ::pause();
  }
  const ProcessIdentity process = ProcessIdentity::Of(child);
  EXPECT_EQ(process.pid, child);
  EXPECT_GT(process.start_ticks, 0u);
  EXPECT_FALSE(process.Gone());
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(process.Gone());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(process.Gone());
}

TEST(ProcessIdentityTest, APidThatHasANewProcessIsNotTheOldOne) {
  ProcessIdentity other = ProcessIdentity::Of(::getpid());
  ++other.start_ticks;
  EXPECT_TRUE(other.Gone());
}

}  // namespace
}  // namespace tandem
