#include "daemon/control/base/foreign_fds.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "common/shared_memory.h"
#include "daemon/control/tests/lingering_socket.h"

namespace tandem::daemon {
namespace {

using Clock = std::chrono::steady_clock;

bool AllClosed() {
  const auto deadline = Clock::now() + std::chrono::seconds(30);
  while (ClosesUnderWay() > 0 && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return ClosesUnderWay() == 0;
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

std::vector<UniqueFd> Memfds(int count) {
  std::vector<UniqueFd> fds;
  for (int i = 0; i < count; ++i) fds.push_back(std::move(*CreateSealedMemfd("test", 4096)));
  return fds;
}

TEST(ForeignFds, AreClosedOnceNobodyHasThem) {
  std::vector<UniqueFd> fds = Memfds(3);
  const int first = fds[0].get(), second = fds[1].get(), third = fds[2].get();
  {
    ForeignFds owned(std::move(fds));
    ForeignFds moved(std::move(owned));
    const UniqueFd taken = std::move(moved[1]);
    moved = {};
    EXPECT_TRUE(AllClosed());
    EXPECT_FALSE(IsOpen(first) || IsOpen(third));
    EXPECT_TRUE(IsOpen(second));
  }
  EXPECT_FALSE(IsOpen(second));
}

TEST(ForeignFds, ASharedOneIsClosedWithItsLastHolder) {
  SharedFd shared = ShareForeign(std::move(Memfds(1)[0]));
  const int fd = shared->get();
  SharedFd second = shared;
  shared.reset();
  EXPECT_TRUE(AllClosed());
  EXPECT_TRUE(IsOpen(fd));
  second.reset();
  EXPECT_TRUE(AllClosed());
  EXPECT_FALSE(IsOpen(fd));
}

// Hundreds at once, from several threads, with one idle closer or none.
TEST(ForeignFds, ManyAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) CloseElsewhere(Memfds(4));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(AllClosed());
}

TEST(ForeignFds, ASocketThatLingersHoldsNobodyUp) {
  LingeringSocket socket(std::chrono::seconds(60));
  const auto start = Clock::now();
  std::vector<UniqueFd> fds;
  fds.push_back(std::move(socket.end));
  CloseElsewhere(std::move(fds));
  EXPECT_TRUE(AllClosed());
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20));
}

TEST(ForeignFds, SocketsAreNoMemory) {
  EXPECT_TRUE(CheckForeignMemory(Memfds(1)[0].get()).ok());
  LingeringSocket socket(std::chrono::seconds(0));
  EXPECT_EQ(CheckForeignMemory(socket.end.get()).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem::daemon
