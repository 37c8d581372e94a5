// File: fake_daemon_test.h
//
// The fixture of tests of the library without a daemon: a client that is connected through a fake gRPC
// plugin, a group of two, and an empty plan. The test plays the engine's part on the channels' other ends.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "client/lib/handles.h"
#include "client/tests/fake_control.h"
#include "tandem/host_stream.h"

namespace tandem::client {

using Clock = std::chrono::steady_clock;
inline constexpr Milliseconds kLong(60000);

class FakeDaemonTest : public ::testing::Test {
 protected:
  // `gpu_uuid`: of the one GPU that the fake has; empty: its own default.
  void MakeDaemon(const std::string& backend, const std::string& gpu_uuid = "") {
    daemon_ = std::make_shared<FakeDaemon>();
    daemon_->lease = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    daemon_->backend = backend;
    if (!gpu_uuid.empty()) daemon_->gpu_uuid = gpu_uuid;
  }
  // `device`: the client's; null: as the library chooses it.
  void Connect(std::shared_ptr<ClientDevice> device = nullptr) {
    client_ = ConnectThrough(std::make_unique<FakeControl>(daemon_), {}, std::move(device)).value();
    JoinOptions join;
    join.job_key = "0123456789abcdef";
    join.name = "tp";
    join.world_size = 2;
    group_ = client_->JoinGroup(join).value();
    plan_ = group_->Prepare("empty", OpRequest{.op = Op::kEmpty, .operands = {}, .transfers = {}}).value();
  }
  // Lets all handles go.
  void Drop() {
    plan_.reset();
    group_.reset();
    client_.reset();
  }
  // Frees streams that wait: a failed test must not leave one waiting on words that nobody writes.
  void Lose() { daemon_->TellLoss("the test ends"); }

  // The engine's end of channel `index`, once it is open.
  ChannelConsumer* Engine(size_t index = 0) {
    auto deadline = Clock::now() + kLong;
    while (daemon_->Engine(index) == nullptr && Clock::now() < deadline) std::this_thread::yield();
    return daemon_->Engine(index);
  }
  // Takes the next entry and waits until the stream has reached it.
  LaunchEntry Arrive(ChannelConsumer* engine) {
    LaunchEntry entry;
    auto deadline = Clock::now() + kLong;
    while (!engine->Poll(&entry)) {
      if (Clock::now() > deadline) {
        ADD_FAILURE() << "no entry came";
        return entry;
      }
      std::this_thread::yield();
    }
    if (entry.kind == EntryKind::kLaunch) AwaitArrival(engine, entry);
    return entry;
  }
  // Waits until the stream has reached an entry that was taken.
  void AwaitArrival(ChannelConsumer* engine, const LaunchEntry& entry) {
    const auto deadline = Clock::now() + kLong;
    while (engine->Request() < entry.sequence && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_GE(engine->Request(), entry.sequence) << "the stream did not arrive";
  }
  void Finish(ChannelConsumer* engine, const LaunchEntry& entry, Code code = Code::kOk, const char* text = "",
              uint64_t generation = 1) {
    if (code == Code::kOk) {
      engine->PublishOk(entry.sequence, generation);
    } else {
      engine->PublishStatus(entry.sequence, {code, text, {.reason = "RANK_LATE", .who = {}, .field = {}}},
                            generation, 1);
    }
    engine->Complete(entry.sequence);
  }

  // The group's engines are back after a restart, as the daemon announces it.
  void TellRestart(uint64_t generation) {
    ControlEvent event;
    event.event.kind = ClientEvent::Kind::kEngineRestarted;
    event.event.group_id = group_->id();
    event.generation = generation;
    daemon_->Tell(event);
  }

  std::shared_ptr<FakeDaemon> daemon_;
  std::shared_ptr<Client> client_;
  std::shared_ptr<Group> group_;
  std::shared_ptr<Plan> plan_;
};

// The same on the host backend, with a stream.
class HostClientTest : public FakeDaemonTest {
 protected:
  void SetUp() override {
    MakeDaemon("host");
    Connect();
    stream_ = HostStream::Create().value();
  }
  void TearDown() override {
    Lose();
    (void)stream_->Synchronize(kLong);
  }

  // Another client of another daemon instead, with `device`.
  void ConnectAnew(std::shared_ptr<ClientDevice> device) {
    MakeDaemon("host");
    Drop();
    Connect(std::move(device));
  }

  std::unique_ptr<HostStream> stream_;
};

}  // namespace tandem::client
