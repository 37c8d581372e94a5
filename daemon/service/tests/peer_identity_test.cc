// The process at the other end of a Unix socket: its pid, uid, cgroup and age, and whether it lives.
#include "daemon/service/peer_identity.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "common/fd_socket.h"
#include "daemon/control/base/waiter.h"

namespace tandem::daemon {
namespace {

TEST(PeerIdentity, BothWaysNameThisProcess) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  for (PidfdSource source : {PidfdSource::kPreferSocket, PidfdSource::kOpenOnly}) {
    auto peer = IdentifyPeer(pair->first.get(), source);
    ASSERT_TRUE(peer.ok()) << peer.status().ToString();
    EXPECT_EQ(peer->first.pid, ::getpid());
    EXPECT_EQ(peer->first.uid, ::getuid());
    EXPECT_TRUE(peer->second.valid());
    std::ifstream file("/proc/self/cgroup");
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(peer->first.cgroup, AccountedCgroup(text.str()));
  }
  EXPECT_GT(*ProcessStartTicks(::getpid()), 0u);
  const auto age = Waiter::Clock::now() - IdentifyPeer(pair->first.get())->first.started;
  EXPECT_GE(age, std::chrono::seconds(0));
  EXPECT_LT(age, std::chrono::minutes(10));  // the program's own
  EXPECT_EQ(ProcessStartTicks(-1).status().code(), Code::kNotFound);
}

TEST(PeerIdentity, AProcessThatHasEndedDoesNotLive) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  auto own = IdentifyPeer(pair->first.get());
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE(ProcessLives(::getpid(), own->second));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_FALSE(ProcessLives(child, own->second));  // not reaped yet: the pid is its own
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(ProcessLives(child, own->second));
}

TEST(PeerIdentity, TheMemoryControllersCgroupCounts) {
  EXPECT_EQ(AccountedCgroup("0::/user.slice/session-1.scope\n"), "/user.slice/session-1.scope");
  EXPECT_EQ(AccountedCgroup("9:name=systemd:/s\n4:cpu,memory:/docker/a:b\n0::/\n"), "/docker/a:b");
  EXPECT_EQ(AccountedCgroup("4:pids:/p\n0::/unified\n"), "/unified");
  EXPECT_EQ(AccountedCgroup("4:pids:/p\n"), "");
  EXPECT_EQ(AccountedCgroup("malformed\n"), "");
  EXPECT_EQ(AccountedCgroup(""), "");
}

TEST(PeerIdentity, AJobsCgroupCountsInEveryController) {
  const std::string slurm = "/slurm/uid_1000/job_17/step_0";
  EXPECT_EQ(AccountedCgroup("9:memory:/system.slice/slurmd.service\n6:freezer:" + slurm + "\n0::/\n"), slurm);
  EXPECT_EQ(AccountedCgroup("6:freezer:" + slurm + "\n9:cpuset:/a/job_18\n4:memory:/\n"), slurm);
  EXPECT_EQ(AccountedCgroup("6:freezer:" + slurm + "\n9:memory:" + slurm + "/task_0\n"), slurm + "/task_0");
  EXPECT_EQ(AccountedCgroup("5:devices:/kubepods/podabc/1\n4:memory:/m\n"), "/kubepods/podabc/1");
  EXPECT_EQ(AccountedCgroup("6:freezer:/slurm/job_x\n4:memory:/m\n"), "/m");
  EXPECT_EQ(AccountedCgroup("1:name=systemd:/user/job_99\n4:memory:/m\n"), "/m");
  EXPECT_EQ(AccountedCgroup("0::/user/job_99\n4:memory:/m\n"), "/m");
}

TEST(PeerIdentity, ACgroupsNameIsAText) {
  EXPECT_EQ(AccountedCgroup("0::/a\x1b[2J/caf\xe9/\xc3\xa9\n"), "/a [2J/caf?/\xc3\xa9");
}

}  // namespace
}  // namespace tandem::daemon
