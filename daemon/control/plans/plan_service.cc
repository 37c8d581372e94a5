#include "daemon/control/plans/plan_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/row_requests.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/capabilities.h"
#include "daemon/control/base/status_proto.h"
#include "daemon/control/base/validate.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/plans/autotune.h"
#include "daemon/control/plans/family_messages.h"
#include "daemon/control/plans/plan_messages.h"
#include "daemon/control/plans/tuning_service.h"
#include "daemon/control/tensors/tensor_service.h"
#include "daemon/planner/choice/placement.h"
#include "daemon/planner/cost/measured.h"
#include "daemon/planner/tuning/tuning_store.h"
#include "program/verifier/verifier.h"

namespace tandem::daemon {
namespace {

// Limits of a plan in the client that an engine's does not have (docs/client-placement.md).
constexpr char kClientPromises[] = "all ranks must launch in one order, and a deadline stalls the group";

// The memory that tandemd keeps for a plan until it is released: its key, and each engine's command.
uint64_t KeptBytes(const std::string& key, const std::vector<engine::v1::Command>& commands) {
  uint64_t bytes = sizeof(PlanRecord) + key.size();
  for (const engine::v1::Command& command : commands) bytes += command.ByteSizeLong();
  return bytes;
}

// Kinds of warnings of plans, for a group, that are logged.
constexpr size_t kMaxLoggedWarnings = 32;

std::string NameOf(const GroupRecord& group, const std::string& key) {
  return "key '" + key + "' of group '" + group.name + "'";
}

}  // namespace

Result<std::shared_ptr<PrepareBarrier>> PlanService::Enter(GroupRecord& group, size_t rank,
                                                           const std::string& key, const OpRequest& request,
                                                           const Waiter& waiter) {
  auto it = group.prepares.find(key);
  if (it != group.prepares.end()) {
    PrepareBarrier& old = *it->second;
    const bool failed = old.over() && !old.verdict().ok();
    if (failed && old.Acknowledged(rank)) {
      group.prepares.erase(it);  // this rank has the verdict: another attempt
      it = group.prepares.end();
    } else if (!failed && old.Taken(rank) && old.requests[rank] != request) {
      return InvalidArgument(NameOf(group, key) + " was prepared by this rank with another request")
          .WithDetail(BlameRank("KEY_REUSED", static_cast<int>(rank), "key"));
    } else if (!failed && old.over()) {
      const auto plan = group.plans.find(old.plan_id);
      if (plan != group.plans.end() && plan->second.released[rank]) {
        return FailedPrecondition("rank " + std::to_string(rank) + " has released the plan of key '" + key +
                                  "'; other ranks have not yet")
            .WithDetail(BlameRank("RELEASED", static_cast<int>(rank), "key"));
      }
    }
  }
  if (it == group.prepares.end()) {
    const size_t open = group.prepares.size() - std::min(group.prepares.size(), group.plans.size());
    TANDEM_RETURN_IF_ERROR(CheckOpenBarriers(core_.options.limits, group, open));
    auto fresh = std::make_shared<PrepareBarrier>(group.world(), NameOf(group, key), "prepare it");
    fresh->requests.resize(group.world());
    fresh->tuning.resize(group.world());
    it = group.prepares.emplace(key, std::move(fresh)).first;
  }
  const std::shared_ptr<PrepareBarrier> barrier = it->second;
  if (barrier->phase() == Barrier::Phase::kGathering) {
    barrier->Take(rank, waiter.deadline);
    barrier->requests[rank] = request;
  }
  return barrier;
}

Result<OpRequest> PlanService::ReadRequest(const GroupRecord& group, const v1::OpRequest& request) {
  const auto world = static_cast<int>(group.world());
  TANDEM_ASSIGN_OR_RETURN(OpRequest asked, ParseOpRequest(request, world));
  asked.determinism = std::max(asked.determinism, group.context.determinism);
  return AtBound(asked, world);
}

Result<v1::PrepareReply> PlanService::Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                              const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidatePrepare(request));
  Registry& registry = core_.registry;
  const std::string& key = request.key();
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          registry.FindGroup(*session, request.group_id(), &rank));
  const size_t r = static_cast<size_t>(rank);
  TANDEM_ASSIGN_OR_RETURN(const OpRequest parsed, ReadRequest(*group, request.request()));
  TANDEM_RETURN_IF_ERROR(installer_.AwaitInstalled(lock, *group, waiter));
  if (const auto before = group->prepares.find(key); before != group->prepares.end())
    before->second->DropCancelled();
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<PrepareBarrier> barrier,
                          Enter(*group, r, key, parsed, waiter));
  if (barrier->phase() == Barrier::Phase::kGathering) {
    v1::PrepareRequest& tuning = barrier->tuning[r];
    tuning = request;
    tuning.clear_request();
  }
  if (barrier->phase() == Barrier::Phase::kGathering && barrier->Complete()) {
    barrier->BeginWork();
    Status status = lock.Outside([&] {
      return MakeForAll(group, *barrier, key, GroupInstaller::ForAllRanks(group, waiter.deadline));
    });
    if (!status.ok() && !group->lifecycle.why().ok()) status = group->lifecycle.why();
    barrier->End(status);
  }
  if (group->IsOrdered()) desync_.Await(lock, group, *barrier, key, r, request.next_client_launch(), waiter);
  const Status own = barrier->Await(lock, r, waiter);
  const auto mine = group->prepares.find(key);
  const bool is_mine = mine != group->prepares.end() && mine->second == barrier;
  if (!own.ok()) {
    const bool gathering = barrier->phase() == Barrier::Phase::kGathering;
    if (is_mine && gathering && barrier->Empty()) group->prepares.erase(mine);
    return own;
  }
  barrier->Acknowledge(r);
  if (!barrier->verdict().ok()) {
    if (is_mine && barrier->AllAcknowledged()) group->prepares.erase(mine);
    return barrier->verdict();
  }
  const auto plan = group->plans.find(barrier->plan_id);
  if (plan == group->plans.end()) {
    return group->lifecycle.why().ok() ? Unavailable("the plan was released meanwhile")
                                       : group->lifecycle.why();
  }
  v1::PrepareReply reply;
  reply.mutable_plan()->ParseFromString(plan->second.info);
  reply.mutable_plan()->set_group_workspace_bytes(group->WorkspaceBytes());
  reply.mutable_plan()->set_unshared_workspace_bytes(group->UnsharedWorkspaceBytes());
  FillOperands(parsed, reply.mutable_plan());
  for (const Algorithm algorithm : barrier->measure) reply.add_measure(static_cast<uint32_t>(algorithm));
  if (!plan->second.client) return reply;
  const std::vector<SharedFd> fds =
      client_memory_.Describe(*group, *plan->second.client, r, reply.mutable_client());
  reply.mutable_client()->set_transfer_id(registry.next_id++);
  lock.Unlock();
  TANDEM_RETURN_IF_ERROR(core_.SendDescriptors(session->id, reply.client().transfer_id(), fds));
  return reply;
}

Result<PlanService::Draft> PlanService::MakeDraft(const GroupRecord& group, PrepareBarrier& barrier,
                                                  const std::string& key, bool kernels_take_turns) {
  Draft draft;
  draft.key = key;
  draft.context = NameOf(group, key);
  for (const std::optional<OpRequest>& request : barrier.requests) {
    if (!request) return Internal("the request of a rank is missing");
    draft.requests.push_back(*request);
  }
  TANDEM_RETURN_IF_ERROR(plan::CompareRequests(draft.requests).WithContext(draft.context));
  KeepTimes(group, barrier, draft);
  plan::GroupContext context = group.context;
  const auto tuning = core_.options.tuning == nullptr ? nullptr : core_.options.tuning->Snapshot();
  context.tuning = tuning.get();
  context.gpu_model = TuningModel(core_, group.gpus);
  context.kernels_take_turns = kernels_take_turns;
  Result<plan::OperationPlan> plan = plan::MakePlan(draft.requests, context);
  if (!plan.ok()) return plan.status().WithContext(draft.context);
  draft.plan = std::move(*plan);
  // The times of some algorithms alone would mislead requests that may take all.
  const bool all_algorithms = draft.requests[0].determinism == Determinism::kOff;
  if (tuning != nullptr && all_algorithms && draft.plan.measured_us == 0 && draft.requests[0].max_rows == 0) {
    if (auto unmeasured = plan::Unmeasured(draft.requests, context); unmeasured.has_value()) {
      OpRequest request = draft.requests[0];
      request.placement = plan::AskedPlacement(request, context);
      WantedTuning wanted{*std::move(unmeasured), std::move(request), {}, 1};
      for (const GpuInfo& gpu : context.topology.gpus) wanted.gpu_uuids.push_back(gpu.uuid);
      core_.options.tuning->Want(std::move(wanted));
      const auto& ranks = barrier.tuning;
      const bool all_can = std::all_of(ranks.begin(), ranks.end(),
                                       [](const v1::PrepareRequest& rank) { return rank.can_measure(); });
      if (core_.options.autotune && all_can) barrier.measure = WorthMeasuring(draft.plan);
      if (std::string why = WhyNotMeasured(ranks); core_.options.autotune && !why.empty()) {
        draft.plan.warnings.push_back(std::move(why));
      }
    }
  }
  if (draft.plan.programs.size() != group.world())
    return Internal("the planner made a program for some ranks only");
  TANDEM_RETURN_IF_ERROR(Verify(draft));
  draft.commands = AddPlanCommands(draft.plan, draft.requests, group.id, key);
  draft.kept_bytes = KeptBytes(key, draft.commands);
  if (draft.plan.placement == plan::PlanPlacement::kClient) {
    draft.client = std::make_shared<PlanRecord::InClient>(group.world(), draft.context);
    if (draft.requests[0].max_rows > 0) {
      v1::Family family;
      FillFamily(context, &family);
      draft.client->family = family.SerializeAsString();
      draft.kept_bytes += draft.client->family.size();
    }
    for (const engine::v1::Command& command : draft.commands) {
      draft.client->programs.push_back(command.add_plan().program().SerializeAsString());
      draft.kept_bytes += draft.client->programs.back().size();
    }
  }
  return draft;
}

Status PlanService::Verify(const Draft& draft) const {
  if (!core_.options.verify_plans && !draft.requests[0].restartable) return Status::Ok();
  TANDEM_ASSIGN_OR_RETURN(const plan::VerifyContext sizes, plan::ContextOf(draft.requests));
  return plan::VerifyPrograms(draft.plan.programs, sizes).WithContext(draft.context + ": verifier");
}

void PlanService::KeepTimes(const GroupRecord& group, const PrepareBarrier& barrier, const Draft& draft) {
  if (!core_.options.autotune) return;
  const std::vector<plan::TuningCandidate> candidates = SlowestTimes(barrier.tuning);
  if (candidates.empty()) return;
  OpRequest request = draft.requests[0];
  request.placement = static_cast<PlanPlacement>(barrier.tuning[0].times_placement());
  std::vector<std::string> gpu_uuids;
  for (const GpuInfo& gpu : group.context.topology.gpus) gpu_uuids.push_back(gpu.uuid);
  const Status kept = tuning_.Put(std::move(request), gpu_uuids, candidates, group.payer.uid).status();
  if (!kept.ok())
    core_.LogOf(group.payer.uid, LogSeverity::kWarning, draft.context + ": autotune: " + kept.message());
}

Status PlanService::Admit(const GroupRecord& group, Draft& draft) {
  TANDEM_RETURN_IF_ERROR(installer_.Installed(group));
  TANDEM_RETURN_IF_ERROR(core_.registry.ledger.Check(group.payer, Resource::kPlans, 1));
  TANDEM_RETURN_IF_ERROR(core_.registry.ledger.Check(group.payer, Resource::kPlanBytes, draft.kept_bytes));
  return Place(group, draft);
}

Status PlanService::Place(const GroupRecord& group, Draft& draft) {
  draft.placement = core_.GpuSharingOf(group);
  if (draft.plan.placement == plan::PlanPlacement::kClient) {  // no engine has a part in its launches
    draft.placement = {.text = kClientPromises, .slow = false};
    return Status::Ok();
  }
  // Copy engines are not time-sliced: a plan of copies alone loses nothing.
  const auto& programs = draft.plan.programs;
  draft.placement.slow =
      draft.placement.slow && std::any_of(programs.begin(), programs.end(), plan::RunsKernels);
  return CheckGpuSharing(draft.placement, group.on_slow_placement).WithContext(draft.context);
}

Result<uint64_t> PlanService::Post(const std::shared_ptr<GroupRecord>& group, Draft& draft,
                                   const std::string& unique_id, const std::shared_ptr<CommandBatch>& batch) {
  Registry& registry = core_.registry;
  const size_t world = group->world();
  TANDEM_RETURN_IF_ERROR(installer_.Installed(*group));
  if (group->next_plan_index >= kMaxPlanIndexes) {
    return ResourceExhausted(draft.context +
                             ": no plan index is left in this incarnation; leave the group and join again")
        .WithDetail({.reason = "PLAN_INDEXES",
                     .who = "group " + std::to_string(group->id),
                     .field = {},
                     .limit = kMaxPlanIndexes,
                     .usage = group->next_plan_index});
  }
  const uint64_t plan_id = registry.NewPlanId();
  if (plan_id == 0) return ResourceExhausted(draft.context + ": the node has as many plans as there are ids");
  TANDEM_RETURN_IF_ERROR(registry.ledger.Check(group->payer, Resource::kPlanBytes, draft.kept_bytes));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(group->payer, Resource::kPlans, 1));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(group->payer, Resource::kPlanBytes, draft.kept_bytes));
  PlanRecord record;
  record.id = plan_id;
  record.key = draft.key;
  record.index = group->next_plan_index++;
  record.kept_bytes = draft.kept_bytes;
  record.client = draft.client;
  record.half_bytes = draft.plan.workspace_bytes;
  record.bulk_bytes = draft.plan.bulk_bytes;
  record.released.resize(world);
  record.requests.assign(draft.requests.begin(), draft.requests.end());
  v1::PlanInfo info = InfoOf(*group, draft);
  info.set_plan_id(plan_id);
  draft.warnings.assign(info.warnings().begin(), info.warnings().end());
  record.info = info.SerializeAsString();
  for (size_t rank = 0; rank < world; ++rank) {
    engine::v1::Command& command = draft.commands[rank];
    command.mutable_add_plan()->set_plan_id(plan_id);
    command.mutable_add_plan()->set_plan_index(record.index);
    record.commands.push_back(command.SerializeAsString());
    if (draft.client) continue;
    command.mutable_add_plan()->set_nccl_unique_id(unique_id);
    registry.MailboxOf(group->gpus[rank]).Post(std::move(command), {}, batch);
  }
  group->plans.emplace(plan_id, std::move(record));
  registry.Touch(*group);
  registry.plan_groups[plan_id] = group;
  return plan_id;
}

Status PlanService::MakeForAll(const std::shared_ptr<GroupRecord>& group, PrepareBarrier& barrier,
                               const std::string& key, const Waiter& waiter) {
  bool kernels_take_turns = false;
  {
    RegistryLock lock(core_.registry);
    kernels_take_turns = core_.GpuSharingOf(*group).slow;
  }
  TANDEM_ASSIGN_OR_RETURN(Draft draft, MakeDraft(*group, barrier, key, kernels_take_turns));
  TANDEM_ASSIGN_OR_RETURN(const auto work, GroupInstaller::TakeWork(*group, waiter));
  {
    RegistryLock lock(core_.registry);
    TANDEM_RETURN_IF_ERROR(Admit(*group, draft));
  }
  const uint64_t half_bytes = draft.plan.workspace_bytes, bulk_bytes = draft.plan.bulk_bytes;
  const Status has_memory =
      draft.client ? client_memory_.Provide(*group, half_bytes, bulk_bytes, waiter, draft.client.get())
                   : workspace_.Grow(*group, half_bytes, bulk_bytes, waiter);
  TANDEM_RETURN_IF_ERROR(has_memory.WithContext(draft.context));
  // NCCL's communicator is made for the first plan that needs it.
  draft.first_nccl = !group->communicates && SharedCapabilities(core_.engines, group->gpus).communicators &&
                     NeedsCommunicator(draft.plan.programs[0].steps);
  std::string unique_id;
  if (draft.first_nccl) {
    TANDEM_ASSIGN_OR_RETURN(unique_id, installer_.MakeUniqueId(*group));
  }
  auto batch = std::make_shared<CommandBatch>();
  uint64_t plan_id = 0;
  {
    RegistryLock lock(core_.registry);
    TANDEM_ASSIGN_OR_RETURN(plan_id, Post(group, draft, unique_id, batch));
    barrier.plan_id = plan_id;
  }
  Status status = batch->Wait(waiter);
  if (!status.ok()) {
    RegistryLock lock(core_.registry);
    if (group->plans.contains(plan_id)) Remove(*group, plan_id);
    return status.WithContext(draft.context);
  }
  if (draft.first_nccl) group->communicates = true;
  RegistryLock lock(core_.registry);
  if (const auto made = group->plans.find(plan_id); made != group->plans.end())
    made->second.acknowledged = true;
  core_.registry.Touch(*group);
  core_.registry.TouchPlan(*group, plan_id);
  if (!draft.warnings.empty()) ReportWarnings(*group, draft, plan_id);
  return status;
}

void PlanService::ReportWarnings(GroupRecord& group, const Draft& draft, uint64_t plan_id) {
  std::string text;
  for (const std::string& warning : draft.warnings) text += (text.empty() ? "" : "; ") + warning;
  const Status status(Code::kFailedPrecondition, draft.context + ": " + text, {.reason = "PLAN_WARNING"});
  group.PostEvent(GroupService::EventOf(group, v1::Event::PLAN_WARNING, -1, status), -1,
                  core_.options.limits.events_per_session);
  // Plans of ever new shapes would fill the log with the same line.
  std::string kind = text;
  std::erase_if(kind, [](char letter) { return letter >= '0' && letter <= '9'; });
  if (group.logged_warnings.size() >= kMaxLoggedWarnings || !group.logged_warnings.insert(kind).second)
    return;
  core_.LogOf(
      group.payer.uid, LogSeverity::kWarning,
      "group=" + std::to_string(group.id) + " plan=" + std::to_string(plan_id) + " " + status.message());
}

void PlanService::Remove(GroupRecord& group, uint64_t plan_id) {
  Registry& registry = core_.registry;
  const auto it = group.plans.find(plan_id);
  if (!it->second.client) {
    engine::v1::Command command;
    command.mutable_remove_plan()->set_plan_id(plan_id);
    registry.PostToAll(group, command);
  }
  // A plan that failed to reach its engines keeps its barrier: the ranks have yet to get the verdict.
  const auto barrier = group.prepares.find(it->second.key);
  if (barrier != group.prepares.end() && barrier->second->plan_id == plan_id && barrier->second->over()) {
    group.prepares.erase(barrier);
  }
  registry.TouchPlan(group, plan_id);
  group.late_launches.erase(plan_id);
  registry.plan_groups.erase(plan_id);
  registry.ledger.Refund(group.payer, Resource::kPlans, 1);
  registry.ledger.Refund(group.payer, Resource::kPlanBytes, it->second.kept_bytes);
  group.plans.erase(it);
}

Result<std::shared_ptr<GroupRecord>> PlanService::GroupOfPlan(const SessionRecord& session, uint64_t plan_id,
                                                              int* rank) {
  Registry& registry = core_.registry;
  const Status unknown = NotFound("no plan " + std::to_string(plan_id) + " in this session");
  const auto it = registry.plan_groups.find(plan_id);
  std::shared_ptr<GroupRecord> group = it == registry.plan_groups.end() ? nullptr : it->second.lock();
  if (!group) return unknown;
  if (!registry.FindGroup(session, group->id, rank).ok()) return unknown;
  if (group->plans.at(plan_id).released[static_cast<size_t>(*rank)]) return unknown;
  return group;
}

Status PlanService::Arm(const SessionRef& session, const v1::ArmPlanRequest& request, const Waiter& waiter) {
  RegistryLock lock(core_.registry);
  TANDEM_RETURN_IF_ERROR(core_.registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group,
                          GroupOfPlan(*session, request.plan_id(), &rank));
  const PlanRecord& plan = group->plans.at(request.plan_id());
  const std::shared_ptr<PlanRecord::InClient> client = plan.client;
  if (!client) {
    return FailedPrecondition("plan '" + plan.key + "' is run by engines: it is not armed")
        .WithDetail({.reason = "ENGINE_PLACED", .field = "plan_id"});
  }
  const size_t r = static_cast<size_t>(rank);
  Barrier& armed = client->armed;
  if (!armed.over()) {
    armed.Take(r, waiter.deadline);
    const Status refusal = StatusOf(request.refusal());
    const std::string who = NameOf(*group, plan.key) + ": rank " + std::to_string(rank) + " cannot launch it";
    if (!refusal.ok()) {
      armed.End(Status(Code::kFailedPrecondition, who + ": " + refusal.message(),
                       BlameRank("NOT_ARMED", rank, {}, group->members[r].pid)));
    } else if (!group->lifecycle.why().ok()) {
      armed.End(group->lifecycle.why());
    } else if (armed.Complete()) {
      armed.End(Status::Ok());
    }
  }
  const Status own = armed.Await(lock, r, waiter);
  core_.registry.TouchPlan(*group, request.plan_id());
  TANDEM_RETURN_IF_ERROR(own);
  return armed.verdict();
}

Status PlanService::Release(const SessionRef& session, uint64_t plan_id) {
  Registry& registry = core_.registry;
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  int rank = 0;
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group, GroupOfPlan(*session, plan_id, &rank));
  PlanRecord& plan = group->plans.at(plan_id);
  plan.released[static_cast<size_t>(rank)] = true;
  registry.TouchPlan(*group, plan_id);
  if (std::all_of(plan.released.begin(), plan.released.end(), [](bool released) { return released; })) {
    Remove(*group, plan_id);
  }
  return Status::Ok();
}

}  // namespace tandem::daemon
