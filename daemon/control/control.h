// File: control.h
//
// `Control`: tandemd's control plane without its sockets, in the terms of the clients' protocol. A facade:
// each call goes to the service that owns its subject, and all services share the registry.
//
//   restart/        the journal, and taking over from an earlier tandemd
//   sessions/       sessions, their events, and their ends
//   joins/          ranks meet under a name
//   engines/        reports of engines, restoration
//   plans/          plans, workspaces, measured times
//   tensors/        symmetric tensors
//   channels/       channels, launches by gRPC
//   client_groups/  failures and renewals of client-placed plans
//   groups/         installation and end of a group
//   memory/         segments, registrations, memory of client-placed plans
//   records/        the registry and the states of a group
//   base/           parts that know no records
//
// Thread rule: every function may be called from any thread. Functions that take a Waiter block until their
// answer is there, the waiter's deadline has passed or its caller has gone. One mutex guards the registry; it
// is never held across a wait or a call to an engine. Ids of other sessions are NOT_FOUND.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/control/base/control_options.h"
#include "daemon/control/base/foreign_fds.h"
#include "daemon/control/base/lease_port.h"
#include "daemon/control/base/snapshot.h"
#include "daemon/control/base/waiter.h"
#include "daemon/control/restart/journal.h"
#include "daemon/planner/tuning/tuning_table.h"
#include "daemon/supervisor/engine_holdings.h"
#include "daemon/supervisor/engines.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

struct SavedState;
struct SessionRecord;
using SessionRef = std::shared_ptr<SessionRecord>;

class Control final : public EngineListener {
 public:
  // `engines` outlives this. Engines that are ready already are taken as up.
  Control(ControlOptions options, Engines& engines);
  ~Control() override;

  // The topology with the links that the engines have found. Before the first session attaches.
  void SetTopology(Topology topology);
  // Set before the first session attaches, and null before the port is destroyed: calls under way are waited
  // for.
  void SetLeasePort(LeasePort* port);
  // Makes every waiting call return UNAVAILABLE; nothing new is accepted.
  void Stop();

  // --- a restart of tandemd (docs/restart.md)
  // Keeps the registry's state in `journal` for the next tandemd. Before the first session attaches.
  void KeepState(Journal journal);
  // Reports of engines wait from now on, until Adopt has been called: engines that are adopted speak first.
  void BeginAdoption();
  // Takes an earlier tandemd's sessions, groups and plans over, and continues its journal. `engines`: what
  // each engine holds, all of which are ready under the generation named there; none: the GPU's engine has
  // ended.
  void Adopt(Journal journal, const SavedState& state, const AllHoldings& engines);
  // The sessions that wait for their leases, and their processes.
  std::vector<std::pair<uint64_t, PeerIdentity>> AwaySessions();
  Result<v1::AttachReply> Reattach(const PeerIdentity& peer, const v1::ReattachRequest& request);
  // Stop, for a tandemd that leaves everything to the next one: what comes from here on is not kept.
  void Leave();
  // After Leave: an answer that a call gives is not to be believed.
  bool leaving() const { return leaving_.load(); }

  // --- sessions
  Result<v1::AttachReply> Attach(const PeerIdentity& peer, const v1::AttachRequest& request);
  // The session of a token, compared in constant time. UNAUTHENTICATED: reason NO_TOKEN, BAD_TOKEN, EVICTED
  // for a session that an operator ended, or SESSION_LOST for one that ended otherwise or belongs to an
  // earlier daemon.
  Result<SessionRef> Authenticate(std::string_view token);
  // A session's descriptors as they come over its lease.
  Status AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds);
  // Closes unclaimed descriptors that are too old; true while some are left.
  bool ReapOrphans();
  // The sessions that there are.
  std::set<uint64_t> SessionIds();
  // The process has ended: its groups break, and everything of it is freed.
  void SessionLost(uint64_t session_id, const std::string& why);
  // A process that lives on has closed its lease, as by dropping the last client without Detach: it leaves
  // its groups in the background. It counts as lost if its launches do not end within
  // ControlOptions::departure_deadline.
  void LeaseClosed(uint64_t session_id);
  Status Detach(const SessionRef& session, const Waiter& waiter);
  // Ends a session as if its process had died; its client gets the reason. `by`: the operator, for people.
  // NOT_FOUND.
  Status Evict(uint64_t session_id, const std::string& by = "an operator");
  // A place for one call of the session, for as long as it is held, which must not outlive this: each call
  // that waits has a thread of the service. A session has some places; further ones count for its uid and
  // its cgroup. RESOURCE_EXHAUSTED.
  Result<std::shared_ptr<void>> Admit(const SessionRef& session);
  // A stream of the session's events, in place of the one before: each event is delivered once.
  uint64_t OpenEvents(const SessionRef& session);
  // The stream's next event, or nothing at the waiter's end. UNAVAILABLE once the session has ended, with the
  // cause; ABORTED once a newer stream of it has been opened.
  Result<std::optional<v1::Event>> NextEvent(const SessionRef& session, uint64_t stream,
                                             const Waiter& waiter);
  // A waiter of the client's deadline (0: the default), bounded by the maximal one.
  Waiter WaiterFor(uint64_t deadline_ms, std::function<bool()> cancelled) const;

  // --- groups
  Result<v1::JoinGroupReply> JoinGroup(const SessionRef& session, const v1::JoinGroupRequest& request,
                                       const Waiter& waiter);
  Status LeaveGroup(const SessionRef& session, uint64_t group_id, const Waiter& waiter);

  // --- memory
  Result<v1::EmptyReply> Empty(const SessionRef& session, const v1::EmptyRequest& request);
  Result<v1::RendezvousReply> Rendezvous(const SessionRef& session, const v1::RendezvousRequest& request,
                                         const Waiter& waiter);
  Status Free(const SessionRef& session, uint64_t tensor_id);
  Result<v1::RegisterTensorReply> RegisterTensor(const SessionRef& session,
                                                 const v1::RegisterTensorRequest& request,
                                                 const Waiter& waiter);
  Status Deregister(const SessionRef& session, uint64_t registration_id, const Waiter& waiter);

  // --- plans
  Result<v1::PrepareReply> Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                   const Waiter& waiter);
  // PlanService::Preview.
  Result<v1::PreviewReply> Preview(const SessionRef& session, const v1::PreviewRequest& request);
  // Calls for a plan that is placed in the client: see PlanService::Arm, FailureService::Report and
  // RenewalService::Renew.
  Status ArmPlan(const SessionRef& session, const v1::ArmPlanRequest& request, const Waiter& waiter);
  Status ReportFailure(const SessionRef& session, const v1::ReportFailureRequest& request);
  Result<v1::RenewGroupReply> RenewGroup(const SessionRef& session, const v1::RenewGroupRequest& request,
                                         const Waiter& waiter);
  // SuspensionService::Step.
  Result<v1::SuspendGroupReply> SuspendGroup(const SessionRef& session,
                                             const v1::SuspendGroupRequest& request, const Waiter& waiter);
  // AskedSuspension::Serve.
  Result<v1::ServeSuspensionReply> ServeSuspension(const SessionRef& session,
                                                   const v1::ServeSuspensionRequest& request,
                                                   const Waiter& waiter);
  // CheckpointService: Begin, LetGo, Restore and TakeShared.
  Result<v1::BeginCheckpointReply> BeginCheckpoint(const SessionRef& session);
  Status LetGo(uint64_t session_id, const std::string& secret);
  Result<v1::AttachReply> Restore(const PeerIdentity& peer, const v1::RestoreRequest& request);
  Result<v1::TakeSharedReply> TakeShared(const SessionRef& session, const v1::TakeSharedRequest& request);
  Status ReleasePlan(const SessionRef& session, uint64_t plan_id);

  // --- channels and launches
  Result<v1::OpenChannelReply> OpenChannel(const SessionRef& session, const v1::OpenChannelRequest& request,
                                           const Waiter& waiter);
  Status CloseChannel(const SessionRef& session, uint64_t channel_id, const Waiter& waiter);
  Result<v1::LaunchReply> Launch(const SessionRef& session, const v1::LaunchRequest& request);
  Status WaitLaunch(const SessionRef& session, uint64_t launch_id, const Waiter& waiter);

  // --- operators
  // Sessions are notified when draining begins.
  void SetAdmission(Admission admission);
  // No new groups on the GPU, for `why`; empty: it takes groups again. Groups that are there go on.
  void SetGpuCordon(int gpu, const std::string& why);
  // Takes over quotas, except for `sessions` and `calls_per_uid`, which hold from the start to the end.
  void SetLimits(const ControlLimits& limits);
  // GPUs are those of sessions that attach from now on, quotas of all.
  void SetAllow(std::vector<AllowRule> rules);
  // Waits until no group is left, or draining ends; the numbers of sessions and groups.
  std::pair<uint64_t, uint64_t> WaitDrained(const Waiter& waiter);
  // GroupService::EndLongSuspensions, SessionService::EndLongCheckpoints. To be called at intervals.
  void EndLongSuspensions();
  // AskedSuspension::Suspend and Resume. `may`: whether the operator may ask sessions of a uid.
  Result<AskedJob> SuspendJob(uint64_t session_id, const std::function<bool(uint32_t uid)>& may,
                              const Waiter& waiter);
  Result<AskedJob> ResumeJob(uint64_t session_id, const std::function<bool(uint32_t uid)>& may,
                             const Waiter& waiter);
  ControlSnapshot Snapshot();
  std::vector<SessionSnapshot> SnapshotSessions();
  std::vector<GroupSnapshot> SnapshotGroups();
  std::vector<PoolSnapshot> SnapshotPools();
  PlanPage SnapshotPlans(const PlanQuery& query);
  // All of them, without programs.
  std::vector<PlanSnapshot> SnapshotPlans();
  std::vector<ChannelSnapshot> SnapshotChannels();
  // Takes measured times into the tuning table, under the key and shape that `request` has on these GPUs (in
  // rank order); the entry. INVALID_ARGUMENT for times of a plan that cannot run, UNAVAILABLE if they cannot
  // be kept.
  Result<plan::TuningEntry> PutTuning(const v1::OpRequest& request, const std::vector<std::string>& gpu_uuids,
                                      std::vector<plan::TuningCandidate> candidates);
  const ControlOptions& options() const;
  const std::string& instance_id() const { return instance_id_; }

  // --- EngineListener
  void OnEngineUp(int gpu, uint64_t generation) override;
  void OnEngineDown(int gpu, uint64_t generation, const std::string& reason) override;
  bool MayRest(int gpu, uint64_t generation) override;
  void OnLaunchDone(int gpu, const engine::v1::LaunchDone& done) override;
  void OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) override;
  void OnLate(int gpu, const engine::v1::Late& late) override;
  void OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) override;

 private:
  struct Services;
  // For reports of engines: returns once nothing is being adopted.
  void AwaitAdoption() const;

  const std::string instance_id_;
  std::promise<void> adoption_;
  std::shared_future<void> adopted_;  // not valid: there is nothing to wait for
  std::atomic<bool> leaving_ = false;
  std::unique_ptr<Services> services_;
};

}  // namespace tandem::daemon
