#include "daemon/control/control.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "daemon/control/base/status_proto.h"
#include "daemon/control/channels/channel_service.h"
#include "daemon/control/channels/launch_service.h"
#include "daemon/control/client_groups/failure_service.h"
#include "daemon/control/client_groups/renewal_service.h"
#include "daemon/control/engines/engine_service.h"
#include "daemon/control/engines/group_restorer.h"
#include "daemon/control/groups/asked_suspension.h"
#include "daemon/control/groups/group_installer.h"
#include "daemon/control/groups/group_service.h"
#include "daemon/control/groups/suspension_service.h"
#include "daemon/control/inspector.h"
#include "daemon/control/joins/join_service.h"
#include "daemon/control/memory/client_memory.h"
#include "daemon/control/memory/registration_service.h"
#include "daemon/control/memory/segment_service.h"
#include "daemon/control/plans/plan_service.h"
#include "daemon/control/plans/tuning_service.h"
#include "daemon/control/plans/workspace.h"
#include "daemon/control/records/control_core.h"
#include "daemon/control/records/pending_suspension.h"
#include "daemon/control/restart/adoption.h"
#include "daemon/control/restart/state_writer.h"
#include "daemon/control/sessions/checkpoint_service.h"
#include "daemon/control/sessions/event_service.h"
#include "daemon/control/sessions/session_service.h"
#include "daemon/control/tensors/tensor_service.h"

namespace tandem::daemon {
namespace {

std::string RandomHex(size_t bytes) {
  std::string hex;
  for (size_t i = 0; i < bytes; ++i) {
    uint8_t byte = 0;
    if (::getrandom(&byte, 1, 0) != 1) byte = static_cast<uint8_t>(i);
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", byte);
    hex += text;
  }
  return hex;
}

}  // namespace

// Each service uses those above it only. Destroyed from the last to the first; threads that use services end
// before.
struct Control::Services {
  Services(ControlOptions options, Engines& engines, const std::string& instance_id)
      : core(std::move(options), engines),
        inspector(core, instance_id),
        sessions(core, {joins, groups, tensors, registrations, channels, launches}, instance_id) {
    RegistryLock lock(core.registry);
    core.registry.engine_generation.resize(static_cast<size_t>(engines.count()));
    core.registry.engine_uses.resize(static_cast<size_t>(engines.count()));
    for (int gpu = 0; gpu < engines.count(); ++gpu) {
      core.registry.mailboxes.push_back(std::make_unique<EngineMailbox>(gpu, engines));
    }
  }
  // Mailboxes end their commands, which report to services, so they go first, and without the lock.
  ~Services() {
    sessions.EndDepartures();
    restorer.End();
    std::vector<std::unique_ptr<EngineMailbox>> mailboxes;
    RegistryLock lock(core.registry);
    mailboxes.swap(core.registry.mailboxes);
    lock.Unlock();
    mailboxes.clear();
  }

  ControlCore core;
  Inspector inspector;
  EventService events{core};
  SegmentService segments{core};
  GroupInstaller installer{core, segments};
  ClientMemoryService client_memory{core, segments};
  GroupService groups{core, segments, installer, client_memory};
  FailureService failures{core, groups};
  RenewalService renewals{core, installer};
  SuspensionService suspensions{core, segments, installer};
  AskedSuspension asked{core};
  GroupRestorer restorer{core, installer, groups};
  JoinService joins{core, installer, groups, restorer};
  TensorService tensors{core, segments, installer};
  RegistrationService registrations{core};
  WorkspaceService workspace{core, segments, installer};
  TuningService tuning{core};
  PlanService plans{core, installer, workspace, client_memory, tuning, groups};
  ChannelService channels{core};
  LaunchService launches{core, installer};
  EngineService engines{
      core, {segments, registrations, installer, groups, restorer, channels, launches, client_memory}};
  CheckpointService checkpoints{core};
  SessionService sessions;
};

Control::Control(ControlOptions options, Engines& engines)
    : instance_id_(RandomHex(8)),
      services_(std::make_unique<Services>(std::move(options), engines, instance_id_)) {
  for (int gpu = 0; gpu < engines.count(); ++gpu) {
    const EngineStatus status = engines.StatusOf(gpu);
    if (status.state == EngineState::kReady) OnEngineUp(gpu, status.generation);
  }
}

Control::~Control() { Stop(); }

const ControlOptions& Control::options() const { return services_->core.options; }
void Control::SetTopology(Topology topology) { services_->core.options.topology = std::move(topology); }
void Control::SetLeasePort(LeasePort* port) { services_->core.SetLeasePort(port); }

void Control::Stop() {
  Registry& registry = services_->core.registry;
  RegistryLock lock(registry);
  if (registry.stopping) return;
  registry.stopping = true;
  // Barrier end, sessions do not: the next tandemd must not see that.
  if (registry.state) registry.state->Close();
  const Status why = Unavailable("the daemon is stopping");
  for (const auto& [id, session] : registry.sessions) {
    session->events_changed.notify_all();
    session->launches_changed.notify_all();
    if (session->suspension != nullptr) session->suspension->Fail(why);
  }
  for (const auto& [id, group] : registry.groups) group->EndGatherings(why);
  services_->joins.Stop(why);
  registry.engines_changed.notify_all();
}

void Control::KeepState(Journal journal) {
  Registry& registry = services_->core.registry;
  RegistryLock lock(registry);
  const auto failed = [core = &services_->core](const Status& why) {
    core->Log(LogSeverity::kError, "jobs will not outlive a restart of tandemd: " + why.message());
  };
  const auto writer = std::make_shared<StateWriter>(
      std::move(journal), StateWriter::Reports{failed, services_->core.options.journal_difference});
  writer->WriteAll(registry);
  registry.state = writer;
}

void Control::BeginAdoption() { adopted_ = adoption_.get_future().share(); }

void Control::AwaitAdoption() const {
  if (adopted_.valid()) adopted_.wait();
}

void Control::Adopt(Journal journal, const SavedState& state, const AllHoldings& engines) {
  Services& of = *services_;
  Adoption adoption(of.core, {of.joins, of.segments, of.installer, of.restorer, of.groups, of.sessions},
                    engines);
  adoption.TakeOver(state);
  KeepState(std::move(journal));
  adoption_.set_value();
}

std::vector<std::pair<uint64_t, PeerIdentity>> Control::AwaySessions() {
  return services_->sessions.AwaySessions();
}
Result<v1::AttachReply> Control::Reattach(const PeerIdentity& peer, const v1::ReattachRequest& request) {
  return services_->sessions.Reattach(peer, request);
}

void Control::Leave() {
  leaving_ = true;
  Stop();
}

Result<v1::AttachReply> Control::Attach(const PeerIdentity& peer, const v1::AttachRequest& request) {
  return services_->sessions.Attach(peer, request);
}
Result<SessionRef> Control::Authenticate(std::string_view token) {
  return services_->sessions.Authenticate(token);
}
Status Control::AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds) {
  return services_->sessions.AddTransfer(session_id, part, std::move(fds));
}
std::set<uint64_t> Control::SessionIds() { return services_->sessions.Ids(); }
bool Control::ReapOrphans() { return services_->sessions.ReapOrphans(); }
void Control::SessionLost(uint64_t session_id, const std::string& why) {
  services_->sessions.Lost(session_id, why);
}
void Control::LeaseClosed(uint64_t session_id) { services_->sessions.LeaseClosed(session_id); }
Status Control::Detach(const SessionRef& session, const Waiter& waiter) {
  return services_->sessions.Detach(session, waiter);
}
Status Control::Evict(uint64_t session_id, const std::string& by) {
  return services_->sessions.Evict(session_id, by);
}
Result<std::shared_ptr<void>> Control::Admit(const SessionRef& session) {
  return services_->sessions.Admit(session);
}
uint64_t Control::OpenEvents(const SessionRef& session) { return services_->events.Open(session); }
Result<std::optional<v1::Event>> Control::NextEvent(const SessionRef& session, uint64_t stream,
                                                    const Waiter& waiter) {
  return services_->events.Next(session, stream, waiter);
}

Waiter Control::WaiterFor(uint64_t deadline_ms, std::function<bool()> cancelled) const {
  const auto limit = static_cast<uint64_t>(options().maximal_deadline.count());
  const auto time =
      deadline_ms == 0 ? options().default_deadline : std::chrono::milliseconds(std::min(deadline_ms, limit));
  Waiter waiter = Waiter::For(time);
  waiter.cancelled = std::move(cancelled);
  return waiter;
}

Result<v1::JoinGroupReply> Control::JoinGroup(const SessionRef& session, const v1::JoinGroupRequest& request,
                                              const Waiter& waiter) {
  return services_->joins.Join(session, request, waiter);
}
Status Control::LeaveGroup(const SessionRef& session, uint64_t group_id, const Waiter& waiter) {
  return services_->groups.Leave(session, group_id, waiter);
}

Result<v1::EmptyReply> Control::Empty(const SessionRef& session, const v1::EmptyRequest& request) {
  return services_->tensors.Empty(session, request);
}
Result<v1::RendezvousReply> Control::Rendezvous(const SessionRef& session,
                                                const v1::RendezvousRequest& request, const Waiter& waiter) {
  return services_->tensors.MakeSymmetric(session, request, waiter);
}
Status Control::Free(const SessionRef& session, uint64_t tensor_id) {
  return services_->tensors.Free(session, tensor_id);
}
Result<v1::RegisterTensorReply> Control::RegisterTensor(const SessionRef& session,
                                                        const v1::RegisterTensorRequest& request,
                                                        const Waiter& waiter) {
  return services_->registrations.Register(session, request, waiter);
}
Status Control::Deregister(const SessionRef& session, uint64_t registration_id, const Waiter& waiter) {
  return services_->registrations.Deregister(session, registration_id, waiter);
}

Result<v1::PrepareReply> Control::Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                          const Waiter& waiter) {
  return services_->plans.Prepare(session, request, waiter);
}
Result<v1::PreviewReply> Control::Preview(const SessionRef& session, const v1::PreviewRequest& request) {
  return services_->plans.Preview(session, request);
}
Status Control::ArmPlan(const SessionRef& session, const v1::ArmPlanRequest& request, const Waiter& waiter) {
  return services_->plans.Arm(session, request, waiter);
}
Status Control::ReportFailure(const SessionRef& session, const v1::ReportFailureRequest& request) {
  return services_->failures.Report(session, request);
}
Result<v1::RenewGroupReply> Control::RenewGroup(const SessionRef& session,
                                                const v1::RenewGroupRequest& request, const Waiter& waiter) {
  return services_->renewals.Renew(session, request, waiter);
}
Result<v1::ServeSuspensionReply> Control::ServeSuspension(const SessionRef& session,
                                                          const v1::ServeSuspensionRequest& request,
                                                          const Waiter& waiter) {
  return services_->asked.Serve(session, request, waiter);
}

void Control::EndLongSuspensions() {
  services_->groups.EndLongSuspensions();
  services_->sessions.EndLongCheckpoints();
}

Result<v1::BeginCheckpointReply> Control::BeginCheckpoint(const SessionRef& session) {
  return services_->checkpoints.Begin(session);
}
Status Control::LetGo(uint64_t session_id, const std::string& secret) {
  return services_->checkpoints.LetGo(session_id, secret);
}
Result<v1::AttachReply> Control::Restore(const PeerIdentity& peer, const v1::RestoreRequest& request) {
  TANDEM_ASSIGN_OR_RETURN(const SessionRef session, services_->checkpoints.Restore(peer, request));
  return services_->sessions.ReplyTo(*session);
}
Result<v1::TakeSharedReply> Control::TakeShared(const SessionRef& session,
                                                const v1::TakeSharedRequest& request) {
  return services_->checkpoints.TakeShared(session, request);
}

Result<AskedJob> Control::SuspendJob(uint64_t session_id, const std::function<bool(uint32_t uid)>& may,
                                     const Waiter& waiter) {
  return services_->asked.Suspend(session_id, may, waiter);
}

Result<AskedJob> Control::ResumeJob(uint64_t session_id, const std::function<bool(uint32_t uid)>& may,
                                    const Waiter& waiter) {
  return services_->asked.Resume(session_id, may, waiter);
}

Result<v1::SuspendGroupReply> Control::SuspendGroup(const SessionRef& session,
                                                    const v1::SuspendGroupRequest& request,
                                                    const Waiter& waiter) {
  return services_->suspensions.Step(session, request, waiter);
}
Status Control::ReleasePlan(const SessionRef& session, uint64_t plan_id) {
  return services_->plans.Release(session, plan_id);
}

Result<v1::OpenChannelReply> Control::OpenChannel(const SessionRef& session,
                                                  const v1::OpenChannelRequest& request,
                                                  const Waiter& waiter) {
  return services_->channels.Open(session, request, waiter);
}
Status Control::CloseChannel(const SessionRef& session, uint64_t channel_id, const Waiter& waiter) {
  return services_->channels.Close(session, channel_id, waiter);
}
Result<v1::LaunchReply> Control::Launch(const SessionRef& session, const v1::LaunchRequest& request) {
  return services_->launches.Launch(session, request);
}
Status Control::WaitLaunch(const SessionRef& session, uint64_t launch_id, const Waiter& waiter) {
  return services_->launches.Wait(session, launch_id, waiter);
}

void Control::SetAdmission(Admission admission) {
  Registry& registry = services_->core.registry;
  RegistryLock lock(registry);
  if (registry.admission == admission) return;
  registry.admission = admission;
  registry.engines_changed.notify_all();
  if (admission != Admission::kDraining) return;
  v1::Event event;
  event.set_kind(v1::Event::DRAINING);
  event.set_rank(-1);
  FillStatusDetail(registry.Admits("sessions and groups"), event.mutable_status());
  services_->events.PostToAll(event);
}

void Control::SetGpuCordon(int gpu, const std::string& why) {
  Registry& registry = services_->core.registry;
  RegistryLock lock(registry);
  registry.cordoned_gpus.erase(gpu);
  if (!why.empty()) registry.cordoned_gpus[gpu] = why;
}

void Control::SetLimits(const ControlLimits& limits) {
  RegistryLock lock(services_->core.registry);
  // The others are read without the lock: `sessions` and `calls_per_uid` size the servers' threads.
  ControlLimits& own = services_->core.options.limits;
  own.sessions_per_uid = limits.sessions_per_uid;
  own.groups = limits.groups;
  own.plans = limits.plans;
  own.plan_bytes = limits.plan_bytes;
  own.tensors = limits.tensors;
  own.descriptors = limits.descriptors;
  own.segment_bytes = limits.segment_bytes;
  own.registered_bytes = limits.registered_bytes;
  own.cgroup = limits.cgroup;
  services_->core.registry.ledger.SetLimits(own);
}

void Control::SetAllow(std::vector<AllowRule> rules) {
  RegistryLock lock(services_->core.registry);
  services_->core.registry.ledger.SetRules(rules);
  services_->core.options.allow = std::move(rules);
}

std::pair<uint64_t, uint64_t> Control::WaitDrained(const Waiter& waiter) {
  Registry& registry = services_->core.registry;
  RegistryLock lock(registry);
  waiter.Wait(lock, registry.engines_changed, [&]() TANDEM_REQUIRES(registry_mutex) {
    return registry.groups.empty() || registry.admission != Admission::kDraining || registry.stopping;
  });
  return {registry.sessions.size(), registry.groups.size()};
}

ControlSnapshot Control::Snapshot() { return services_->inspector.Snapshot(); }
std::vector<SessionSnapshot> Control::SnapshotSessions() { return services_->inspector.SnapshotSessions(); }
std::vector<GroupSnapshot> Control::SnapshotGroups() { return services_->inspector.SnapshotGroups(); }
std::vector<PoolSnapshot> Control::SnapshotPools() { return services_->inspector.SnapshotPools(); }
PlanPage Control::SnapshotPlans(const PlanQuery& query) { return services_->inspector.SnapshotPlans(query); }
std::vector<PlanSnapshot> Control::SnapshotPlans() { return SnapshotPlans(PlanQuery()).plans; }
std::vector<ChannelSnapshot> Control::SnapshotChannels() { return services_->inspector.SnapshotChannels(); }
Result<plan::TuningEntry> Control::PutTuning(const v1::OpRequest& request,
                                             const std::vector<std::string>& gpu_uuids,
                                             std::vector<plan::TuningCandidate> candidates) {
  return services_->tuning.Put(request, gpu_uuids, std::move(candidates));
}

void Control::OnEngineUp(int gpu, uint64_t generation) {
  AwaitAdoption();
  services_->engines.OnUp(gpu, generation);
}
void Control::OnEngineDown(int gpu, uint64_t generation, const std::string& reason) {
  AwaitAdoption();
  services_->engines.OnDown(gpu, generation, reason);
}
bool Control::MayRest(int gpu, uint64_t generation) {
  AwaitAdoption();
  return services_->engines.MayRest(gpu, generation);
}
void Control::OnLaunchDone(int gpu, const engine::v1::LaunchDone& done) {
  AwaitAdoption();
  StatusDetail detail{.reason = done.reason(), .who = done.who()};
  detail.ranks.assign(done.ranks().begin(), done.ranks().end());
  detail.pid = done.pid();
  if (done.has_gpu()) detail.gpu = done.gpu();
  if (done.has_started()) detail.started = done.started();
  services_->launches.End(gpu, done.launch_id(),
                          done.code() == 0
                              ? Status::Ok()
                              : Status(static_cast<Code>(done.code()), done.message(), std::move(detail)));
}
void Control::OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) {
  AwaitAdoption();
  services_->engines.OnLaunchFailed(gpu, failed);
}
void Control::OnLate(int, const engine::v1::Late& late) {
  AwaitAdoption();
  services_->engines.OnLate(late);
}
void Control::OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) {
  AwaitAdoption();
  services_->engines.OnPeerSilent(gpu, silent);
}

}  // namespace tandem::daemon
