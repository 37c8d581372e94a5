// Plans: ranks' requests meet by (group, key), are compared and planned once, and go to all engines.
#include <algorithm>
#include <bit>
#include <mutex>
#include <utility>

#include "daemon/control/control.h"
#include "daemon/control/registry.h"
#include "daemon/control/validate.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/tuning/tuning_store.h"
#include "program/program_codec.h"
#include "program/verifier/verifier.h"

namespace tandem::daemon {
namespace {

// Plans below this enter their GPUs' queues before longer ones.
constexpr double kLatencyClassUs = 50;
constexpr uint64_t kLatencyClassBytes = 256 * 1024;
constexpr uint64_t kSmallestHalf = uint64_t{2} << 20;

void FillInfo(const plan::Plan& from, const Group& group, const std::string& key, uint64_t plan_id,
              v1::PlanInfo* info) {
  info->set_plan_id(plan_id);
  info->set_group_id(group.id);
  info->set_key(key);
  info->set_op(static_cast<uint32_t>(from.op));
  info->set_algorithm(static_cast<uint32_t>(from.algorithm));
  info->set_reason(from.reason);
  for (const plan::RefusedAlgorithm& other : from.refused) {
    v1::RefusedAlgorithm* refused = info->add_refused();
    refused->set_algorithm(static_cast<uint32_t>(other.algorithm));
    refused->set_reason(other.reason);
    refused->set_predicted_us(other.predicted_us);
    refused->set_measured_us(other.measured_us);
  }
  info->set_fused(from.fused);
  info->set_steps(from.steps);
  info->set_lanes(from.lanes);
  info->set_summary(from.summary);
  info->set_scale_mode(from.scale_mode);
  info->set_wire_type(from.wire_type);
  info->set_reduction_order(from.reduction_order);
  info->set_roundings(from.roundings);
  info->set_deterministic(from.deterministic);
  info->set_workspace_bytes(from.workspace_bytes);
  info->set_bulk_bytes(from.bulk_bytes);
  info->set_bytes_moved(from.bytes_moved);
  info->set_gathered_a_bytes(from.gathered_a_bytes);
  info->set_predicted_us(from.predicted_us);
  info->set_measured_us(from.measured_us);
  for (const std::string& warning : from.warnings) info->add_warnings(warning);
  info->set_group_workspace_bytes(group.SharedBytes());
  info->set_unshared_workspace_bytes(group.unshared_bytes);
}

void FillOperands(const OpRequest& request, v1::PlanInfo* info) {
  for (int i = 0; i < static_cast<int>(request.operands.size()); ++i) {
    const Operand& operand = request.operands[static_cast<size_t>(i)];
    v1::OperandInfo* to = info->add_operands();
    to->set_role(static_cast<uint32_t>(operand.role));
    Result<int64_t> span = BoundBytes(request, i);
    to->set_span_bytes(span.ok() ? static_cast<uint64_t>(*span) : 0);
    to->set_alignment(static_cast<uint32_t>(DTypeBytes(operand.spec.dtype)));
    to->set_symmetric(operand.symmetric);
  }
}

// The plan's id and index are still to be set.
engine::v1::Command AddPlanCommand(const plan::Plan& plan, const OpRequest& request, size_t rank,
                                   uint64_t group_id) {
  engine::v1::Command command;
  engine::v1::AddPlan& add = *command.mutable_add_plan();
  add.set_group_id(group_id);
  plan::EncodeProgram(plan.programs[rank], add.mutable_program());
  for (int i = 0; i < static_cast<int>(request.operands.size()); ++i) {
    const Operand& operand = request.operands[static_cast<size_t>(i)];
    engine::v1::PlanSlot* slot = add.add_slots();
    Result<int64_t> span = BoundBytes(request, i);
    slot->set_span_bytes(span.ok() ? static_cast<uint64_t>(*span) : 0);
    slot->set_alignment(static_cast<uint32_t>(DTypeBytes(operand.spec.dtype)));
    slot->set_symmetric(operand.symmetric);
    slot->set_alias_of(operand.alias_of);
  }
  add.set_latency_class(plan.bytes_moved <= kLatencyClassBytes && plan.predicted_us <= kLatencyClassUs);
  add.set_predicted_us(plan.predicted_us);
  add.set_bytes_moved(plan.bytes_moved);
  return command;
}

std::vector<engine::v1::Command> AddPlanCommands(const plan::Plan& plan,
                                                 const std::vector<OpRequest>& requests, uint64_t group_id) {
  std::vector<engine::v1::Command> commands;
  for (size_t rank = 0; rank < requests.size(); ++rank)
    commands.push_back(AddPlanCommand(plan, requests[rank], rank, group_id));
  return commands;
}

// What tandemd keeps of a plan until it is released: its key, and each engine's command.
uint64_t KeptBytes(const std::string& key, const std::vector<engine::v1::Command>& commands) {
  uint64_t bytes = sizeof(PlanRecord) + key.size();
  for (const engine::v1::Command& command : commands) bytes += command.ByteSizeLong();
  return bytes;
}

bool NeedsCommunicator(const std::vector<plan::Step>& steps) {
  return std::any_of(steps.begin(), steps.end(), [](const plan::Step& step) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    return std::holds_alternative<plan::NcclStep>(step.work) ||
           (collective != nullptr && NeedsCommunicator(collective->expansion));
  });
}

}  // namespace

uint64_t Group::SharedBytes() const {
  uint64_t largest = 0;
  for (const auto& [id, plan] : plans) largest = std::max(largest, plan.workspace_bytes);
  return 2 * largest;
}

Result<v1::PrepareReply> Control::Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                          const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidatePrepare(request));
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Group> group, FindGroupLocked(*session, request.group_id(), &rank));
  const size_t r = static_cast<size_t>(rank);
  const size_t world = group->members.size();
  TANDEM_ASSIGN_OR_RETURN(OpRequest parsed, ParseOpRequest(request.request(), static_cast<int>(world)));
  TANDEM_RETURN_IF_ERROR(AwaitInstalledLocked(lock, *group, waiter));
  const std::string text = OpRequestToProto(parsed).SerializeAsString();

  auto it = group->prepares.find(request.key());
  if (it != group->prepares.end()) {
    PrepareMeeting& old = *it->second;
    const bool failed = old.phase == Meeting::Phase::kDone && !old.status.ok();
    if (failed && old.told[r]) {
      group->prepares.erase(it);  // this rank knows: another attempt
      it = group->prepares.end();
    } else if (!failed && old.seated[r] && old.requests[r] != text) {
      return InvalidArgument("key '" + request.key() + "' of group '" + group->name +
                             "' was prepared by this rank with another request")
          .WithDetail({.reason = "KEY_REUSED", .who = "rank " + std::to_string(rank), .field = "key"});
    } else if (!failed && old.phase == Meeting::Phase::kDone) {
      auto plan = group->plans.find(old.plan_id);
      if (plan != group->plans.end() && plan->second.released[r]) {
        return Status(Code::kFailedPrecondition,
                      "rank " + std::to_string(rank) + " has released the plan of key '" + request.key() +
                          "'; other ranks have not yet",
                      {.reason = "RELEASED", .who = {}, .field = "key"});
      }
    }
  }
  if (it == group->prepares.end()) {
    if (registry_->draining) {
      return Unavailable("the daemon is draining: no new plans")
          .WithDetail({.reason = "DRAINING", .who = {}, .field = {}});
    }
    TANDEM_RETURN_IF_ERROR(
        MayMeet(*group, group->prepares.size() - std::min(group->prepares.size(), group->plans.size())));
    auto fresh = std::make_shared<PrepareMeeting>();
    fresh->Resize(world);
    fresh->requests.resize(world);
    it = group->prepares.emplace(request.key(), std::move(fresh)).first;
  }
  const std::shared_ptr<PrepareMeeting> meeting = it->second;
  if (meeting->phase == Meeting::Phase::kWaiting) {
    meeting->Seat(r);
    meeting->requests[r] = text;
  }
  const bool complete = std::all_of(meeting->seated.begin(), meeting->seated.end(), [](bool s) { return s; });
  if (meeting->phase == Meeting::Phase::kWaiting && complete) {
    meeting->phase = Meeting::Phase::kWorking;
    lock.unlock();
    Status status = MakePlanOf(group, *meeting, request.key(), ForAllRanks(group, waiter.deadline));
    lock.lock();
    if (!status.ok() && !group->broken.ok()) status = group->broken;
    meeting->phase = Meeting::Phase::kDone;
    meeting->status = status;
    meeting->changed.notify_all();
  }
  const Status own = meeting->Await(lock, r, "key '" + request.key() + "' of group '" + group->name + "'",
                                    "prepare it", waiter);
  const auto mine = group->prepares.find(request.key());
  const bool is_mine = mine != group->prepares.end() && mine->second == meeting;
  if (!own.ok()) {
    if (is_mine && meeting->phase == Meeting::Phase::kWaiting && meeting->Empty())
      group->prepares.erase(mine);
    return own;
  }
  meeting->told[r] = true;
  if (!meeting->status.ok()) {
    if (is_mine && meeting->AllTold()) group->prepares.erase(mine);
    return meeting->status;
  }
  auto plan = group->plans.find(meeting->plan_id);
  if (plan == group->plans.end()) {
    return group->broken.ok() ? Unavailable("the plan was released meanwhile") : group->broken;
  }
  v1::PrepareReply reply;
  reply.mutable_plan()->ParseFromString(plan->second.info);
  reply.mutable_plan()->set_group_workspace_bytes(group->SharedBytes());
  reply.mutable_plan()->set_unshared_workspace_bytes(group->unshared_bytes);
  FillOperands(parsed, reply.mutable_plan());
  return reply;
}

// The leader's part: plans, makes room in the workspace, and tells the engines.
Status Control::MakePlanOf(const std::shared_ptr<Group>& group, PrepareMeeting& meeting,
                           const std::string& key, const Waiter& waiter) {
  const size_t world = group->members.size();
  std::vector<OpRequest> requests;
  for (const std::string& text : meeting.requests) {
    v1::OpRequest proto;
    if (!proto.ParseFromString(text)) return Internal("a stored request does not parse");
    TANDEM_ASSIGN_OR_RETURN(OpRequest request, ParseOpRequest(proto, static_cast<int>(world)));
    requests.push_back(std::move(request));
  }
  const std::string context = "key '" + key + "' of group '" + group->name + "'";
  if (Status same = plan::CompareRequests(requests); !same.ok()) return same.WithContext(context);
  plan::GroupContext group_context = group->context;
  const auto tuning = options_.tuning == nullptr ? nullptr : options_.tuning->Snapshot();
  group_context.tuning = tuning.get();
  group_context.gpu_model = TuningModel(group_context.topology);
  Result<plan::Plan> plan = plan::MakePlan(requests, group_context);
  if (!plan.ok()) return plan.status().WithContext(context);
  if (tuning != nullptr && plan->measured_us == 0) {
    if (auto unmeasured = plan::Unmeasured(requests, group_context); unmeasured.has_value()) {
      WantedTuning wanted{*std::move(unmeasured), meeting.requests[0], {}, 1};
      for (const GpuInfo& gpu : group_context.topology.gpus) wanted.gpu_uuids.push_back(gpu.uuid);
      options_.tuning->Want(std::move(wanted));
    }
  }
  if (plan->programs.size() != world) return Internal("the planner made a program for some ranks only");
  if (options_.verify_plans || requests[0].restartable) {
    TANDEM_ASSIGN_OR_RETURN(plan::VerifyContext sizes, plan::ContextOf(requests));
    TANDEM_RETURN_IF_ERROR(plan::VerifyPrograms(plan->programs, sizes).WithContext(context + ": verifier"));
  }
  std::vector<engine::v1::Command> commands = AddPlanCommands(*plan, requests, group->id);
  const uint64_t kept_bytes = KeptBytes(key, commands);
  Placement placement;
  TANDEM_ASSIGN_OR_RETURN(const auto work, TakeWork(*group, waiter));
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(InstalledLocked(*group));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Check(group->payer, Resource::kPlans, 1));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Check(group->payer, Resource::kPlanBytes, kept_bytes));
    placement = PlacementLocked(*group);
    // Copy engines are not time-sliced: a plan of copies alone loses nothing.
    placement.slow = placement.slow && std::any_of(plan->programs.begin(), plan->programs.end(), RunsKernels);
    TANDEM_RETURN_IF_ERROR(CheckPlacement(placement, group->on_slow_placement).WithContext(context));
  }
  TANDEM_RETURN_IF_ERROR(
      GrowWorkspace(*group, plan->workspace_bytes, plan->bulk_bytes, waiter).WithContext(context));
  // NCCL's communicator is made for the first plan that needs it. (`communicates` belongs to the holder of
  // `work`.)
  const bool first_nccl =
      options_.backend == "cuda" && !group->communicates && NeedsCommunicator(plan->programs[0].steps);
  std::string unique_id;
  if (first_nccl) {
    TANDEM_ASSIGN_OR_RETURN(unique_id, MakeUniqueId(*group));
  }
  std::vector<std::string> warnings;
  auto batch = std::make_shared<CommandBatch>();
  uint64_t plan_id = 0;
  {
    Lock lock(registry_->mutex);
    TANDEM_RETURN_IF_ERROR(InstalledLocked(*group));
    if (group->next_plan_index >= kMaxPlanIndexes) {
      return Status(Code::kResourceExhausted,
                    context + ": no plan index is left in this incarnation; leave the group and join again",
                    {.reason = "PLAN_INDEXES",
                     .who = {},
                     .field = {},
                     .limit = kMaxPlanIndexes,
                     .usage = group->next_plan_index});
    }
    plan_id = registry_->NewPlanId();
    if (plan_id == 0) return ResourceExhausted(context + ": the node has as many plans as there are ids");
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Check(group->payer, Resource::kPlanBytes, kept_bytes));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Charge(group->payer, Resource::kPlans, 1));
    TANDEM_RETURN_IF_ERROR(registry_->ledger.Charge(group->payer, Resource::kPlanBytes, kept_bytes));
    PlanRecord record;
    record.id = plan_id;
    record.key = key;
    record.index = group->next_plan_index++;
    record.kept_bytes = kept_bytes;
    record.workspace_bytes = plan->workspace_bytes;
    record.bulk_bytes = plan->bulk_bytes;
    record.released.resize(world);
    group->unshared_bytes += 2 * plan->workspace_bytes;
    v1::PlanInfo info;
    FillInfo(*plan, *group, key, plan_id, &info);
    info.set_placement(placement.text);
    info.set_slow_placement(placement.slow);
    if (placement.slow && group->on_slow_placement == OnSlowPlacement::kWarn)
      info.add_warnings(placement.text);
    warnings.assign(info.warnings().begin(), info.warnings().end());
    record.info = info.SerializeAsString();
    for (size_t rank = 0; rank < world; ++rank) {
      engine::v1::Command& command = commands[rank];
      command.mutable_add_plan()->set_plan_id(plan_id);
      command.mutable_add_plan()->set_plan_index(record.index);
      record.commands.push_back(command.SerializeAsString());
      command.mutable_add_plan()->set_nccl_unique_id(unique_id);
      registry_->mailboxes[static_cast<size_t>(group->members[rank].gpu)]->Post(std::move(command), {},
                                                                                batch);
    }
    group->plans.emplace(plan_id, std::move(record));
    registry_->plan_groups[plan_id] = group;
    meeting.plan_id = plan_id;
  }
  Status status = batch->Wait(waiter);
  if (!status.ok()) {
    Lock lock(registry_->mutex);
    if (group->plans.contains(plan_id)) RemovePlanLocked(*group, plan_id);
    return status.WithContext(context);
  }
  if (first_nccl) group->communicates = true;
  if (!warnings.empty()) {
    Lock lock(registry_->mutex);
    ReportWarningsLocked(*group, key, plan_id, warnings);
  }
  return status;
}

void Control::ReportWarningsLocked(Group& group, const std::string& key, uint64_t plan_id,
                                   const std::vector<std::string>& warnings) {
  std::string text;
  for (const std::string& warning : warnings) text += (text.empty() ? "" : "; ") + warning;
  v1::Event event;
  event.set_kind(v1::Event::PLAN_WARNING);
  event.set_group_id(group.id);
  event.set_rank(-1);
  event.set_generation(group.generation);
  event.mutable_status()->set_code(static_cast<int>(Code::kFailedPrecondition));
  event.mutable_status()->set_reason("PLAN_WARNING");
  event.mutable_status()->set_message("key '" + key + "' of group '" + group.name + "': " + text);
  PostGroupEventLocked(group, event, -1);
  Log(LogSeverity::kWarning, "group=" + std::to_string(group.id) + " plan=" + std::to_string(plan_id) + " " +
                                 event.status().message());
}

// Halves and bulk area only grow; what they grew out of stays until the group ends, since programs in flight
// may use it. Sizes double, so that this is at most as much again.
Status Control::GrowWorkspace(Group& group, uint64_t half_bytes, uint64_t bulk_bytes, const Waiter& waiter) {
  uint64_t half = 0, bulk = 0;
  {
    Lock lock(registry_->mutex);
    if (half_bytes > group.half_bytes) half = std::max(kSmallestHalf, std::bit_ceil(half_bytes));
    if (bulk_bytes > group.bulk_bytes) bulk = std::max(bulk_bytes, 2 * group.bulk_bytes);
  }
  if (half == 0 && bulk == 0) return Status::Ok();
  std::shared_ptr<SegmentSet> half0, half1, area;
  Status status;
  const auto make = [&](uint64_t bytes, const char* purpose, std::shared_ptr<SegmentSet>* set) {
    if (bytes == 0 || !status.ok()) return;
    Result<std::shared_ptr<SegmentSet>> made = MakeSet(group, bytes, purpose, waiter);
    if (made.ok()) *set = *made;
    status = made.status();
  };
  make(half, "workspace", &half0);
  make(half, "workspace", &half1);
  make(bulk, "bulk", &area);
  auto batch = std::make_shared<CommandBatch>();
  {
    Lock lock(registry_->mutex);
    if (status.ok()) status = InstalledLocked(group);
    if (!status.ok()) {
      for (const auto& set : {half0, half1, area}) {
        if (set) RemoveSetLocked(set);
      }
      return status;
    }
    const auto replace = [&](std::shared_ptr<SegmentSet>& old, const std::shared_ptr<SegmentSet>& fresh) {
      if (!fresh) return;
      if (old) group.outgrown.push_back(old);
      old = fresh;
    };
    replace(group.half0, half0);
    replace(group.half1, half1);
    replace(group.bulk, area);
    if (half0) group.half_bytes = half0->bytes;
    if (area) group.bulk_bytes = area->bytes;
    PostWorkspaceLocked(group, batch);
  }
  return batch->Wait(waiter);
}

void Control::RemovePlanLocked(Group& group, uint64_t plan_id) {
  auto it = group.plans.find(plan_id);
  engine::v1::Command command;
  command.mutable_remove_plan()->set_plan_id(plan_id);
  for (const Member& member : group.members) {
    registry_->mailboxes[static_cast<size_t>(member.gpu)]->Post(command);
  }
  group.unshared_bytes -= 2 * it->second.workspace_bytes;
  auto meeting = group.prepares.find(it->second.key);
  // A plan that failed to reach its engines keeps its meeting: the ranks have yet to hear of it.
  if (meeting != group.prepares.end() && meeting->second->plan_id == plan_id &&
      meeting->second->phase == Meeting::Phase::kDone) {
    group.prepares.erase(meeting);
  }
  registry_->plan_groups.erase(plan_id);
  registry_->ledger.Refund(group.payer, Resource::kPlans, 1);
  registry_->ledger.Refund(group.payer, Resource::kPlanBytes, it->second.kept_bytes);
  group.plans.erase(it);
}

Status Control::ReleasePlan(const SessionRef& session, uint64_t plan_id) {
  Lock lock(registry_->mutex);
  TANDEM_RETURN_IF_ERROR(SessionAlive(*session));
  const Status unknown = NotFound("no plan " + std::to_string(plan_id) + " in this session");
  auto it = registry_->plan_groups.find(plan_id);
  const std::shared_ptr<Group> group = it == registry_->plan_groups.end() ? nullptr : it->second.lock();
  if (!group) return unknown;
  int rank = 0;
  if (!FindGroupLocked(*session, group->id, &rank).ok()) return unknown;
  PlanRecord& plan = group->plans.at(plan_id);
  if (plan.released[static_cast<size_t>(rank)]) return unknown;
  plan.released[static_cast<size_t>(rank)] = true;
  if (std::all_of(plan.released.begin(), plan.released.end(), [](bool r) { return r; })) {
    RemovePlanLocked(*group, plan_id);
  }
  return Status::Ok();
}

}  // namespace tandem::daemon
