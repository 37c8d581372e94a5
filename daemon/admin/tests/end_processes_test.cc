#include "daemon/admin/end_processes.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;

// A child that ends by nothing but signals; one that is `stubborn` not by SIGTERM. Says when it is ready.
pid_t Child(bool stubborn) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGTERM, stubborn ? SIG_IGN : SIG_DFL);
    if (::write(ends[1], "x", 1) != 1) ::_exit(1);
    while (true) ::pause();
  }
  char ready;
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  ::close(ends[0]);
  ::close(ends[1]);
  return pid;
}

int SignalOf(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(EndProcessesTest, AsksFirstAndInsistsThen) {
  const pid_t polite = Child(false), stubborn = Child(true);
  // Time for the polite one to run on a busy machine.
  EXPECT_TRUE(EndProcesses({polite, stubborn}, milliseconds(3000)).ok());
  EXPECT_EQ(SignalOf(polite), SIGTERM);
  EXPECT_EQ(SignalOf(stubborn), SIGKILL);
}

TEST(EndProcessesTest, WhoHasEndedIsNoError) {
  const pid_t gone = Child(false);
  ::kill(gone, SIGKILL);
  EXPECT_EQ(SignalOf(gone), SIGKILL);
  EXPECT_TRUE(EndProcesses({gone}, milliseconds(100)).ok());
  EXPECT_TRUE(EndProcesses({}, milliseconds(100)).ok());
}

TEST(EndProcessesTest, NeverEndsItselfOrInit) {
  EXPECT_EQ(EndProcesses({::getpid()}, milliseconds(1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(EndProcesses({1}, milliseconds(1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(EndProcesses({0}, milliseconds(1)).code(), Code::kInvalidArgument);
  EXPECT_EQ(EndProcesses({-5}, milliseconds(1)).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::daemon
