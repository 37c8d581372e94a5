// File: control.h
//
// `Control`: tandemd's control plane without its sockets. Sessions, groups, memory, plans and channels, in
// the terms of the clients' protocol; what the engines must know it sends them through their mailboxes.
//
// Thread rule: every function may be called from any thread. Those that take a Waiter block until their
// answer is there, the waiter's deadline has passed or its caller has gone. One mutex guards the registry; it
// is never held across a wait or a call to an engine, and commands are posted under it, so that each engine
// sees transitions in their order. Ids of other sessions are NOT_FOUND.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "daemon/control/control_options.h"
#include "daemon/control/engine_mailbox.h"
#include "daemon/control/foreign_fds.h"
#include "daemon/control/snapshot.h"
#include "daemon/control/timed_lock.h"
#include "daemon/control/waiter.h"
#include "daemon/planner/tuning/tuning_table.h"
#include "daemon/supervisor/engines.h"
#include "tandem/op_request.h"
#include "tandem/status.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

inline constexpr size_t kTokenBytes = 16;
inline constexpr uint32_t kProtocol = 1;
// The user's own signal pad of a symmetric tensor, in bytes.
inline constexpr uint64_t kSignalPadBytes = 4096;

// Who is at the other end of a lease, as the kernel says.
struct PeerIdentity {
  uint32_t uid = 0;
  uint32_t gid = 0;
  int pid = 0;
  std::string cgroup =
      {};  // path in the hierarchy that accounts for memory; empty if the kernel does not tell
};

// The lease sockets, as the control plane uses them. Both functions return at once.
class LeasePort {
 public:
  virtual ~LeasePort() = default;
  // Sends descriptors to a session; RESOURCE_EXHAUSTED if it does not read and its backlog is full.
  virtual Status Send(uint64_t session_id, uint64_t transfer_id, const std::vector<SharedFd>& fds) = 0;
  // Closes the session's lease; the session has ended already.
  virtual void Close(uint64_t session_id) = 0;
};

struct Placement;
struct Session;
struct Group;
struct Tensor;
struct SegmentSet;
struct SymmetricBlock;
struct PrepareMeeting;
struct RendezvousMeeting;
struct JoinMeeting;
struct NameEntry;
struct Registry;
class BackgroundWorker;
using SessionRef = std::shared_ptr<Session>;

class Control final : public EngineListener {
 public:
  // `engines` outlives this. Engines that are ready already are taken as up.
  Control(ControlOptions options, Engines& engines);
  ~Control() override;

  // What the engines have found out about the links among the GPUs. Before the first session attaches.
  void SetTopology(Topology topology) { options_.topology = std::move(topology); }
  // Must be set before the first session attaches, and outlive it.
  void SetLeasePort(LeasePort* port);
  // Makes every waiting call return UNAVAILABLE; nothing new is accepted.
  void Stop();

  // --- sessions (control_session.cc)
  Result<v1::AttachReply> Attach(const PeerIdentity& peer, const v1::AttachRequest& request);
  // The session of a token, compared in constant time. UNAUTHENTICATED: reason NO_TOKEN, BAD_TOKEN, or
  // SESSION_LOST for a token of an ended session or an earlier daemon.
  Result<SessionRef> Authenticate(std::string_view token);
  // A session's descriptors as they come over its lease.
  Status AddTransfer(uint64_t session_id, const v1::FdTransfer& part, ForeignFds fds);
  // Closes unclaimed descriptors that are too old; true while some are left.
  bool ReapOrphans();
  // The process has died or closed its lease: its groups break, everything of it is freed.
  void SessionLost(uint64_t session_id, const std::string& why);
  Status Detach(const SessionRef& session, const Waiter& waiter);
  // Ends a session as if its process had died. NOT_FOUND.
  Status Evict(uint64_t session_id);
  // A place for one call of the session, for as long as it is held, which must not outlive this: each call
  // that waits has a thread of the service. A session's first ones are its own, others come out of its uid's
  // and cgroup's. RESOURCE_EXHAUSTED.
  Result<std::shared_ptr<void>> Admit(const SessionRef& session);
  // A stream of the session's events, in place of the one before: each event is told once, so two would share
  // them, and each holds a thread of the service.
  uint64_t OpenEvents(const SessionRef& session);
  // The stream's next event, or nothing at the waiter's end. UNAVAILABLE once the session has ended, ABORTED
  // once a newer stream of it has been opened.
  Result<std::optional<v1::Event>> NextEvent(const SessionRef& session, uint64_t stream,
                                             const Waiter& waiter);
  // A waiter of the client's deadline (0: the default), bounded by the maximal one.
  Waiter WaiterFor(uint64_t deadline_ms, std::function<bool()> cancelled) const;

  // --- groups (control_join.cc, control_group.cc)
  Result<v1::JoinGroupReply> JoinGroup(const SessionRef& session, const v1::JoinGroupRequest& request,
                                       const Waiter& waiter);
  Status LeaveGroup(const SessionRef& session, uint64_t group_id, const Waiter& waiter);

  // --- memory (control_memory.cc, control_registration.cc)
  Result<v1::EmptyReply> Empty(const SessionRef& session, const v1::EmptyRequest& request);
  Result<v1::RendezvousReply> Rendezvous(const SessionRef& session, const v1::RendezvousRequest& request,
                                         const Waiter& waiter);
  Status Free(const SessionRef& session, uint64_t tensor_id);
  Result<v1::RegisterTensorReply> RegisterTensor(const SessionRef& session,
                                                 const v1::RegisterTensorRequest& request,
                                                 const Waiter& waiter);
  Status Deregister(const SessionRef& session, uint64_t registration_id, const Waiter& waiter);

  // --- plans (control_plan.cc)
  Result<v1::PrepareReply> Prepare(const SessionRef& session, const v1::PrepareRequest& request,
                                   const Waiter& waiter);
  Status ReleasePlan(const SessionRef& session, uint64_t plan_id);

  // --- launches (control_launch.cc)
  Result<v1::OpenChannelReply> OpenChannel(const SessionRef& session, const v1::OpenChannelRequest& request,
                                           const Waiter& waiter);
  Status CloseChannel(const SessionRef& session, uint64_t channel_id, const Waiter& waiter);
  Result<v1::LaunchReply> Launch(const SessionRef& session, const v1::LaunchRequest& request);
  Status WaitLaunch(const SessionRef& session, uint64_t launch_id, const Waiter& waiter);

  // --- operators (control_admin.cc)
  void SetDraining(bool draining);
  // Waits until no group is left; how many sessions and groups are.
  std::pair<uint64_t, uint64_t> WaitDrained(const Waiter& waiter);
  ControlSnapshot Snapshot();
  std::vector<SessionSnapshot> SnapshotSessions();
  std::vector<GroupSnapshot> SnapshotGroups();
  std::vector<PoolSnapshot> SnapshotPools();
  PlanPage SnapshotPlans(const PlanQuery& query);
  // All of them, without programs.
  std::vector<PlanSnapshot> SnapshotPlans();
  std::vector<ChannelSnapshot> SnapshotChannels();
  // Takes measured times into the tuning table, under the key and shape that `request` has on these GPUs (in
  // rank order); the entry. INVALID_ARGUMENT for times of what cannot run, UNAVAILABLE if they cannot be
  // kept. (control_tuning.cc)
  Result<plan::TuningEntry> PutTuning(const v1::OpRequest& request, const std::vector<std::string>& gpu_uuids,
                                      std::vector<plan::TuningCandidate> candidates);
  const ControlOptions& options() const { return options_; }
  const std::string& instance_id() const { return instance_id_; }

  // --- EngineListener (control_engine.cc)
  void OnEngineUp(int gpu, uint64_t generation) override;
  void OnEngineDown(int gpu, uint64_t generation, const std::string& reason) override;
  void OnLaunchDone(int gpu, const engine::v1::LaunchDone& done) override;
  void OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) override;
  void OnLate(int gpu, const engine::v1::Late& late) override;
  void OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) override;

 private:
  using Lock = std::unique_lock<std::mutex>;

  // Functions named …Locked need Registry::mutex; those that take a Lock release and take it again.
  void Log(LogSeverity severity, const std::string& text) const;
  Status SessionAlive(const Session& session) const;
  // What an engine that has ended leaves of a call that took something away: nothing, it has let go of all.
  // One that is being stopped with the daemon, and that calls no longer wait for, may not have: UNAVAILABLE.
  Status LetGoLocked(const Status& answer) const;
  Result<std::shared_ptr<Group>> FindGroupLocked(const Session& session, uint64_t group_id, int* rank);
  void PostEventLocked(Session& session, v1::Event event);
  void PostGroupEventLocked(Group& group, const v1::Event& event, int except_rank);
  void EndSession(uint64_t session_id, bool clean, const std::string& why);
  void FailJoinsOfLocked(const Session& session, const std::string& why);
  void ForgetNameLocked(const std::string& scope);
  void EndSessionPartsLocked(Session& session);

  Status SeatLocked(NameEntry& entry, const SessionRef& session, const v1::JoinGroupRequest& request, int gpu,
                    const Waiter& waiter);
  Result<int> AwaitNameFreeLocked(Lock& lock, const std::string& scope, const SessionRef& session,
                                  const v1::JoinGroupRequest& request, const Waiter& waiter);
  Result<std::shared_ptr<Group>> MakeGroupLocked(NameEntry& entry, const std::string& scope,
                                                 JoinMeeting& meeting);
  Placement PlacementLocked(const Group& group) const;
  void FillJoinReplyLocked(const Group& group, v1::JoinGroupReply* reply) const;
  // A launch by gRPC on `gpu` has ended; the first end stands.
  void EndLaunch(int gpu, uint64_t launch_id, Status status);
  void BreakGroupLocked(Group& group, const Status& why, int lost_rank);
  void BreakLeftGroupLocked(Group& group);
  void BreakByLogLocked(const Group& group);
  void FailMeetingsLocked(Group& group, const Status& why);
  void MemberLeftLocked(const std::shared_ptr<Group>& group, int rank, bool lost);
  void DestroyGroupLocked(const std::shared_ptr<Group>& group);
  void UninstallLocked(Group& group, int except_gpu);

  // Puts the group on its engines: control segments, arrival table, group, workspace, registrations, plans.
  // The group's `work` is held by the caller, the lock is not.
  Status Install(Group& group, const Waiter& waiter);
  // Whether the engines are those that Install told of the group.
  bool SameEnginesLocked(const Group& group) const;
  Status AwaitEnginesLocked(Lock& lock, const Group& group, const Waiter& waiter);
  Status AwaitInstalledLocked(Lock& lock, const Group& group, const Waiter& waiter);
  Status InstalledLocked(const Group& group) const;
  // For work that one rank's call does for all ranks, up to `deadline`. It goes on when that call is
  // cancelled: its process's death is told by its session's end, with the rank's name. It ends with the
  // group.
  static Waiter ForAllRanks(std::shared_ptr<Group> group, Waiter::Clock::time_point deadline);
  // Group::work. DEADLINE_EXCEEDED.
  static Result<std::unique_lock<TimedLock>> TakeWork(Group& group, const Waiter& waiter);
  // `in_place_of`: a set that goes once the engines are there, before the new one is charged.
  Result<std::shared_ptr<SegmentSet>> MakeSet(Group& group, uint64_t bytes, const std::string& purpose,
                                              const Waiter& waiter,
                                              std::shared_ptr<SegmentSet>* in_place_of = nullptr);
  void MapSetLocked(SegmentSet& set, size_t rank, const Group& group,
                    const std::shared_ptr<CommandBatch>& batch);
  void RemoveSetLocked(const std::shared_ptr<SegmentSet>& set);
  void DropSetIfUnusedLocked(const std::shared_ptr<SegmentSet>& set);
  Result<std::string> MakeUniqueId(const Group& group);
  void PostWorkspaceLocked(Group& group, const std::shared_ptr<CommandBatch>& batch);
  void PostRegistrationLocked(Group& group, uint64_t registration_id,
                              const std::shared_ptr<CommandBatch>& batch);
  void PostOwnRegistrationLocked(const Session& session, uint64_t registration_id,
                                 const std::shared_ptr<CommandBatch>& batch);

  Status MeetTensors(Group& group, RendezvousMeeting& meeting, const Waiter& waiter);
  Result<std::shared_ptr<SymmetricBlock>> MakeBlock(Group& group, uint64_t bytes, const Waiter& waiter);
  Status MayMeet(const Group& group, size_t open) const;
  void FailMeetingsOfTensorLocked(const Session& session, const std::shared_ptr<Tensor>& tensor);
  void FreeTensorLocked(Session& session, uint64_t tensor_id);
  void ClearBlockLocked(const SegmentSet& set, uint64_t offset, uint64_t bytes);
  Status SendDescriptors(const SessionRef& session, uint64_t transfer_id, const std::vector<SharedFd>& fds);

  Status MakePlanOf(const std::shared_ptr<Group>& group, PrepareMeeting& meeting, const std::string& key,
                    const Waiter& waiter);
  Status GrowWorkspace(Group& group, uint64_t half_bytes, uint64_t bulk_bytes, const Waiter& waiter);
  void RemovePlanLocked(Group& group, uint64_t plan_id);
  // In the log, and as one event to all ranks.
  void ReportWarningsLocked(Group& group, const std::string& key, uint64_t plan_id,
                            const std::vector<std::string>& warnings);

  void BreakGroupsOfGpuLocked(int gpu, const std::string& text);
  // What the tuning table calls these GPUs; empty where no table can hold for them.
  std::string TuningModel(const Topology& topology) const;
  void RestoreGroup(const std::shared_ptr<Group>& group);
  Result<int> FindGpu(const std::string& uuid) const;

  ControlOptions options_;  // not changed once sessions attach
  Engines& engines_;
  const std::string instance_id_;
  const Waiter::Clock::time_point started_ = Waiter::Clock::now();
  LeasePort* lease_port_ = nullptr;
  std::unique_ptr<Registry> registry_;
  std::unique_ptr<BackgroundWorker> background_;
};

}  // namespace tandem::daemon
