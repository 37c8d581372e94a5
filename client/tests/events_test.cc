// Event callbacks: what they may do to the client that calls them.
#include <gtest/gtest.h>

#include <thread>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class EventsTest : public FakeDaemonTest {
 protected:
  void SetUp() override {
    MakeDaemon("host");
    Connect();
  }
};

TEST_F(EventsTest, ACallbackMayDropTheLastHandle) {
  const std::shared_ptr<FakeDaemon> daemon = daemon_;
  client_->OnEvent([this](const ClientEvent&) {
    plan_.reset();
    group_.reset();
    client_.reset();
  });
  std::thread teller([daemon] { daemon->TellLoss("the daemon is gone"); });
  const std::thread::id callbacks = teller.get_id();
  teller.join();
  EXPECT_EQ(client_, nullptr);
  const auto deadline = Clock::now() + kLong;
  while (daemon->destroyed == 0 && Clock::now() < deadline) std::this_thread::yield();
  ASSERT_EQ(daemon->destroyed, 1) << "the session lives on";
  EXPECT_NE(daemon->shut_down_by.load(), callbacks) << "a thread that would join itself";
}

TEST_F(EventsTest, ACallbackMayPutAnotherInItsPlace) {
  int first = 0, second = 0;
  auto alive = std::make_shared<int>(0);
  client_->OnEvent([&, kept = alive](const ClientEvent&) {
    client_->OnEvent([&](const ClientEvent&) {
      ++second;
      client_->OnEvent(nullptr);
    });
    ++first;
    EXPECT_GT(kept.use_count(), 1) << "the callback that runs has been destroyed";
  });
  for (uint64_t generation = 2; generation < 5; ++generation) TellRestart(generation);
  EXPECT_EQ(first, 1);
  EXPECT_EQ(second, 1);
  EXPECT_EQ(alive.use_count(), 1);
}

}  // namespace
}  // namespace tandem::client
