#include "engine/tests/engine_node.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <thread>

#include "common/fd_socket.h"
#include "kernels/host/host_backend.h"
#include "program/program_codec.h"

namespace tandem::engine {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kWaitBudget{60};
constexpr uint64_t kAbortOffset = 64 << 10;
constexpr uint64_t kScratchOffset = 1 << 20;
constexpr uint64_t kScratchBytes = 1 << 20;
constexpr uint64_t kHalf0Offset = 2 << 20;
constexpr uint64_t kHalf1Offset = 3 << 20;

Result<std::unique_ptr<Backend>> MakeBackend(const BackendRequest& request) {
  HostBackendOptions options;
  options.gpu = request.gpu;
  options.hardware_queues = request.hardware_queues;
  options.memory_bytes = request.memory_bytes;
  return MakeHostBackend(options);
}

}  // namespace

LaunchEntry Entry(uint64_t plan, const std::vector<LaunchBinding>& bindings, uint64_t generation) {
  LaunchEntry entry;
  entry.plan_id = plan;
  entry.group_generation = generation;
  entry.binding_count = static_cast<uint32_t>(bindings.size());
  std::copy(bindings.begin(), bindings.end(), entry.bindings);
  return entry;
}

uint64_t TestChannel::Push(LaunchEntry entry) { return producer.TryPush(&entry).ok() ? entry.sequence : 0; }

uint64_t TestChannel::Launch(LaunchEntry entry) {
  uint64_t sequence = Push(entry);
  if (sequence != 0) Reach(sequence);
  return sequence;
}

bool TestChannel::Wait(uint64_t sequence) const {
  auto deadline = Clock::now() + kWaitBudget;
  while (producer.Done() < sequence) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

LaunchOutcome TestChannel::LaunchAndWait(const LaunchEntry& entry) {
  uint64_t sequence = Launch(entry);
  if (sequence == 0 || !Wait(sequence))
    return {.status = Internal("no end in time"), .who_rank = -1, .generation = 0};
  return producer.Outcome(sequence);
}

EngineNode::EngineNode(int gpus, int hardware_queues, const BackendWrapper& wrap,
                       const TurnLimits& turn_limits) {
  const BackendFactory factory = [wrap](const BackendRequest& request) -> Result<std::unique_ptr<Backend>> {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, MakeBackend(request));
    return wrap ? wrap(std::move(backend)) : std::move(backend);
  };
  log_fd_ = std::move(*OrderLog::Create());
  log_ = std::move(*OrderLog::Map(log_fd_.get()));
  for (int gpu = 0; gpu < gpus; ++gpu) {
    auto engine = std::make_unique<EngineThread>();
    auto pair = SeqpacketPair();
    engine->socket = std::move(pair->first);
    engine->stats_fd = std::move(*CreateStatsArea(64, 256));
    engine->stats = std::move(*StatsArea::Map(engine->stats_fd.get()));
    engine->engine = std::make_unique<Engine>(std::move(pair->second), factory, turn_limits);
    engine->thread = std::thread([e = engine.get()] {
      const Status end = e->engine->Run();
      EXPECT_NE(end.ok(), e->fails.load()) << end.ToString();
    });
    engines_.push_back(std::move(engine));
    v1::Command command;
    command.mutable_start()->set_gpu(static_cast<uint32_t>(gpu));
    command.mutable_start()->set_generation(1);
    command.mutable_start()->set_backend("host");
    command.mutable_start()->set_hardware_queues(static_cast<uint32_t>(hardware_queues));
    command.mutable_start()->set_memory_bytes(uint64_t{1} << 30);
    EXPECT_TRUE(Call(gpu, command, {log_fd_.get(), engines_.back()->stats_fd.get()}).ok());
  }
}

EngineNode::~EngineNode() {
  for (int gpu = 0; gpu < gpus(); ++gpu) EndEngine(gpu);
}

void EngineNode::EndEngine(int gpu) {
  EngineThread& engine = *engines_[static_cast<size_t>(gpu)];
  engine.socket.Reset();
  if (engine.thread.joinable()) engine.thread.join();
  engine.engine.reset();
}

bool EngineNode::Receive(int gpu, Clock::time_point deadline, v1::Message* message,
                         std::vector<UniqueFd>* fds) {
  EngineThread& engine = *engines_[static_cast<size_t>(gpu)];
  auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  pollfd ready{engine.socket.get(), POLLIN, 0};
  if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left)) != 1) return false;
  Result<FdMessage> received = ReceiveMessage(engine.socket.get());
  if (!received.ok() || !message->ParseFromString(received->body)) return false;
  *fds = std::move(received->fds);
  return true;
}

Result<uint64_t> EngineNode::Send(int gpu, v1::Command command, const std::vector<int>& fds) {
  const uint64_t id = next_id_++;
  command.set_id(id);
  TANDEM_RETURN_IF_ERROR(
      SendMessage(engines_[static_cast<size_t>(gpu)]->socket.get(), command.SerializeAsString(), fds));
  return id;
}

bool EngineNode::AwaitReceived(int gpu) {
  // The receiver takes one command after the other: once the last one has left the socket, those before it
  // are the engine's.
  v1::Command last;
  last.mutable_ping();
  if (!Send(gpu, last).ok()) return false;
  const auto deadline = Clock::now() + kWaitBudget;
  int unread = 1;
  while (unread != 0) {
    if (Clock::now() > deadline ||
        ::ioctl(engines_[static_cast<size_t>(gpu)]->socket.get(), SIOCOUTQ, &unread) != 0)
      return false;
    std::this_thread::yield();
  }
  return true;
}

Status EngineNode::Call(int gpu, v1::Command command, const std::vector<int>& fds) {
  EngineThread& engine = *engines_[static_cast<size_t>(gpu)];
  TANDEM_ASSIGN_OR_RETURN(const uint64_t id, Send(gpu, std::move(command), fds));
  auto deadline = Clock::now() + kWaitBudget;
  while (true) {
    v1::Message message;
    std::vector<UniqueFd> received;
    if (!Receive(gpu, deadline, &message, &received)) return DeadlineExceeded("no Ack");
    if (message.has_allocated()) engine.allocated = std::move(received);
    if (!message.has_ack() || message.ack().id() != id) {
      engine.kept.push_back(std::move(message));
    } else {
      if (message.ack().code() == 0) return Status::Ok();
      return Status(static_cast<Code>(message.ack().code()), message.ack().message());
    }
  }
}

bool EngineNode::Await(int gpu, const std::function<bool(const v1::Message&)>& wanted, v1::Message* found) {
  EngineThread& engine = *engines_[static_cast<size_t>(gpu)];
  auto deadline = Clock::now() + kWaitBudget;
  while (true) {
    for (const v1::Message& message : engine.kept) {
      if (!wanted(message)) continue;
      if (found != nullptr) *found = message;
      return true;
    }
    v1::Message message;
    std::vector<UniqueFd> fds;
    if (!Receive(gpu, deadline, &message, &fds)) return false;
    engine.kept.push_back(std::move(message));
  }
}

bool EngineNode::AwaitQueued(int gpu, int items) {
  return AwaitQueue(gpu, [items](const v1::Queue& queue) { return queue.items_size() == items; });
}

bool EngineNode::AwaitQueue(int gpu, const std::function<bool(const v1::Queue&)>& wanted) {
  auto deadline = Clock::now() + kWaitBudget;
  while (Clock::now() < deadline) {
    v1::Command command;
    command.mutable_queue_snapshot();
    if (!Call(gpu, command).ok()) return false;
    auto& kept = engines_[static_cast<size_t>(gpu)]->kept;
    bool reached = std::any_of(kept.begin(), kept.end(), [&](const v1::Message& message) {
      return message.has_queue() && wanted(message.queue());
    });
    std::erase_if(kept, [](const v1::Message& message) { return message.has_queue(); });
    if (reached) return true;
  }
  return false;
}

TestGroup EngineNode::AddGroup(uint64_t id, const std::vector<int>& gpus, uint64_t deadline_ms,
                               uint64_t generation) {
  TestGroup group;
  group.id = id;
  group.gpus = gpus;
  group.generation = generation;
  for (int owner : gpus) {
    uint64_t segment = next_id_++;
    group.segments.push_back(segment);
    v1::Command allocate;
    allocate.mutable_allocate_segment()->set_segment_id(segment);
    allocate.mutable_allocate_segment()->set_bytes(kSegmentBytes);
    EXPECT_TRUE(Call(owner, allocate).ok());
    UniqueFd fd = std::move(engines_[static_cast<size_t>(owner)]->allocated.at(0));
    for (int gpu : gpus) {
      if (gpu == owner) continue;
      v1::Command add;
      add.mutable_add_segment()->set_segment_id(segment);
      add.mutable_add_segment()->set_bytes(kSegmentBytes);
      EXPECT_TRUE(Call(gpu, add, {fd.get()}).ok());
    }
    Mapping mapping = std::move(*Mapping::Map(fd.get(), 0, kSegmentBytes, true));
    segments_[segment] = {std::move(fd), std::move(mapping)};
  }
  UniqueFd table = std::move(*CreateArrivalTable(static_cast<int>(gpus.size()), 64));
  tables_[id] = std::move(*ArrivalTable::Map(table.get(), static_cast<int>(gpus.size())));
  group.registration = next_id_++;
  for (size_t rank = 0; rank < gpus.size(); ++rank) {
    if (static_cast<int>(rank) == impersonated_) continue;
    v1::Command command;
    v1::AddGroup* add = command.mutable_add_group();
    add->set_group_id(id);
    add->set_rank(static_cast<uint32_t>(rank));
    add->set_world_size(static_cast<uint32_t>(gpus.size()));
    add->set_deadline_ms(deadline_ms);
    add->set_generation(generation);
    add->set_stalls(ordered_);
    add->set_ordered(ordered_);
    add->set_scratch_bytes(kScratchBytes);
    add->set_abort_segment(group.segments[rank]);
    add->set_abort_offset(kAbortOffset);
    v1::Command workspace;
    v1::SetWorkspace* set = workspace.mutable_set_workspace();
    set->set_group_id(id);
    set->set_half_bytes(kWorkspaceBytes);
    v1::Command registration;
    v1::AddRegistration* memory = registration.mutable_add_registration();
    memory->set_registration_id(group.registration);
    memory->set_group_id(id);
    memory->set_owner_session(1);
    memory->set_bytes(kDataBytes);
    for (size_t peer = 0; peer < gpus.size(); ++peer) {
      add->add_gpus(static_cast<uint32_t>(gpus[peer]));
      add->add_signal_segments(group.segments[peer]);
      add->add_signal_offsets(0);
      add->add_scratch_segments(group.segments[peer]);
      add->add_scratch_offsets(kScratchOffset);
      set->add_half0_segments(group.segments[peer]);
      set->add_half0_offsets(kHalf0Offset);
      set->add_half1_segments(group.segments[peer]);
      set->add_half1_offsets(kHalf1Offset);
      memory->add_segments(group.segments[peer]);
      memory->add_offsets(kDataOffset);
    }
    EXPECT_TRUE(Call(gpus[rank], command, {table.get()}).ok());
    EXPECT_TRUE(Call(gpus[rank], workspace).ok());
    EXPECT_TRUE(Call(gpus[rank], registration).ok());
  }
  return group;
}

uint64_t EngineNode::AddPlan(TestGroup* group, const std::vector<plan::RankProgram>& programs,
                             const std::vector<v1::PlanSlot>& slots, uint64_t next_count,
                             bool latency_class) {
  uint64_t id = next_id_++;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    if (static_cast<int>(rank) == impersonated_) continue;
    v1::Command command;
    v1::AddPlan* add = command.mutable_add_plan();
    add->set_plan_id(id);
    add->set_group_id(group->id);
    add->set_plan_index(group->next_plan_index);
    add->set_next_count(next_count);
    add->set_latency_class(latency_class);
    add->set_name("call " + std::to_string(id));
    for (const v1::PlanSlot& slot : slots) *add->add_slots() = slot;
    plan::EncodeProgram(programs[rank], add->mutable_program());
    Status added = Call(group->gpus[rank], command);
    EXPECT_TRUE(added.ok()) << added.ToString();
  }
  ++group->next_plan_index;
  return id;
}

uint64_t EngineNode::AddEmptyPlan(TestGroup* group, bool latency_class) {
  std::vector<plan::RankProgram> programs(group->gpus.size());
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    programs[rank].rank = static_cast<int>(rank);
    programs[rank].world_size = static_cast<int>(programs.size());
  }
  return AddPlan(group, programs, {}, 0, latency_class);
}

uint64_t EngineNode::AddBarrierPlan(TestGroup* group) {
  int world = static_cast<int>(group->gpus.size());
  std::vector<plan::RankProgram> programs(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    plan::RankProgram& program = programs[static_cast<size_t>(rank)];
    program.rank = rank;
    program.world_size = world;
    program.signal_count = 1;
    auto add = [&](auto work) {
      plan::Step step;
      step.work = work;
      program.steps.push_back(std::move(step));
    };
    for (int peer = 0; peer < world; ++peer) {
      if (peer != rank) add(plan::SignalStep{static_cast<uint8_t>(peer), 0});
    }
    for (int peer = 0; peer < world; ++peer) {
      if (peer != rank) add(plan::WaitStep{static_cast<uint8_t>(peer), 0});
    }
  }
  return AddPlan(group, programs, {});
}

Status EngineNode::Break(int gpu, const TestGroup& group, Code code, const std::string& message,
                         uint32_t rank, int64_t pid) {
  v1::Command command;
  v1::BreakGroup& end = *command.mutable_break_group();
  end.set_group_id(group.id);
  end.set_code(static_cast<int>(code));
  end.set_message(message);
  end.set_who("rank " + std::to_string(rank));
  end.add_ranks(rank);
  end.set_pid(pid);
  return Call(gpu, command);
}

std::unique_ptr<TestChannel> EngineNode::OpenChannel(int gpu, uint64_t session, uint32_t entries) {
  auto channel = std::make_unique<TestChannel>();
  channel->id = next_id_++;
  channel->memory = std::move(*CreateChannelMemory(entries));
  int ring = channel->memory.ring.get();
  int words = channel->memory.words.get();
  channel->producer = std::move(*ChannelProducer::Map(ring, words, entries));
  v1::Command command;
  command.mutable_open_channel()->set_channel_id(channel->id);
  command.mutable_open_channel()->set_session_id(session);
  command.mutable_open_channel()->set_entries(entries);
  Status opened = Call(gpu, command, {ring, words});
  EXPECT_TRUE(opened.ok()) << opened.ToString();
  return channel;
}

std::byte* EngineNode::Data(const TestGroup& group, int rank) {
  return segments_.at(group.segments[static_cast<size_t>(rank)]).mapping.data() + kDataOffset;
}

std::atomic<uint64_t>* EngineNode::SignalWord(const TestGroup& group, int rank, int writer, int index) {
  std::byte* area = segments_.at(group.segments[static_cast<size_t>(rank)]).mapping.data();
  return reinterpret_cast<std::atomic<uint64_t>*>(area) + writer * plan::kSignalsPerWriter + index;
}

UniqueFd EngineNode::SegmentFd(const TestGroup& group, int rank) const {
  int fd = segments_.at(group.segments[static_cast<size_t>(rank)]).fd.get();
  return UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
}

}  // namespace tandem::engine
