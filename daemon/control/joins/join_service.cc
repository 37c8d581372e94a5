#include "daemon/control/joins/join_service.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "common/op_tables.h"
#include "daemon/control/base/blame.h"
#include "daemon/control/base/capabilities.h"
#include "daemon/control/base/validate.h"
#include "daemon/control/joins/join_checks.h"
#include "daemon/topology/shared_gpus.h"

namespace tandem::daemon {
namespace {

// The longest time until a cancelled call is seen to be cancelled here.
constexpr std::chrono::seconds kCancellationArrives{2};

std::string ScopeOf(uint32_t uid, const v1::JoinGroupRequest& request) {
  // The job key has any bytes; lengths first keep scopes apart.
  return std::to_string(uid) + "/" + std::to_string(request.job_key().size()) + "/" + request.job_key() +
         "/" + request.name();
}

}  // namespace

Status JoinService::AwaitNameFree(RegistryLock& lock, const std::string& scope, const SessionRef& session,
                                  const v1::JoinGroupRequest& request, const Waiter& waiter) {
  Registry& registry = core_.registry;
  const std::string name = "group '" + request.name() + "'";
  for (;;) {
    TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
    const std::shared_ptr<GroupRecord> current = registry.names[scope].current;
    if (!current) return Status::Ok();
    const bool ending = current->state() == GroupState::kBroken || current->state() == GroupState::kClosing;
    for (size_t rank = 0; rank < current->members.size(); ++rank) {
      const MemberRecord& member = current->members[rank];
      if (member.session_id != session->id || member.left) continue;
      if (!ending) {
        return AlreadyExists("this session is rank " + std::to_string(rank) + " of " + name + " already")
            .WithDetail(BlameRank("JOINED", static_cast<int>(rank), "name", member.pid));
      }
      groups_.RemoveMember(current, static_cast<int>(rank), false);
    }
    if (registry.names[scope].current != current) continue;
    if (current->Lives()) {
      const std::string count = std::to_string(current->world());
      std::vector<uint32_t> all;
      for (size_t rank = 0; rank < current->world(); ++rank) all.push_back(static_cast<uint32_t>(rank));
      return AlreadyExists(name + " is complete: its " + count + " ranks are taken by other processes")
          .WithDetail(BlameRanks("JOINED", std::move(all), "name"));
    }
    const std::shared_ptr<std::condition_variable> freed = registry.names[scope].freed;
    if (waiter.Wait(lock, *freed, [&]() TANDEM_REQUIRES(registry_mutex) {
          return registry.names[scope].current != current || registry.stopping || session->ended ||
                 current->Lives();
        })) {
      continue;
    }
    if (waiter.Cancelled()) return Status(Code::kCancelled, "the caller went away");
    std::vector<uint32_t> there;
    for (size_t rank = 0; rank < current->members.size(); ++rank) {
      if (!current->members[rank].left) there.push_back(static_cast<uint32_t>(rank));
    }
    const std::string incarnation = "incarnation " + std::to_string(current->incarnation) + " of " + name;
    const bool joining =
        current->state() == GroupState::kInstalling || current->state() == GroupState::kDoomed;
    return DeadlineExceeded(joining ? incarnation + " is being made by other processes"
                                    : incarnation + " has not ended: " + RankList(there) + " have not left")
        .WithDetail(BlameRanks("OLD_INCARNATION", there));
  }
}

void JoinService::AwaitMade(RegistryLock& lock, const std::string& scope, const Waiter& waiter) {
  Registry& registry = core_.registry;
  const auto name = registry.names.find(scope);
  if (name == registry.names.end()) return;
  const std::shared_ptr<std::condition_variable> freed = name->second.freed;
  (void)waiter.Wait(lock, *freed, [&]() TANDEM_REQUIRES(registry_mutex) {
    const auto now = registry.names.find(scope);
    return now == registry.names.end() || !now->second.current || registry.stopping ||
           now->second.current->state() != GroupState::kInstalling;
  });
}

void JoinService::AwaitBrokenOff(RegistryLock& lock, const std::string& scope, const SessionRef& session,
                                 const v1::JoinGroupRequest& request, const Waiter& waiter) {
  Registry& registry = core_.registry;
  const auto name = registry.names.find(scope);
  if (name == registry.names.end()) return;
  const std::shared_ptr<std::condition_variable> freed = name->second.freed;
  const size_t rank = static_cast<size_t>(request.rank());
  Waiter wait_budget = waiter;
  wait_budget.deadline = std::min(waiter.deadline, Waiter::Clock::now() + kCancellationArrives);
  (void)wait_budget.Wait(lock, *freed, [&]() TANDEM_REQUIRES(registry_mutex) {
    const auto now = registry.names.find(scope);
    if (now == registry.names.end() || !now->second.joining) return true;
    JoinBarrier& joining = *now->second.joining;
    joining.DropCancelled();
    return rank >= joining.world() || !joining.Taken(rank) || joining.parties[rank].session != session;
  });
}

Status JoinService::TakeVerdict(NameRecord& name, const SessionRecord& session, int rank) {
  if (!name.verdict) return Status::Ok();
  JoinVerdict& verdict = *name.verdict;
  const bool heard = verdict.ranks.contains(rank) || verdict.sessions.contains(session.id);
  if (name.joining || heard || session.peer.started > verdict.since) {
    // The next attempt has begun.
    name.verdict.reset();
    return Status::Ok();
  }
  verdict.ranks.insert(rank);
  verdict.sessions.insert(session.id);
  return verdict.status;
}

Status JoinService::TakeSlot(JoinBarrier& barrier, const SessionRef& session,
                             const v1::JoinGroupRequest& request, int gpu, const Waiter& waiter) {
  const JoinClaim claim{request, session->peer.pid, gpu};
  for (size_t rank = 0; rank < barrier.world(); ++rank) {
    const JoinParty& other = barrier.parties[rank];
    if (!barrier.Taken(rank)) continue;
    if (other.session == session) {
      return AlreadyExists("group '" + request.name() + "': the session that asks for rank " +
                           std::to_string(request.rank()) + " is rank " + std::to_string(rank) + " already")
          .WithDetail(BlameRank("JOINED", static_cast<int>(rank), "rank", session->peer.pid));
    }
    TANDEM_RETURN_IF_ERROR(CompareJoins({other.request, other.session->peer.pid, other.gpu}, claim));
  }
  const size_t own = static_cast<size_t>(request.rank());
  for (size_t rank = 0; rank < barrier.world(); ++rank) {
    if (barrier.parties[rank].session == session) barrier.Forget(rank);
  }
  barrier.parties[own] = {session, request, gpu};
  barrier.Take(own, waiter.deadline);
  return Status::Ok();
}

void JoinService::Fail(const std::string& scope, const Status& why, int world, const SessionRecord* caller,
                       int rank) {
  Registry& registry = core_.registry;
  NameRecord& name = registry.names[scope];
  JoinVerdict verdict{why, Waiter::Clock::now(), {}, {}};
  if (caller != nullptr) {
    verdict.ranks.insert(rank);
    verdict.sessions.insert(caller->id);
  }
  if (name.joining) {
    name.joining->EndGathering(why);
    for (size_t r = 0; r < name.joining->world(); ++r) {
      if (!name.joining->Taken(r)) continue;
      verdict.ranks.insert(static_cast<int>(r));
      verdict.sessions.insert(name.joining->parties[r].session->id);
    }
    name.joining.reset();
  }
  if (static_cast<int>(verdict.ranks.size()) < world) {
    name.verdict = std::move(verdict);
    registry.KeepVerdict(scope);
  }
  registry.ForgetName(scope);
}

const GroupRecord* JoinService::MadeFor(const std::string& scope, const SessionRecord& session,
                                        const v1::JoinGroupRequest& request) const {
  const auto name = core_.registry.names.find(scope);
  if (name == core_.registry.names.end() || !name->second.current) return nullptr;
  const GroupRecord& group = *name->second.current;
  const size_t rank = static_cast<size_t>(request.rank());
  if (!group.Lives() || group.world() != static_cast<size_t>(request.world_size()) || rank >= group.world())
    return nullptr;
  const MemberRecord& member = group.members[rank];
  return member.session_id == session.id && !member.left ? &group : nullptr;
}

Result<v1::JoinGroupReply> JoinService::Join(const SessionRef& session, const v1::JoinGroupRequest& request,
                                             const Waiter& waiter) {
  TANDEM_RETURN_IF_ERROR(ValidateJoin(request));
  Registry& registry = core_.registry;
  const int rank = request.rank();
  const std::string scope = ScopeOf(session->peer.uid, request);
  const std::string context = "group '" + request.name() + "': rank " + std::to_string(rank);
  Status wrong = CheckJoinRequest(request, session->peer.pid);
  const Result<int> gpu = core_.UseGpu(*session, request.gpu_uuid());
  if (wrong.ok() && !gpu.ok()) {
    wrong = gpu.status().WithContext(context).WithDetail(
        BlameRank(gpu.status().detail().reason, rank, "gpu_uuid", session->peer.pid));
  }
  if (wrong.ok()) {
    wrong = core_.CheckCrashLoop(*gpu);
    if (!wrong.ok()) {
      StatusDetail detail = wrong.detail();
      detail.ranks = {static_cast<uint32_t>(rank)};
      wrong = wrong.WithContext(context).WithDetail(std::move(detail));
    }
  }
  RegistryLock lock(registry);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  if (request.again()) {
    AwaitMade(lock, scope, waiter);
    if (const GroupRecord* const made = MadeFor(scope, *session, request)) {
      v1::JoinGroupReply reply;
      FillReply(*made, &reply);
      return reply;
    }
  }
  AwaitBrokenOff(lock, scope, session, request, waiter);
  TANDEM_RETURN_IF_ERROR(registry.SessionAlive(*session));
  TANDEM_RETURN_IF_ERROR(registry.Admits("groups"));
  registry.ForgetVerdicts(Waiter::Clock::now() - core_.options.verdict_memory);
  TANDEM_RETURN_IF_ERROR(AwaitNameFree(lock, scope, session, request, waiter));
  TANDEM_RETURN_IF_ERROR(TakeVerdict(registry.names[scope], *session, rank));
  if (wrong.ok()) {
    if (const Status cordoned = registry.AdmitsOn(*gpu); !cordoned.ok()) {
      StatusDetail detail = cordoned.detail();
      detail.ranks = {static_cast<uint32_t>(rank)};
      wrong = cordoned.WithContext(context).WithDetail(std::move(detail));
    }
  }
  if (wrong.ok()) wrong = registry.ledger.Check(session->payer(), Resource::kGroups, 1);
  std::shared_ptr<JoinBarrier> barrier = registry.names[scope].joining;
  if (barrier) barrier->DropCancelled();
  if (wrong.ok() && !barrier) {
    const size_t world = static_cast<size_t>(request.world_size());
    barrier = std::make_shared<JoinBarrier>(world, "group '" + request.name() + "'", "join",
                                            Barrier::WhileWorking::kAwaitsTheVerdict);
    barrier->parties.resize(world);
    registry.names[scope].joining = barrier;
  }
  if (wrong.ok()) wrong = TakeSlot(*barrier, session, request, *gpu, waiter);
  if (!wrong.ok()) {
    // Ranks that wait would wait in vain: all get the verdict at once.
    Fail(scope, wrong, barrier ? static_cast<int>(barrier->world()) : request.world_size(), session.get(),
         rank);
    return wrong;
  }
  if (barrier->Complete()) {
    barrier->BeginWork();
    registry.names[scope].joining.reset();
    const Status made = MakeAndInstall(lock, scope, *barrier);
    barrier->End(made);
    registry.names[scope].freed->notify_all();
    registry.ForgetName(scope);
  }
  const Status own = barrier->Await(lock, static_cast<size_t>(rank), waiter);
  const bool current = registry.names[scope].joining == barrier;
  if (!own.ok()) {
    if (current && barrier->Empty()) registry.names[scope].joining.reset();
    registry.ForgetName(scope);
    return own;
  }
  // The first rank whose deadline passed made the verdict: it is kept for those that have not come.
  if (current && barrier->over()) Fail(scope, barrier->verdict(), request.world_size(), session.get(), rank);
  registry.ForgetName(scope);
  TANDEM_RETURN_IF_ERROR(barrier->verdict());
  v1::JoinGroupReply reply;
  FillReply(*barrier->group, &reply);
  return reply;
}

Status JoinService::MakeAndInstall(RegistryLock& lock, const std::string& scope, JoinBarrier& barrier) {
  // A GPU may have been cordoned since its rank came.
  for (const JoinParty& party : barrier.parties) TANDEM_RETURN_IF_ERROR(core_.registry.AdmitsOn(party.gpu));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<GroupRecord> group, MakeGroup(scope, barrier));
  const Waiter waiter = GroupInstaller::ForAllRanks(group, barrier.FirstDeadline());
  Status status = lock.Outside([&] {
    std::lock_guard work(group->work);
    return installer_.Install(*group, waiter);
  });
  if (group->state() == GroupState::kDoomed) status = group->lifecycle.why();
  if (!status.ok()) {
    groups_.Destroy(group);
    return status;
  }
  group->lifecycle.Apply(GroupEvent::kInstalled);
  core_.registry.Touch(*group);
  barrier.group = group;
  // An engine that had received the group may have ended before the last one did: its end passed over a group
  // that was still being installed.
  if (!installer_.SameEngines(*group)) {
    group->lifecycle.Apply(GroupEvent::kEngineEnded);
    installer_.Uninstall(*group, -1);
    restorer_.RestoreSoon(group);
  }
  return Status::Ok();
}

Result<std::shared_ptr<GroupRecord>> JoinService::MakeGroup(const std::string& scope,
                                                            const JoinBarrier& barrier) {
  Registry& registry = core_.registry;
  const JoinParty& first = barrier.parties[0];
  auto group = std::make_shared<GroupRecord>(core_.IllegalTransitionHandler());
  group->id = registry.NewGroupId();
  group->scope = scope;
  group->name = first.request.name();
  group->payer = first.session->payer();
  group->options.insert(first.request.options().begin(), first.request.options().end());
  group->launch_deadline_ms = first.request.launch_deadline_ms() != 0
                                  ? first.request.launch_deadline_ms()
                                  : static_cast<uint64_t>(core_.options.default_launch_deadline.count());
  group->on_slow_placement = static_cast<OnSlowPlacement>(first.request.on_slow_placement());
  for (const JoinParty& party : barrier.parties) {
    MemberRecord member;
    member.session = party.session;
    member.session_id = party.session->id;
    member.pid = party.session->peer.pid;
    member.gpu = party.gpu;
    member.client_products = party.request.client_products();
    member.client_signal_bytes = party.request.client_signal_bytes();
    member.renews_engines = party.request.renews_engines();
    group->gpus.push_back(party.gpu);
    group->members.push_back(std::move(member));
  }
  TANDEM_RETURN_IF_ERROR(CheckGpuSharing(core_.GpuSharingOf(*group), group->on_slow_placement)
                             .WithContext("group '" + group->name + "'"));
  TANDEM_RETURN_IF_ERROR(registry.ledger.Charge(group->payer, Resource::kGroups, 1));
  NameRecord& name = registry.names[scope];
  group->incarnation = ++name.incarnation;
  for (const JoinParty& party : barrier.parties) party.session->groups.insert(group->id);
  FillContext(*group);
  registry.groups[group->id] = group;
  name.current = group;
  return group;
}

void JoinService::FillContext(GroupRecord& group) const {
  plan::GroupContext& context = group.context;
  context.topology = Subset(core_.options.topology, group.gpus);
  const EngineCapabilities capabilities = SharedCapabilities(core_.engines, group.gpus);
  context.packet_kernels = capabilities.packet_kernels;
  context.fused_kernels = true;
  context.fused_by_choice = core_.options.fused_by_choice;
  context.placement = core_.options.placement;
  if (const auto asked = group.options.find("placement"); asked != group.options.end()) {
    // CheckJoinRequest has parsed it.
    if (const auto parsed = plan::ParsePlacement(asked->second); parsed.ok()) context.placement = *parsed;
  }
  context.determinism = core_.options.determinism;
  if (const auto asked = group.options.find("determinism"); asked != group.options.end())
    context.determinism = ValueOf<Determinism>(asked->second).value_or(context.determinism);
  for (size_t rank = 0; rank < group.members.size() && context.no_client_plans.empty(); ++rank) {
    const uint32_t protocol = group.members[rank].session->protocol;
    if (protocol >= kClientPlacementProtocol) continue;
    context.no_client_plans = "the client of rank " + std::to_string(rank) + " speaks protocol " +
                              std::to_string(protocol) + ", which has no plans in clients";
  }
  bool products = true, laid_out_alike = true;
  for (const MemberRecord& member : group.members) {
    products = products && member.client_products;
    laid_out_alike = laid_out_alike && member.client_signal_bytes == plan::kClientSignalAreaBytes;
  }
  context.dense_packets = context.packet_kernels && laid_out_alike;
  const bool fused = products && laid_out_alike;
  context.client_kernels = !capabilities.on_gpu ? plan::ClientKernels::kAll
                           : fused              ? plan::ClientKernels::kFused
                           : products           ? plan::ClientKernels::kProducts
                                                : plan::ClientKernels::kCollectives;
  for (size_t rank = 0; rank < group.world(); ++rank) {
    const std::string why = core_.engines.StatusOf(group.gpus[rank]).no_fused_kernels;
    if (why.empty()) continue;
    context.fused_kernels = false;
    context.no_fused_kernels = "the engine of rank " + std::to_string(rank) + " has no fused kernels: " + why;
    break;
  }
  for (const int gpu : group.gpus) {
    const int sms = static_cast<int>(core_.engines.StatusOf(gpu).kernel_sms);
    if (sms > 0 && (context.kernel_sms == 0 || sms < context.kernel_sms)) context.kernel_sms = sms;
  }
  if (SharesDevice(context.topology)) {
    context.nccl = false;
    context.no_nccl = "ranks of the group share a GPU, which NCCL refuses";
  }
  group.topology_class = TopologyClassName(Classify(context.topology));
}

void JoinService::FillReply(const GroupRecord& group, v1::JoinGroupReply* reply) const {
  const plan::GroupContext& context = group.context;
  reply->set_group_id(group.id);
  reply->set_incarnation(group.incarnation);
  reply->set_topology_class(group.topology_class);
  const GpuSharing placement = core_.GpuSharingOf(group);
  reply->set_placement(placement.text);
  reply->set_slow_placement(placement.slow);
  reply->set_generation(group.generation);
  reply->set_renews_engines(group.RenewsEngines());
  const int world = context.topology.size();
  for (int i = 0; i < world; ++i) {
    reply->add_gpu_uuids(context.topology.gpus[static_cast<size_t>(i)].uuid);
    for (int j = 0; j < world; ++j) reply->add_link_counts(i == j ? 0 : context.topology.LinkCount(i, j));
  }
  const TopologyClass topology_class = Classify(context.topology);
  for (const auto& [op, name] : kNamedValues<Op>) {
    for (Algorithm algorithm : plan::AlgorithmsOf(op)) {
      v1::Offer* offer = reply->add_offers();
      offer->set_op(static_cast<uint32_t>(op));
      offer->set_algorithm(static_cast<uint32_t>(algorithm));
      // Refused are algorithms that this group can never run, whatever the shapes; plans have the bounds by
      // size.
      if (algorithm == Algorithm::kFused && !context.fused_kernels) {
        offer->set_reason(context.no_fused_kernels);
      } else if (algorithm == Algorithm::kLowLatency && !context.packet_kernels) {
        offer->set_reason(
            "needs the CUDA backend's packet kernels in every engine; this daemon's backend is " +
            core_.options.backend);
      } else if (algorithm == Algorithm::kHybridCubeMesh &&
                 topology_class != TopologyClass::kHybridCubeMesh) {
        offer->set_reason("needs a hybrid cube mesh; this group is " + group.topology_class);
      } else if (algorithm == Algorithm::kNccl && !context.nccl) {
        offer->set_reason(context.no_nccl);
      } else {
        offer->set_available(true);
      }
    }
  }
}

void JoinService::EndJoinsOf(const SessionRecord& session, const std::string& how) {
  struct Failed {
    std::string scope;
    int world;
    Status why;
  };
  std::vector<Failed> failed;
  for (auto& [scope, name] : core_.registry.names) {
    if (!name.joining) continue;
    for (size_t rank = 0; rank < name.joining->world(); ++rank) {
      // A process that dies takes its call and its session along, in any order: a cancelled call counts too.
      const JoinParty& party = name.joining->parties[rank];
      if (party.session.get() != &session || !(name.joining->Taken(rank) || name.joining->Withdrew(rank)))
        continue;
      const std::string who =
          "rank " + std::to_string(rank) + " (pid " + std::to_string(session.peer.pid) + ")";
      failed.push_back(
          {scope, static_cast<int>(name.joining->world()),
           Status(Code::kUnavailable,
                  who + " of group '" + party.request.name() + "' " + how + " while the group was joining",
                  BlameRank("RANK_LOST", static_cast<int>(rank), {}, session.peer.pid))});
      break;
    }
  }
  for (const Failed& one : failed) Fail(one.scope, one.why, one.world, nullptr, -1);
}

void JoinService::Stop(const Status& why) {
  for (auto& [scope, name] : core_.registry.names) {
    if (name.joining) name.joining->EndGathering(why);
    name.joining.reset();
    name.freed->notify_all();
  }
}

}  // namespace tandem::daemon
