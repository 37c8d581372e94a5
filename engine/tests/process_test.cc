// The program tandem-engine as a real process: killed, and ended by its daemon's end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/fd_socket.h"
#include "ipc/channel.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;

// A started engine process and tandemd's side of it.
class EngineProcess {
 public:
  EngineProcess() {
    auto pair = SeqpacketPair();
    socket_ = std::move(pair->first);
    UniqueFd child_end = std::move(pair->second);
    log_fd_ = std::move(*OrderLog::Create());
    stats_fd_ = std::move(*CreateStatsArea(8, 8));
    int inherited = ::dup(child_end.get());  // without close-on-exec
    std::string fd_text = std::to_string(inherited);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl(TANDEM_ENGINE_PATH, "tandem-engine", "--fd", fd_text.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(inherited);
  }
  ~EngineProcess() {
    socket_.Reset();
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  Status Start() {
    v1::Command command;
    command.mutable_start()->set_backend("host");
    command.mutable_start()->set_generation(3);
    command.mutable_start()->set_memory_bytes(uint64_t{64} << 20);
    return Call(command, {log_fd_.get(), stats_fd_.get()});
  }
  // It outlives its daemon by `grace_ms`, and waits for the next one at `listener`.
  Status StartWithGrace(uint64_t grace_ms, const UniqueFd& listener) {
    v1::Command command;
    command.mutable_start()->set_backend("host");
    command.mutable_start()->set_generation(3);
    command.mutable_start()->set_memory_bytes(uint64_t{64} << 20);
    command.mutable_start()->set_restart_grace_ms(grace_ms);
    UniqueFd journal(::memfd_create("journal", MFD_CLOEXEC));
    return Call(command, {log_fd_.get(), stats_fd_.get(), journal.get(), listener.get()});
  }
  // The next daemon's end of a connection; the messages up to the inventory's end, with their descriptors.
  std::vector<std::pair<v1::Message, size_t>> Connect(const std::string& path) {
    std::vector<std::pair<v1::Message, size_t>> messages;
    Result<UniqueFd> socket = ConnectSeqpacket(path);
    EXPECT_TRUE(socket.ok()) << socket.status().ToString();
    if (!socket.ok()) return messages;
    socket_ = *std::move(socket);
    last_id_ = 0;
    while (messages.empty() || !messages.back().first.has_inventory_end()) {
      Result<FdMessage> received = ReceiveMessage(socket_.get());
      EXPECT_TRUE(received.ok()) << received.status().ToString();
      if (!received.ok()) break;
      messages.emplace_back(v1::Message(), received->fds.size());
      EXPECT_TRUE(messages.back().first.ParseFromString(received->body));
    }
    return messages;
  }
  Status Call(v1::Command command, const std::vector<int>& fds = {}) {
    command.set_id(++last_id_);
    TANDEM_RETURN_IF_ERROR(SendMessage(socket_.get(), command.SerializeAsString(), fds));
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(FdMessage received, ReceiveMessage(socket_.get()));
      v1::Message message;
      if (!message.ParseFromString(received.body)) return Internal("malformed message");
      if (!message.has_ack() || message.ack().id() != last_id_) continue;
      return message.ack().code() == 0
                 ? Status::Ok()
                 : Status(static_cast<Code>(message.ack().code()), message.ack().message());
    }
  }
  // `memory`: of eight entries.
  Status OpenChannel(const ChannelMemory& memory) {
    v1::Command open;
    open.mutable_open_channel()->set_channel_id(1);
    open.mutable_open_channel()->set_entries(8);
    return Call(open, {memory.ring.get(), memory.words.get()});
  }
  Status Send(const std::string& body) { return SendMessage(socket_.get(), body); }
  void CloseSocket() { socket_.Reset(); }
  void Signal(int number) { ::kill(pid_, number); }
  // The wait status once the process has ended; -1 after a minute.
  int AwaitExit() {
    auto deadline = Clock::now() + std::chrono::minutes(1);
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > deadline) return -1;
      std::this_thread::yield();
    }
    pid_ = -1;
    return status;
  }

 private:
  UniqueFd socket_, log_fd_, stats_fd_;
  pid_t pid_ = -1;
  uint64_t last_id_ = 0;
};

TEST(EngineProcessTest, EndsWithItsDaemonAndNotBySigterm) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  engine.Signal(SIGTERM);
  v1::Command ping;
  ping.mutable_ping();
  EXPECT_TRUE(engine.Call(ping).ok());
  engine.CloseSocket();
  int status = engine.AwaitExit();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(EngineProcessTest, StopEndsItWithZero) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  v1::Command stop;
  stop.mutable_stop();
  EXPECT_TRUE(engine.Call(stop).ok());
  int status = engine.AwaitExit();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(EngineProcessTest, AnUnknownBackendAndCommandsBeforeStartAreRefused) {
  EngineProcess engine;
  v1::Command remove;
  remove.mutable_remove_group()->set_group_id(1);
  EXPECT_EQ(engine.Call(remove).code(), Code::kFailedPrecondition);
  v1::Command start;
  start.mutable_start()->set_backend("abacus");
  EXPECT_EQ(engine.Call(start).code(), Code::kInvalidArgument);  // no descriptors
  EXPECT_TRUE(engine.Start().ok());
  EXPECT_EQ(engine.Start().code(), Code::kFailedPrecondition);
}

TEST(EngineProcessTest, AfterAKillWaitingStreamsAreReleasedFromOutside) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  ChannelMemory memory = std::move(*CreateChannelMemory(8));
  ChannelProducer producer = std::move(*ChannelProducer::Map(memory.ring.get(), memory.words.get(), 8));
  ASSERT_TRUE(engine.OpenChannel(memory).ok());
  EXPECT_EQ(producer.words().EngineGeneration(), 3u);
  engine.Signal(SIGKILL);
  int status = engine.AwaitExit();
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  LaunchEntry entry;
  ASSERT_TRUE(producer.TryPush(&entry).ok());
  producer.request()->store(entry.sequence);
  EXPECT_EQ(producer.Done(), 0u);
  ChannelWords words = std::move(*ChannelWords::Map(memory.words.get(), 8));
  words.Release(Aborted("the engine of GPU 0 ended (signal 9)"));
  EXPECT_GE(producer.Done(), entry.sequence);
  EXPECT_EQ(producer.Outcome(entry.sequence).status, Aborted("the engine of GPU 0 ended (signal 9)"));
}

// Its generation is 3: a client that has not heard of the restart may launch before the group has been
// restored.
TEST(EngineProcessTest, AnEngineThatReplacesAnotherAbortsLaunchesOfPlansThatItDoesNotKnowYet) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  ChannelMemory memory = std::move(*CreateChannelMemory(8));
  ChannelProducer producer = std::move(*ChannelProducer::Map(memory.ring.get(), memory.words.get(), 8));
  ASSERT_TRUE(engine.OpenChannel(memory).ok());
  LaunchEntry entry;
  entry.plan_id = 7;
  entry.group_generation = 2;
  ASSERT_TRUE(producer.TryPush(&entry).ok());
  producer.request()->store(entry.sequence);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (producer.Done() < entry.sequence && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  const LaunchOutcome outcome = producer.Outcome(entry.sequence);
  EXPECT_EQ(outcome.status.code(), Code::kAborted) << outcome.status.ToString();
  EXPECT_NE(outcome.status.message().find("plan 7"), std::string::npos) << outcome.status.ToString();
  EXPECT_EQ(outcome.generation, 2u);
}

class SuccessorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path = std::string(::testing::TempDir()) + "/engine-" + std::to_string(::getpid()) + ".sock";
    listener = std::move(*ListenSeqpacket(path, 0600));
  }
  void TearDown() override { ::unlink(path.c_str()); }
  std::string path;
  UniqueFd listener;
};

TEST_F(SuccessorTest, TheNextDaemonGetsEverythingAndCommandsIt) {
  EngineProcess engine;
  ASSERT_TRUE(engine.StartWithGrace(60000, listener).ok());
  listener.Reset();  // the engine's only
  ChannelMemory memory = std::move(*CreateChannelMemory(8));
  ChannelProducer producer = std::move(*ChannelProducer::Map(memory.ring.get(), memory.words.get(), 8));
  ASSERT_TRUE(engine.OpenChannel(memory).ok());
  v1::Command command;
  command.mutable_allocate_segment()->set_segment_id(5);
  command.mutable_allocate_segment()->set_bytes(uint64_t{2} << 20);
  ASSERT_TRUE(engine.Call(command).ok());
  command.mutable_allocate_segment()->set_segment_id(6);
  ASSERT_TRUE(engine.Call(command).ok());
  command.mutable_remove_segment()->set_segment_id(6);
  ASSERT_TRUE(engine.Call(command).ok());
  for (int daemon = 0; daemon < 3; ++daemon) {
    engine.CloseSocket();
    const auto messages = engine.Connect(path);
    ASSERT_EQ(messages.size(), 4u);
    const v1::Inventory& inventory = messages[0].first.inventory();
    EXPECT_EQ(messages[0].second, 3u);
    EXPECT_EQ(inventory.start().generation(), 3u);
    EXPECT_NE(inventory.build(), "");
    ASSERT_EQ(inventory.segments_size(), 1);
    EXPECT_EQ(inventory.segments(0), 5u);
    ASSERT_EQ(inventory.channels_size(), 1);
    EXPECT_EQ(messages[1].first.held().kind(), v1::Held::SEGMENT);
    EXPECT_EQ(messages[1].second, 1u);
    EXPECT_EQ(messages[2].first.held().kind(), v1::Held::CHANNEL);
    EXPECT_EQ(messages[2].second, 2u);
    command.mutable_ping();
    EXPECT_TRUE(engine.Call(command).ok());
    EXPECT_EQ(producer.Done(), 0u);
  }
  command.mutable_stop();
  EXPECT_TRUE(engine.Call(command).ok());
  const int status = engine.AwaitExit();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(SuccessorTest, WithoutANextDaemonItReleasesItsStreamsAndEnds) {
  EngineProcess engine;
  ASSERT_TRUE(engine.StartWithGrace(300, listener).ok());
  ChannelMemory memory = std::move(*CreateChannelMemory(8));
  ChannelProducer producer = std::move(*ChannelProducer::Map(memory.ring.get(), memory.words.get(), 8));
  ASSERT_TRUE(engine.OpenChannel(memory).ok());
  const auto begin = Clock::now();
  engine.CloseSocket();
  const int status = engine.AwaitExit();
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_GE(Clock::now() - begin, std::chrono::milliseconds(300));
  EXPECT_TRUE(producer.words().Released());
  EXPECT_EQ(producer.words().ClosedStatus().detail().reason, "ENGINE_STOPPED");
}

TEST(EngineProcessTest, GarbageFromTheSocketEndsIt) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  ASSERT_TRUE(engine.Send(std::string(100, '\xff')).ok());
  EXPECT_TRUE(WIFEXITED(engine.AwaitExit()));
}

}  // namespace
}  // namespace tandem::engine
