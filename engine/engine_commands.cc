// tandemd's commands, one function each. A command that must wait for launches to end is acknowledged when
// they have.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>

#include "common/deadline.h"
#include "engine/engine.h"
#include "engine/peer_probe.h"
#include "program/program_codec.h"
#include "tandem/engine/v1/engine.pb.h"

namespace tandem::engine {
namespace {

constexpr uint64_t kDefaultDeadlineNs = std::chrono::nanoseconds(kDefaultLaunchDeadline).count();
constexpr uint64_t kNsPerMs = 1'000'000;
constexpr int kDefaultHardwareQueues = 8;
// One priority for all lanes. With lane 0, which computes, above the lane that pushes, plans lost time by
// whole products, as if signals had waited for the gaps between them. This is inferred from the times of
// whole plans, not seen in a profile.
constexpr int kLanePriority = 0;

template <typename Repeated>
std::vector<uint64_t> ToVector(const Repeated& values) {
  return {values.begin(), values.end()};
}

// True if a program's launches must be numbered among the group's: it meets peers, or uses memory that they
// share.
bool TakesLaunchNumber(const plan::RankProgram& program) {
  if (program.workspace_bytes > 0 || program.bulk_bytes > 0) return true;
  return std::any_of(program.steps.begin(), program.steps.end(), plan::MeetsPeers);
}

Status NoGroup(uint64_t id) { return NotFound("no group " + std::to_string(id)); }

uint64_t SaturatingMs(uint64_t ms) {
  uint64_t ns;
  return __builtin_mul_overflow(ms, kNsPerMs, &ns) ? ~uint64_t{0} : ns;
}

}  // namespace

Status Engine::Dispatch(const v1::Command& command, std::vector<UniqueFd> fds, bool* deferred) {
  using Case = v1::Command::CommandCase;
  if (command.command_case() == Case::kStart) return Start(command, fds);
  if (command.command_case() == Case::kStop) {
    stopping_ = true;
    return Status::Ok();
  }
  if (command.command_case() == Case::kPing) return Status::Ok();
  if (!queue_) return FailedPrecondition("the engine has not been started");
  switch (command.command_case()) {
    case Case::kAllocateSegment: return AllocateSegment(command);
    case Case::kAddSegment: {
      if (fds.size() != 1) return InvalidArgument("AddSegment carries one descriptor");
      return memory_->AddSegment(command.add_segment().segment_id(), fds[0].get(),
                                 command.add_segment().bytes());
    }
    case Case::kRemoveSegment: return memory_->RemoveSegment(command.remove_segment().segment_id());
    case Case::kAddGroup: return AddGroup(command, fds);
    case Case::kSetWorkspace: return SetWorkspace(command);
    case Case::kBreakGroup: return BreakGroup(command.break_group());
    case Case::kLeaveGroup: return LeaveGroup(command, deferred);
    case Case::kRemoveGroup: return RemoveGroup(command, deferred);
    case Case::kAddChunks: return memory_->AddChunks(command.add_chunks().registration_id(), std::move(fds));
    case Case::kAddRegistration: return AddRegistration(command, std::move(fds));
    case Case::kRemoveRegistration:
      return memory_->RemoveRegistration(command.remove_registration().registration_id());
    case Case::kAddPlan: return AddPlan(command, deferred);
    case Case::kMakeUniqueId: {
      TANDEM_ASSIGN_OR_RETURN(std::string id, backend_->MakeUniqueId());
      *deferred = true;
      SendAck(command.id(), Status::Ok(), id);
      return Status::Ok();
    }
    case Case::kClearMemory: {
      const v1::ClearMemory& clear = command.clear_memory();
      std::vector<std::shared_ptr<Segment>> pins;
      TANDEM_ASSIGN_OR_RETURN(std::byte * begin,
                              memory_->Locate(clear.segment_id(), clear.offset(), clear.bytes(), &pins));
      return backend_->ClearMemory(begin, clear.bytes());
    }
    case Case::kRemovePlan: return RemovePlan(command, deferred);
    case Case::kOpenChannel: {
      if (fds.size() != 2) return InvalidArgument("OpenChannel carries two descriptors");
      const v1::OpenChannel& open = command.open_channel();
      return channels_->Open(open.channel_id(), open.session_id(), open.entries(), fds[0].get(),
                             fds[1].get());
    }
    case Case::kCloseChannel: return channels_->Close(command.close_channel().channel_id());
    case Case::kLaunch: {
      // The answer precedes the outcome, which may come at once.
      *deferred = true;
      SendAck(command.id(), Status::Ok());
      return Launch(command);
    }
    case Case::kProbe: return RunProbe(command.probe(), backend_.get(), *memory_, dead_.get());
    case Case::kMeasureLink: {
      TANDEM_ASSIGN_OR_RETURN(uint64_t rate,
                              MeasureLink(command.measure_link(), backend_.get(), *memory_, dead_.get()));
      *deferred = true;
      SendAck(command.id(), Status::Ok(), std::to_string(rate));
      return Status::Ok();
    }
    case Case::kQueueSnapshot: SendQueueSnapshot(); return Status::Ok();
    case Case::kFailLaunch: return FailLaunch(command.fail_launch());
    case Case::kRenewGroup: return RenewGroup(command, deferred);
    case Case::kKeepPages: return Status::Ok();  // Holdings has them
    default: return Unimplemented("an unknown command");
  }
}

Status Engine::BreakGroup(const v1::BreakGroup& from) {
  EngineGroup* group = queue_->FindGroup(from.group_id());
  if (group == nullptr) return NoGroup(from.group_id());
  if (from.code() == 0) return InvalidArgument("a group does not break with OK");
  StatusDetail detail;
  detail.reason = from.reason();
  detail.who = from.who();
  detail.ranks.assign(from.ranks().begin(), from.ranks().end());
  detail.pid = from.pid();
  if (from.has_gpu()) detail.gpu = from.gpu();
  const int rank = detail.ranks.empty() ? -1 : static_cast<int>(detail.ranks.front());
  queue_->Break(group, {Status(static_cast<Code>(from.code()), from.message(), std::move(detail)), rank});
  return Status::Ok();
}

Status Engine::LeaveGroup(const v1::Command& command, bool* deferred) {
  EngineGroup* group = queue_->FindGroup(command.leave_group().group_id());
  if (group == nullptr) return NoGroup(command.leave_group().group_id());
  int rank = command.leave_group().rank();
  if (rank < 0 || rank >= group->world_size) return OutOfRange("no rank " + std::to_string(rank));
  queue_->MarkLeft(group, rank);
  if (rank != group->rank) return Status::Ok();
  *deferred = true;
  uint64_t id = group->id;
  Defer(command.id(), [this, id] {
    EngineGroup* leaving = queue_->FindGroup(id);
    return leaving == nullptr || queue_->Idle(*leaving);
  });
  return Status::Ok();
}

Status Engine::RemoveGroup(const v1::Command& command, bool* deferred) {
  uint64_t id = command.remove_group().group_id();
  EngineGroup* group = queue_->FindGroup(id);
  if (group == nullptr) return NoGroup(id);
  queue_->Break(group, {Aborted("the group was removed"), -1});
  *deferred = true;
  Defer(command.id(), [this, id] {
    EngineGroup* leaving = queue_->FindGroup(id);
    if (leaving != nullptr && !(queue_->Idle(*leaving) && queue_->SpeculationPassed())) return false;
    if (leaving != nullptr) queue_->RemoveGroup(id);
    return true;
  });
  return Status::Ok();
}

Status Engine::RemovePlan(const v1::Command& command, bool* deferred) {
  uint64_t id = command.remove_plan().plan_id();
  if (queue_->FindPlan(id) == nullptr) return NotFound("no plan " + std::to_string(id));
  if (queue_->RemovePlan(id)) return Status::Ok();
  *deferred = true;
  Defer(command.id(), [this, id] { return queue_->RemovePlan(id); });
  return Status::Ok();
}

Status Engine::FailLaunch(const v1::FailLaunch& from) {
  if (from.decides()) {
    channels_->TakeAll();
    return queue_->FailUnmade(from.plan_id(), from.launch());
  }
  if (from.code() == 0) return InvalidArgument("a launch does not fail with OK");
  const Status status(static_cast<Code>(from.code()), from.message());
  return queue_->NoteReason(from.plan_id(), from.launch(),
                            MakeFailure(from.reason(), status, static_cast<int>(from.rank())));
}

Status Engine::RenewGroup(const v1::Command& command, bool* deferred) {
  const uint64_t id = command.renew_group().group_id();
  EngineGroup* group = queue_->FindGroup(id);
  if (group == nullptr) return NoGroup(id);
  switch (command.renew_group().step()) {
    case v1::RenewGroup::STOP:
      *deferred = true;
      Defer(command.id(), [this, id]() -> Result<bool> {
        EngineGroup* stopping = queue_->FindGroup(id);
        if (stopping == nullptr) return NoGroup(id);
        return queue_->StopForRenewal(stopping);
      });
      return Status::Ok();
    case v1::RenewGroup::STALL: queue_->StallForRenewal(group); return Status::Ok();
    case v1::RenewGroup::RESUME:
      group->renewals = command.renew_group().renewals();
      holdings_.NoteGroupRenewed(id);
      queue_->Resume(group);
      return Status::Ok();
    default: return InvalidArgument("a renewal has no such step");
  }
}

Status Engine::Start(const v1::Command& command, const std::vector<UniqueFd>& fds) {
  const v1::Start& start = command.start();
  if (queue_) return FailedPrecondition("the engine has been started already");
  const bool outlives = start.restart_grace_ms() > 0;
  if (fds.size() != (outlives ? 4 : 2)) {
    return InvalidArgument(
        "Start carries two descriptors, the order log and the stats area; two more to outlive tandemd");
  }
  if (start.gpu() >= static_cast<uint32_t>(kMaxLogGpus))
    return OutOfRange("GPU " + std::to_string(start.gpu()));
  TANDEM_ASSIGN_OR_RETURN(OrderLog log, OrderLog::Map(fds[0].get()));
  TANDEM_ASSIGN_OR_RETURN(StatsArea stats, StatsArea::Map(fds[1].get()));
  stats.TakeOver();
  BackendRequest request;
  request.name = start.backend();
  request.gpu = static_cast<int>(start.gpu());
  request.gpu_uuid = start.gpu_uuid();
  request.hardware_queues =
      start.hardware_queues() == 0 ? kDefaultHardwareQueues : static_cast<int>(start.hardware_queues());
  request.memory_bytes = start.memory_bytes();
  request.visibility_delay_us = static_cast<int>(start.visibility_delay_us());
  request.seed = start.seed();
  request.emulated_fused = start.emulated_fused();
  request.engines_per_gpu = std::max(1, static_cast<int>(start.engines_per_gpu()));
  v1::Message message;
  auto since = std::chrono::steady_clock::now();
  const auto ended_phase = [&](std::string_view name) {
    const auto now = std::chrono::steady_clock::now();
    v1::StartPhase* phase = message.mutable_ready()->add_start_phases();
    phase->set_name(std::string(name));
    phase->set_microseconds(
        static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(now - since).count()));
    since = now;
  };
  request.ended_phase = ended_phase;
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, factory_(request));
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < plan::kMaxLanes; ++i) {
    // Lane 0 is the one whose words clients wait for: it takes the better one of two streams
    // (stream_choice.h).
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Lane> lane, i == 0 ? backend->MakeDualStreamLane(kLanePriority)
                                                               : backend->MakeLane(kLanePriority));
    lanes.push_back(std::move(lane));
  }
  TANDEM_ASSIGN_OR_RETURN(WordPage words, WordPage::Create(backend.get()));
  backend_ = std::move(backend);
  gpu_ = request.gpu;
  memory_ = std::make_unique<MemoryTable>(backend_.get(), dead_);
  const LaunchQueueOptions options{.gpu = gpu_,
                                   .speculates = !start.no_speculative_launch(),
                                   .replaces = start.generation() > 1,
                                   .turn_limits = turn_limits_};
  queue_ =
      std::make_unique<LaunchQueue>(options, backend_.get(), memory_.get(), std::move(log), std::move(stats),
                                    std::move(words), std::move(lanes), static_cast<LaunchListener*>(this));
  channels_ = std::make_unique<ChannelServer>(queue_.get(), backend_.get(), dead_, start.generation());
  ended_phase("lanes and queue");
  FillReady(message.mutable_ready());
  if (outlives) HoldFrom(start, fds, message.ready());
  link_.Send(message);
  return Status::Ok();
}

Status Engine::AllocateSegment(const v1::Command& command) {
  const v1::AllocateSegment& from = command.allocate_segment();
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, backend_->AllocateSegment(from.bytes()));
  v1::Message message;
  message.mutable_allocated()->set_segment_id(from.segment_id());
  message.mutable_allocated()->set_bytes(from.bytes());
  // Mapped at once: a segment that was never mapped would stay charged to the GPU for ever.
  TANDEM_RETURN_IF_ERROR(memory_->AddSegment(from.segment_id(), fd.get(), from.bytes()));
  holdings_.NoteSegment(from.segment_id(), fd.get());
  link_.Send(message, {fd.get()});
  return Status::Ok();
}

Status Engine::AddGroup(const v1::Command& command, const std::vector<UniqueFd>& fds) {
  const v1::AddGroup& from = command.add_group();
  int world = static_cast<int>(from.world_size());
  if (fds.size() != 1) return InvalidArgument("AddGroup carries the arrival table");
  if (world < 1 || world > plan::kMaxWorldSize) return InvalidArgument("bad world size");
  if (from.rank() >= from.world_size()) return OutOfRange("rank " + std::to_string(from.rank()));
  if (from.gpus_size() != world || from.signal_segments_size() != world ||
      from.signal_offsets_size() != world) {
    return InvalidArgument("AddGroup names a GPU and a signal area for each rank");
  }
  auto group = std::make_unique<EngineGroup>();
  group->id = from.group_id();
  group->session_id = from.session_id();
  group->generation = from.generation();
  group->stalls = from.stalls();
  group->ordered = from.ordered();
  group->renewals = from.renewals();
  group->rank = static_cast<int>(from.rank());
  group->world_size = world;
  group->deadline_ns = from.deadline_ms() == 0 ? kDefaultDeadlineNs : SaturatingMs(from.deadline_ms());
  group->launch_number = from.next_launch_number() == 0 ? 0 : from.next_launch_number() - 1;
  TANDEM_ASSIGN_OR_RETURN(group->arrivals, ArrivalTable::Map(fds[0].get(), world));
  for (int rank = 0; rank < world; ++rank) {
    if (from.gpus(rank) >= static_cast<uint32_t>(kMaxLogGpus)) return OutOfRange("a GPU's index");
    group->gpu_mask |= static_cast<uint8_t>(1u << from.gpus(rank));
    group->gpus[static_cast<size_t>(rank)] = static_cast<uint8_t>(from.gpus(rank));
    TANDEM_ASSIGN_OR_RETURN(std::byte * base,
                            memory_->Locate(from.signal_segments(rank), from.signal_offsets(rank),
                                            plan::kSignalAreaBytes, &group->pins));
    group->signals[static_cast<size_t>(rank)] = reinterpret_cast<Word*>(base);
  }
  if (from.abort_segment() != 0) {
    TANDEM_ASSIGN_OR_RETURN(std::byte * word, memory_->Locate(from.abort_segment(), from.abort_offset(),
                                                              sizeof(Word), &group->pins));
    group->abort_word = reinterpret_cast<Word*>(word);
  }
  CommunicatorOptions& options = group->communicator_options;
  options.rank = group->rank;
  options.world_size = world;
  options.unique_id = from.nccl_unique_id();
  options.config.insert(from.options().begin(), from.options().end());
  options.abort_word = group->abort_word;
  if (from.scratch_bytes() > 0) {
    options.scratch_bytes = from.scratch_bytes();
    if (from.scratch_segments_size() != from.scratch_offsets_size() ||
        from.scratch_segments_size() != world) {
      return InvalidArgument("AddGroup names a scratch area for each rank");
    }
    for (int rank = 0; rank < from.scratch_segments_size(); ++rank) {
      TANDEM_ASSIGN_OR_RETURN(std::byte * base,
                              memory_->Locate(from.scratch_segments(rank), from.scratch_offsets(rank),
                                              from.scratch_bytes(), &group->pins));
      options.scratch.push_back(base);
    }
  }
  group->arrivals.SetOwner(group->rank, ProcessIdentity::Of(::getpid()));
  return queue_->AddGroup(std::move(group));
}

Status Engine::SetWorkspace(const v1::Command& command) {
  const v1::SetWorkspace& from = command.set_workspace();
  EngineGroup* group = queue_->FindGroup(from.group_id());
  if (group == nullptr) return NoGroup(from.group_id());
  auto workspace = std::make_shared<Workspace>();
  auto locate = [&](const auto& segments, const auto& offsets, uint64_t bytes, auto* by_rank) -> Status {
    if (bytes == 0) return Status::Ok();
    if (segments.size() != group->world_size || offsets.size() != group->world_size) {
      return InvalidArgument("SetWorkspace names a segment and an offset for each rank");
    }
    for (int rank = 0; rank < group->world_size; ++rank) {
      TANDEM_ASSIGN_OR_RETURN(
          (*by_rank)[static_cast<size_t>(rank)],
          memory_->Locate(segments.Get(rank), offsets.Get(rank), bytes, &workspace->pins));
    }
    return Status::Ok();
  };
  TANDEM_RETURN_IF_ERROR(
      locate(from.half0_segments(), from.half0_offsets(), from.half_bytes(), &workspace->half[0]));
  TANDEM_RETURN_IF_ERROR(
      locate(from.half1_segments(), from.half1_offsets(), from.half_bytes(), &workspace->half[1]));
  TANDEM_RETURN_IF_ERROR(
      locate(from.bulk_segments(), from.bulk_offsets(), from.bulk_bytes(), &workspace->bulk));
  workspace->half_bytes = from.half_bytes();
  workspace->bulk_bytes = from.bulk_bytes();
  group->workspace = std::move(workspace);
  return Status::Ok();
}

// The communicator is made for the first plan that needs it: NCCL's takes memory and time, and most groups do
// without.
Status Engine::MakeGroupCommunicator(EngineGroup* group) {
  if (group->communicator) return Status::Ok();
  const CommunicatorOptions& options = group->communicator_options;
  if (options.scratch.empty() && options.unique_id.empty()) {
    return FailedPrecondition("the program needs NCCL or its stand-in, the group has none");
  }
  TANDEM_ASSIGN_OR_RETURN(group->communicator, backend_->MakeCommunicator(options));
  return Status::Ok();
}

Status Engine::AddPlan(const v1::Command& command, bool* deferred) {
  const v1::AddPlan& from = command.add_plan();
  EngineGroup* group = queue_->FindGroup(from.group_id());
  if (group == nullptr) return NoGroup(from.group_id());
  if (from.plan_index() >= group->arrivals.max_plans()) {
    return ResourceExhausted("the group's arrival table has " + std::to_string(group->arrivals.max_plans()) +
                             " rows; plan index " + std::to_string(from.plan_index()) + " is beyond");
  }
  if (from.slots_size() > kMaxBindings) {
    return InvalidArgument("a plan has at most " + std::to_string(kMaxBindings) + " operands");
  }
  TANDEM_ASSIGN_OR_RETURN(plan::RankProgram program, plan::DecodeProgram(from.program()));
  runtime::ProgramLimits limits;
  limits.rank = group->rank;
  limits.world_size = group->world_size;
  if (group->workspace) {
    limits.workspace_bytes = group->workspace->half_bytes;
    limits.bulk_bytes = group->workspace->bulk_bytes;
  }
  auto plan = std::make_unique<InstalledPlan>();
  for (const v1::PlanSlot& slot : from.slots()) {
    limits.slots.push_back({.bytes = slot.span_bytes(), .symmetric = slot.symmetric()});
    plan->slots.push_back({.span_bytes = slot.span_bytes(),
                           .alignment = std::max(1u, slot.alignment()),
                           .symmetric = slot.symmetric(),
                           .alias_of = slot.alias_of()});
  }
  TANDEM_ASSIGN_OR_RETURN(plan->program, runtime::CompiledProgram::Compile(program, limits));
  TANDEM_RETURN_IF_ERROR(plan->program->Prepare(*backend_));
  if (!from.nccl_unique_id().empty()) {
    // A communicator that not all ranks could make is replaced.
    group->communicator_options.unique_id = from.nccl_unique_id();
    group->communicator.reset();
  }
  bool communicates = plan->program->needs_communicator();
  if (communicates) TANDEM_RETURN_IF_ERROR(MakeGroupCommunicator(group));
  plan->id = from.plan_id();
  plan->group = group;
  plan->index = from.plan_index();
  plan->workspace = group->workspace;
  plan->latency_class = from.latency_class();
  plan->takes_launch_number = TakesLaunchNumber(program);
  plan->uses_bulk = program.bulk_bytes > 0;
  plan->never_speculative = program.signal_count > kFirstCancelSignal;
  plan->bytes_moved = from.bytes_moved();
  plan->op = from.op();
  plan->algorithm = from.algorithm();
  plan->arrivals = from.next_count();
  plan->first_count = from.next_count();
  plan->name = from.name();
  for (const plan::Step& step : program.steps) plan->step_lanes.push_back(step.lane);
  TANDEM_RETURN_IF_ERROR(queue_->AddPlan(std::move(plan)));
  *deferred = true;
  if (!communicates) {
    SendAck(command.id(), Status::Ok());
    return Status::Ok();
  }
  // The peers make theirs meanwhile: no launch may be the one that waits for them.
  const auto rendezvous = [this, group_id = from.group_id(), plan_id = from.plan_id()]() -> Result<bool> {
    EngineGroup* of = queue_->FindGroup(group_id);
    if (of == nullptr || of->communicator == nullptr) return Aborted("the group ended meanwhile");
    Result<bool> ready = of->communicator->Ready();
    if (!ready.ok()) {
      queue_->RemovePlan(plan_id);
      holdings_.ForgetPlan(group_id, plan_id);
    }
    return ready;
  };
  Defer(command.id(), rendezvous);
  return Status::Ok();
}

Status Engine::AddRegistration(const v1::Command& command, std::vector<UniqueFd> fds) {
  const v1::AddRegistration& from = command.add_registration();
  if (from.registration_id() == 0) return InvalidArgument("registration ids begin at 1");
  if (from.segments_size() > 0) {
    return memory_->AddSymmetric(from.registration_id(), from.owner_session(), from.group_id(), from.bytes(),
                                 ToVector(from.segments()), ToVector(from.offsets()));
  }
  if (!from.ipc_handle().empty()) {
    return memory_->AddIpc(from.registration_id(), from.owner_session(), from.bytes(), from.ipc_handle(),
                           from.offset());
  }
  std::vector<uint64_t> chunk_bytes = ToVector(from.chunk_bytes());
  if (chunk_bytes.empty()) chunk_bytes.assign(1, from.bytes());
  return memory_->AddForeign(from.registration_id(), from.owner_session(), from.bytes(), std::move(fds),
                             chunk_bytes, from.offset());
}

Status Engine::Launch(const v1::Command& command) {
  const v1::Launch& from = command.launch();
  std::vector<LaunchBinding> bindings;
  for (const v1::Binding& binding : from.bindings())
    bindings.push_back({binding.registration_id(), binding.offset()});
  LaunchRequest request;
  request.origin = {.kind = Origin::Kind::kDirect,
                    .channel = nullptr,
                    .id = from.launch_id(),
                    .slot = -1,
                    .session_id = from.session_id()};
  request.plan_id = from.plan_id();
  request.group_generation = from.generation();
  request.deadline_ns = SaturatingMs(from.deadline_ms());
  request.tag_digest = from.tag_digest();
  request.bindings = bindings;
  queue_->Arrive(request);
  return Status::Ok();
}

}  // namespace tandem::engine
