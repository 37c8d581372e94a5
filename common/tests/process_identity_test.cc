#include "common/process_identity.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem {
namespace {

TEST(ProcessIdentityTest, OnesOwnLivesAndNobodyIsNeverGone) {
  const ProcessIdentity own = ProcessIdentity::Own();
  EXPECT_EQ(own.pid, ::getpid());
  EXPECT_GT(own.start_ticks, 0u);
  EXPECT_FALSE(own.Gone());
  EXPECT_FALSE(ProcessIdentity{}.Gone());
}

TEST(ProcessIdentityTest, AProcessIsGoneAsAZombieAndWhenReaped) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const ProcessIdentity self = ProcessIdentity::Own();
    if (::write(ready[1], &self, sizeof(self)) != sizeof(self)) ::_exit(1);
    while (true) ::pause();
  }
  ProcessIdentity process;
  ASSERT_EQ(::read(ready[0], &process, sizeof(process)), static_cast<ssize_t>(sizeof(process)));
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_EQ(process.pid, child);
  EXPECT_FALSE(process.Gone());
  ::kill(child, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(process.Gone());
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(process.Gone());
}

TEST(ProcessIdentityTest, APidThatHasANewProcessIsNotTheOldOne) {
  ProcessIdentity other = ProcessIdentity::Own();
  ++other.start_ticks;
  EXPECT_TRUE(other.Gone());
}

}  // namespace
}  // namespace tandem
