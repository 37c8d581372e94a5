// File: engine_node.h
//
// A node of engines inside one process, for tests: plays tandemd (commands over socketpairs) and clients
// (channels whose words the test writes as streams would).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/unique_fd.h"
#include "engine/engine.h"
#include "ipc/arrival_table.h"
#include "ipc/channel.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"
#include "program/program.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {

// A client stream's channel to one engine.
struct TestChannel {
  uint64_t id = 0;
  ChannelMemory memory;
  ChannelProducer producer;
  // Pushes and reaches the launch: what Launch and a running stream do. The sequence, 0 if the push failed.
  uint64_t Launch(LaunchEntry entry);
  // Launch in its two halves: the client's push, and its stream that comes to it.
  uint64_t Push(LaunchEntry entry);
  void Reach(uint64_t sequence) { producer.request()->store(sequence, std::memory_order_release); }
  // Waits for done >= sequence; false after a minute.
  bool Wait(uint64_t sequence) const;
  LaunchOutcome LaunchAndWait(const LaunchEntry& entry);
};

struct TestGroup {
  uint64_t id = 0;
  std::vector<int> gpus;
  uint64_t generation = 1;
  std::vector<uint64_t> segments;  // by rank: signals, scratch, workspace, data
  uint64_t registration = 0;       // symmetric: kDataBytes of every rank
  uint32_t next_plan_index = 0;
};

class EngineNode {
 public:
  static constexpr uint64_t kDataBytes = 1 << 20;
  static constexpr uint64_t kWorkspaceBytes = 1 << 20;
  // In each rank's segment: the symmetric data, and room for a signal pad of the clients' own.
  static constexpr uint64_t kSegmentBytes = 8 << 20;
  static constexpr uint64_t kDataOffset = 4 << 20;
  static constexpr uint64_t kPadOffset = 5 << 20;
  static constexpr uint64_t kPadBytes = 4096;

  // Makes an engine's backend of the host backend that it would have.
  using BackendWrapper = std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)>;

  explicit EngineNode(int gpus, int hardware_queues = 8, const BackendWrapper& wrap = {},
                      const TurnLimits& turn_limits = {});
  ~EngineNode();

  int gpus() const { return static_cast<int>(engines_.size()); }
  // Sends a command and reads messages until its Ack; others are kept in messages(gpu).
  Status Call(int gpu, v1::Command command, const std::vector<int>& fds = {});
  // The same without its Ack, whose id is the result: Await finds it.
  Result<uint64_t> Send(int gpu, v1::Command command, const std::vector<int>& fds = {});
  // Waits until the engine's receiver has all commands that have been sent: it may not have begun with any.
  // False after a minute.
  bool AwaitReceived(int gpu);
  // Reads until a message satisfies `wanted` (looking at kept ones first); false after a minute.
  bool Await(int gpu, const std::function<bool(const v1::Message&)>& wanted, v1::Message* found = nullptr);
  // Asks for the queue until it has `items`; false after a minute.
  bool AwaitQueued(int gpu, int items);
  // Asks for the queue until it is `wanted`; false after a minute.
  bool AwaitQueue(int gpu, const std::function<bool(const v1::Queue&)>& wanted);

  // The engine of `rank` gets no groups and plans from now on: the test plays it by their arrival tables.
  void Impersonate(int rank) { impersonated_ = rank; }
  // Groups that are added from now on stall until a renewal once a rank misses a launch, and their ranks make
  // all calls in one order.
  void SetOrdered() { ordered_ = true; }
  ArrivalTable& Arrivals(const TestGroup& group) { return tables_.at(group.id); }
  // A group over `gpus` (rank order) with signals, scratch, workspace, and a symmetric registration.
  TestGroup AddGroup(uint64_t id, const std::vector<int>& gpus, uint64_t deadline_ms = 10000,
                     uint64_t generation = 1);
  // One program a rank; slots as tandemd sends them. Returns the plan's id.
  uint64_t AddPlan(TestGroup* group, const std::vector<plan::RankProgram>& programs,
                   const std::vector<v1::PlanSlot>& slots, uint64_t next_count = 0,
                   bool latency_class = false);
  uint64_t AddEmptyPlan(TestGroup* group, bool latency_class = false);
  // Every rank signals every other and waits for all: the smallest program that runs on lanes.
  uint64_t AddBarrierPlan(TestGroup* group);
  Status Break(int gpu, const TestGroup& group, Code code, const std::string& message, uint32_t rank,
               int64_t pid = 0);
  std::unique_ptr<TestChannel> OpenChannel(int gpu, uint64_t session = 1, uint32_t entries = 64);
  // Rank's symmetric data, mapped here.
  std::byte* Data(const TestGroup& group, int rank);
  // The signal word `index` of `writer` on `rank`: storing a launch number there is what the writer's signal
  // does.
  std::atomic<uint64_t>* SignalWord(const TestGroup& group, int rank, int writer, int index);
  // Another descriptor of rank's segment.
  UniqueFd SegmentFd(const TestGroup& group, int rank) const;
  StatsArea& stats(int gpu) { return engines_[static_cast<size_t>(gpu)]->stats; }
  OrderLog& log() { return log_; }
  // Closes tandemd's end of the socket and waits for the engine's end.
  void EndEngine(int gpu);
  // The engine will end by a failure; else that fails the test.
  void ExpectFailure(int gpu) { engines_[static_cast<size_t>(gpu)]->fails = true; }

 private:
  struct EngineThread {
    UniqueFd socket;
    UniqueFd stats_fd;
    StatsArea stats;
    std::unique_ptr<Engine> engine;
    std::atomic<bool> fails{false};
    std::thread thread;
    std::vector<v1::Message> kept;
    std::vector<UniqueFd> allocated;
  };
  bool Receive(int gpu, std::chrono::steady_clock::time_point deadline, v1::Message* message,
               std::vector<UniqueFd>* fds);

  UniqueFd log_fd_;
  OrderLog log_;
  std::vector<std::unique_ptr<EngineThread>> engines_;
  struct Segment {
    UniqueFd fd;
    Mapping mapping;
  };
  std::map<uint64_t, Segment> segments_;     // by id
  std::map<uint64_t, ArrivalTable> tables_;  // by group
  int impersonated_ = -1;
  bool ordered_ = false;
  uint64_t next_id_ = 1;
};

// An entry for `plan` with `bindings` at `generation`.
LaunchEntry Entry(uint64_t plan, const std::vector<LaunchBinding>& bindings = {}, uint64_t generation = 1);

}  // namespace tandem::engine
