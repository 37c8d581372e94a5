#include "client/lib/client_launch/mapped_plan.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "common/deadline.h"

namespace tandem::client {
namespace {

Status DoesNotFit() {
  return Internal("the daemon's answer about a client-placed plan does not fit together");
}

// Memory of a plan, held by launches.
struct PlanMemory {
  std::vector<std::shared_ptr<DeviceMapping>> mappings;
  std::vector<UsageLedger::Entry> counted;
  std::shared_ptr<ClientGroup> group;
};

// Held by a graph that launches a plan.
struct CapturedPlan {
  std::shared_ptr<void> plan;    // its handle, so that neither plan nor group ends
  std::shared_ptr<void> member;  // dropped first
};

// Bytes of the signal area that the kernels need.
uint64_t LeastSignalBytes(const ClientPlacementInfo& info) {
  const plan::RankProgram& program = info.program;
  if (info.family != nullptr && info.family->group.packet_kernels) return plan::kClientSignalAreaBytes;
  const bool more = std::any_of(program.steps.begin(), program.steps.end(), [](const plan::Step& step) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    return collective != nullptr && (collective->dense || plan::IsFusedKernel(*collective));
  });
  return more ? plan::kClientSignalAreaBytes : plan::kSignalAreaBytes;
}

}  // namespace

uint16_t ClientTag::Fold() const {
  const uint64_t half = digest_ ^ digest_ >> 32;
  return static_cast<uint16_t>(half ^ half >> 16);
}

Result<std::shared_ptr<MappedPlan>> MappedPlan::Make(const ClientPlacementInfo& info, const PlanInfo& plan,
                                                     const OpRequest& request, ClientDevice& device,
                                                     SegmentCache& segments, UsageLedger& ledger,
                                                     const std::string& gpu_uuid,
                                                     std::shared_ptr<ClientGroup> group) {
  const auto world = static_cast<size_t>(info.program.world_size);
  const bool has_workspace = !info.workspace.empty();
  const uint64_t workspace = 2 * info.half_bytes + info.bulk_bytes;
  if (world > plan::kMaxWorldSize || info.signals.size() != world || info.signal_ids.size() != world ||
      info.signal_bytes < LeastSignalBytes(info) || info.workspace.size() != info.workspace_ids.size() ||
      (has_workspace && (info.workspace.size() != world || info.workspace_bytes < workspace)) ||
      (!has_workspace && workspace != 0) || plan.slot_bytes.size() != request.operands.size()) {
    return DoesNotFit();
  }
  std::shared_ptr<MappedPlan> made(new MappedPlan);
  made->plan_id_ = plan.plan_id;
  made->deadline_ = info.launch_deadline;
  made->group_ = std::move(group);
  auto used = std::make_shared<PlanMemory>();
  used->group = made->group_;
  ClientLaunchMemory memory;
  memory.half_bytes = info.half_bytes;
  memory.bulk_bytes = info.bulk_bytes;
  memory.signal_bytes = info.signal_bytes;
  // `use`: of this rank's own segment.
  const auto hold = [&](size_t rank, MemoryKind use, uint64_t bytes, const DeviceMapping& segment) {
    const bool is_own = static_cast<int>(rank) == info.program.rank;
    const uint64_t group_id = used->group->id();
    if (is_own) used->counted.push_back(ledger.Hold(use, group_id, segment.data(), bytes));
    used->counted.push_back(ledger.Hold(is_own ? MemoryKind::kSegment : MemoryKind::kPeer, group_id,
                                        segment.data(), segment.bytes()));
  };
  for (size_t rank = 0; rank < world; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto signals, segments.Map(device, gpu_uuid, info.signal_ids[rank],
                                                       info.signals[rank].get(), info.signal_bytes));
    memory.signals[rank] = reinterpret_cast<Word*>(signals->data());
    if (static_cast<int>(rank) == info.program.rank) memory.own_signals = signals;
    hold(rank, MemoryKind::kSignals, info.signal_bytes, *signals);
    used->mappings.push_back(std::move(signals));
    if (!has_workspace) continue;
    TANDEM_ASSIGN_OR_RETURN(auto area, segments.Map(device, gpu_uuid, info.workspace_ids[rank],
                                                    info.workspace[rank].get(), info.workspace_bytes));
    memory.workspace[rank] = area->data();
    memory.bulk[rank] = area->data() + 2 * info.half_bytes;
    hold(rank, MemoryKind::kWorkspace, info.workspace_bytes, *area);
    used->mappings.push_back(std::move(area));
  }
  TANDEM_ASSIGN_OR_RETURN(made->members_,
                          PlanMembers::Make(info, request, made->group_->queue(), memory, used));
  return made;
}

Status MappedPlan::Launch(LaunchStream& stream, bool capturing, uint64_t stream_id, ClientBindings bindings,
                          const std::shared_ptr<const PlanMember>& member, Milliseconds deadline,
                          const std::shared_ptr<ClientPlanState>& state, std::shared_ptr<void> plan) {
  ClientCall call;
  call.bindings = std::move(bindings);
  call.deadline = deadline.count() > 0 ? Bounded(deadline) : Bounded(deadline_);
  call.plan = {plan_id_, member->rows};
  call.stream_id = stream_id;
  call.capturing = capturing;
  call.state = state;
  call.keep = std::const_pointer_cast<PlanMember>(member);
  if (plan != nullptr) {
    const auto both = std::make_shared<CapturedPlan>(CapturedPlan{std::move(plan), call.keep});
    // Queues know the member by its address.
    call.keep = std::shared_ptr<void>(both, call.keep.get());
  }
  return group_->queue().Launch(stream, *member->work, std::move(call));
}

}  // namespace tandem::client
