// The program tandem-engine as a real process: killed, and ended by its daemon's end.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

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
  // The wait status once the process has ended; -1 after ten seconds.
  int AwaitExit() {
    auto deadline = Clock::now() + std::chrono::seconds(10);
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

TEST(EngineProcessTest, GarbageFromTheSocketEndsIt) {
  EngineProcess engine;
  ASSERT_TRUE(engine.Start().ok());
  ASSERT_TRUE(engine.Send(std::string(100, '\xff')).ok());
  EXPECT_TRUE(WIFEXITED(engine.AwaitExit()));
}

}  // namespace
}  // namespace tandem::engine
