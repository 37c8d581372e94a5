// A forked child cannot reach its parent's session by the library, and each call returns that.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "client/tests/fake_daemon_test.h"
#include "client/tests/slow_device.h"

namespace tandem::client {
namespace {

// Runs `child` in a forked child; true if it returns true there within a minute.
bool InChild(const std::function<bool()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(60);
    ::_exit(child() ? 0 : 1);
  }
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && status == 0;
}

class ForkTest : public HostClientTest {};

TEST_F(ForkTest, AForkedChildHasNoHandlesAndTheParentIsUnharmed) {
  EXPECT_TRUE(InChild([&] {
    const Status launch = plan_->Launch(stream_.get(), {});
    bool dead = launch.code() == Code::kFailedPrecondition && launch.detail().reason == "FORKED" &&
                client_->Check().code() == Code::kFailedPrecondition &&
                group_->Leave(kLong).code() == Code::kFailedPrecondition &&
                ::fcntl(daemon_->lease.get(), F_GETFD) < 0;
    Drop();
    return dead && daemon_->destroyed == 0 && daemon_->released_plans.empty();
  }));
  EXPECT_GE(::fcntl(daemon_->lease.get(), F_GETFD), 0);
  ASSERT_TRUE(plan_->Launch(stream_.get(), {}).ok());
  Finish(Engine(), Arrive(Engine()));
  EXPECT_TRUE(plan_->Wait(kLong).ok());
}

TEST_F(ForkTest, NeitherAChildNorItsOwnCanConnectOnceTheirParentHas) {
  const auto refused = [] {
    auto another = std::make_shared<FakeDaemon>();
    const Status status = ConnectThrough(std::make_unique<FakeControl>(another), {}).status();
    return status.code() == Code::kFailedPrecondition && status.detail().reason == "FORKED" &&
           !another->callbacks.on_lost;
  };
  EXPECT_TRUE(InChild([&] { return refused() && InChild(refused); }));
  EXPECT_FALSE(refused()) << "the parent goes on";
}

// Locks of the parent's other threads are never given back in the child.
TEST_F(ForkTest, AChildDropsMemoryThoughItsRegistrationsWereBeingLookedAt) {
  auto device = std::make_shared<SlowDevice>();
  ConnectAnew(device);
  std::shared_ptr<Memory> own = client_->AllocateRegistered(4096, "GPU-0").value();
  std::shared_ptr<Memory> tensor = group_->Allocate({16}, DType::kF32).value();
  std::byte users[64];
  std::shared_ptr<Memory> foreign = client_->RegisterCuda(users, sizeof(users)).value();
  device->slow = true;
  std::thread looker([&] { EXPECT_TRUE(client_->RegisterCuda(users, sizeof(users)).ok()); });
  device->looking.wait(false);
  EXPECT_TRUE(InChild([&] {
    own.reset();
    tensor.reset();
    foreign.reset();
    Drop();
    return true;
  }));
  device->slow = false;
  device->slow.notify_all();
  looker.join();
}

}  // namespace
}  // namespace tandem::client
