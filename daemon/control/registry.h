// File: registry.h
//
// The control plane's records: sessions, groups, tensors, segments, plans. Plain data under one mutex,
// `Registry::mutex`, which is held shortly and never across a call to an engine or a wait. Only control_*.cc
// include this.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/control/control.h"
#include "daemon/control/engine_mailbox.h"
#include "daemon/control/ledger.h"
#include "daemon/control/offset_allocator.h"
#include "daemon/control/placement.h"
#include "daemon/control/timed_lock.h"
#include "daemon/control/transfer_table.h"
#include "daemon/planner/planner.h"
#include "tandem/engine/v1/engine.pb.h"
#include "tandem/v1/tandem.pb.h"

namespace tandem::daemon {

// Rows of a group's arrival table: plans of one incarnation, since an index is never used again.
inline constexpr uint32_t kMaxPlanIndexes = 16384;

// Segments of equal size, one per rank of the group that made them, with one allocator: a block lies at the
// same offset on every rank. Removed when its group has ended and no block is left.
struct SegmentSet {
  std::string purpose;  // "symmetric", "workspace", "bulk", "control"
  uint64_t group_id = 0;
  Payer payer;                        // charged to
  uint64_t bytes = 0;                 // of each segment
  std::vector<int> gpus;              // by rank
  std::vector<uint64_t> segment_ids;  // by rank
  std::vector<SharedFd> fds;          // by rank: what outlives an engine
  std::vector<uint32_t> mapped;       // by rank: bit g is set when GPU g's engine holds it
  bool owned = true;                  // its group lives
  OffsetAllocator allocator{0};
};

// One allocation of a set, shared by the tensors of the ranks that met first.
struct SymmetricBlock {
  std::shared_ptr<SegmentSet> set;
  uint64_t offset = 0;
  uint64_t pad_offset = 0;
  int tensors = 0;  // that use it
};

struct Group;

struct Tensor {
  uint64_t id = 0;
  uint64_t session_id = 0;
  int gpu = 0;
  uint64_t bytes = 0;
  std::string name;                            // persistent if not empty
  std::shared_ptr<SymmetricBlock> block;       // none before the first rendezvous
  int block_rank = 0;                          // which of the set's segments is this tensor's
  bool freed = false;                          // its session no longer has it; a meeting may still
  std::map<uint64_t, uint64_t> registrations;  // group id -> registration id
};

struct Registration {
  int gpu = 0;
  uint64_t bytes = 0;
  std::vector<uint64_t> chunk_bytes;
  std::vector<SharedFd> fds;  // kept for the engine's next life
  std::string ipc_handle;     // instead of descriptors
  uint64_t offset = 0;        // where the memory begins in the first chunk or behind the handle
};

struct Channel {
  int gpu = 0;
  uint32_t entries = 0;
  SharedFd words;
  bool over = false;
};

struct LaunchRecord {
  int gpu = 0;
  bool done = false;
  Status status;
};

struct Session {
  explicit Session(size_t max_transfers) : transfers(max_transfers) {}
  uint64_t id = 0;
  std::array<uint8_t, kTokenBytes> token{};
  PeerIdentity peer;
  std::string name, command;
  MpsEndpoint mps;                      // that its CUDA driver meets, as it told
  uint32_t device_max_connections = 0;  // CUDA_DEVICE_MAX_CONNECTIONS as it told; 0: not set
  Waiter::Clock::time_point since = Waiter::Clock::now();
  bool ended = false;
  TransferTable transfers;
  std::deque<v1::Event> events;
  std::condition_variable events_changed;
  uint64_t calls = 0;          // under way; those beyond kOwnCalls are charged
  uint64_t event_streams = 0;  // opened; the last one is served
  std::map<uint64_t, std::shared_ptr<Tensor>> tensors;
  std::map<std::string, uint64_t> named_tensors;  // "<gpu>/<name>"
  std::map<uint64_t, Registration> registrations;
  std::map<uint64_t, Channel> channels;
  std::map<uint64_t, LaunchRecord> launches;
  std::condition_variable launches_changed;
  std::set<uint64_t> groups;
  Payer payer() const { return {peer.uid, peer.cgroup}; }
};

// Where the ranks of a group meet for one thing. `told[rank]`: the rank has the answer; a rank that comes
// late to a meeting that failed gets that failure once, and may then open another.
struct Meeting {
  enum class Phase { kWaiting, kWorking, kDone };
  Phase phase = Phase::kWaiting;
  Status status;
  std::condition_variable changed;
  std::vector<bool> seated, told;
  std::vector<bool> cancelled;  // gave their seats up, and have not come again
  std::vector<int> waiting;     // calls in Await, by rank: a retry may come while the first one waits

  void Resize(size_t world);
  void Seat(size_t rank);
  // Waits for the outcome, under the registry's mutex: OK once there is one. A deadline while ranks are
  // missing is an outcome, for all ranks; `what` and `did` make its text ("<what>: rank 2 did not <did> in
  // time"). Else how this call alone ends: CANCELLED, which gives its seat up, or not once all have come;
  // DEADLINE_EXCEEDED while one rank works for all.
  Status Await(std::unique_lock<std::mutex>& lock, size_t rank, const std::string& what,
               const std::string& did, const Waiter& waiter);
  bool Empty() const;  // nobody is seated
  bool AllTold() const;
};

struct PrepareMeeting : Meeting {
  std::vector<std::string> requests;  // by rank: serialised v1::OpRequest
  uint64_t plan_id = 0;
};

struct RendezvousMeeting : Meeting {
  std::vector<std::shared_ptr<Tensor>> tensors;
  uint64_t registration_id = 0;
};

struct JoinMeeting : Meeting {
  struct Seat {
    std::shared_ptr<Session> session;
    v1::JoinGroupRequest request;
    int gpu = 0;
    Waiter::Clock::time_point deadline;  // of the call that took it
  };
  std::map<int, Seat> seats;
  // Who has given a seat up since the call that took it was cancelled or ran out of time. A process that dies
  // takes its call and its session along, in any order: those that wait are told of its end either way.
  std::map<int, Seat> given_up;
  std::shared_ptr<Group> group;

  // The first of the ranks' deadlines: no rank waits longer for what the last one to come does for all.
  Waiter::Clock::time_point Deadline() const;
};

struct Member {
  std::shared_ptr<Session> session;
  uint64_t session_id = 0;
  int pid = 0;
  int gpu = 0;
  bool left = false;
  bool lost = false;
  uint64_t rendezvous = 0;  // unnamed ones so far
};

struct PlanRecord {
  uint64_t id = 0;
  std::string key;
  uint32_t index = 0;
  std::string info;                   // serialised v1::PlanInfo
  std::vector<std::string> commands;  // by rank: serialised engine::v1::Command with AddPlan
  uint64_t kept_bytes = 0;            // charged as Resource::kPlanBytes
  uint64_t workspace_bytes = 0;
  uint64_t bulk_bytes = 0;
  std::vector<bool> released;
};

// A symmetric tensor as launches of one group name it.
struct GroupTensor {
  uint64_t bytes = 0;
  std::vector<std::shared_ptr<Tensor>> tensors;  // by rank
  std::vector<bool> freed;
};

enum class GroupState { kJoining, kReady, kBroken, kClosing };

struct Group {
  uint64_t id = 0;
  std::string scope;  // key in Registry::names
  std::string name;
  Payer payer;  // rank 0's
  uint64_t incarnation = 1;
  uint64_t generation = 1;
  GroupState state = GroupState::kJoining;
  Status broken;  // why, once state is kBroken or kClosing; of a joining one: why it will not be made
  std::atomic<bool> over = false;  // `broken` is not OK: for those that wait without the registry's mutex
  bool suspended = false;          // an engine has gone; the background worker installs the group again
  std::vector<Member> members;     // by rank
  std::vector<uint64_t> engines;   // by rank: the generation of the engine that was last told of the group
  plan::GroupContext context;
  std::string topology_class;
  uint64_t launch_deadline_ms = 0;
  OnSlowPlacement on_slow_placement = OnSlowPlacement::kAllow;
  std::condition_variable changed;

  std::map<std::string, std::shared_ptr<PrepareMeeting>> prepares;  // by key
  std::map<std::string, std::shared_ptr<RendezvousMeeting>>
      rendezvous;  // by name or number, until all are told
  std::map<uint64_t, PlanRecord> plans;
  std::map<uint64_t, GroupTensor> tensors;  // by registration id
  uint32_t next_plan_index = 0;
  uint64_t next_epoch = 1;

  std::vector<std::shared_ptr<SegmentSet>> symmetric;
  std::shared_ptr<SegmentSet> control, half0, half1, bulk;
  std::vector<std::shared_ptr<SegmentSet>> outgrown;  // workspaces that running programs may still use
  uint64_t half_bytes = 0, bulk_bytes = 0, unshared_bytes = 0;
  bool communicates = false;  // the engines have made a communicator for it
  std::map<std::string, std::string> options;
  SharedFd arrivals;

  // Bytes that the plans need when they share both halves of the workspace: the largest plan's. What is
  // allocated (2 * half_bytes) is that, rounded up to segments.
  uint64_t SharedBytes() const;

  // Serialises what grows or installs the group's memory; taken before Registry::mutex, held across engine
  // calls.
  TimedLock work;

  // The group ends, or is never made, because of `why`. Under Registry::mutex, whose waiters for engines are
  // to be woken.
  void SetBroken(const Status& why) {
    broken = why;
    over = true;
  }
};

struct NameEntry {
  uint64_t incarnation = 0;
  std::shared_ptr<Group> current;
  std::shared_ptr<JoinMeeting> joining;
  std::shared_ptr<std::condition_variable> freed = std::make_shared<std::condition_variable>();
};

struct Registry {
  explicit Registry(const ControlLimits& limits) : ledger(limits) {}
  std::mutex mutex;
  std::condition_variable engines_changed;  // an engine came up or went
  std::map<uint64_t, std::shared_ptr<Session>> sessions;
  std::map<uint64_t, std::shared_ptr<Group>> groups;
  std::map<std::string, NameEntry> names;
  std::set<std::shared_ptr<SegmentSet>> sets;
  Ledger ledger;
  std::unordered_map<uint64_t, std::weak_ptr<Group>> plan_groups;  // plan id -> group
  std::unordered_map<uint64_t, std::weak_ptr<Session>> launches;   // launch id -> session
  std::vector<std::unique_ptr<EngineMailbox>> mailboxes;           // by GPU
  std::vector<uint64_t> engine_generation;                         // by GPU; 0: down
  uint64_t next_id = 1;  // sessions, groups, tensors, registrations, channels, segments, transfers, launches
  uint64_t next_plan_id = 1;  // 24 bits in the order log: see NewPlanId
  bool draining = false;
  bool stopping = false;
  uint64_t sessions_total = 0, sessions_lost_total = 0, groups_broken_total = 0;
  std::map<int, uint64_t> launch_failures;

  // False once the group has been destroyed: a call that holds it must not give it anything more.
  bool Has(const Group& group) const;
  // The order log keeps 24 bits of an id: no other living group or plan has the same ones. 0 if there is no
  // plan id left.
  uint64_t NewGroupId();
  uint64_t NewPlanId();
};

}  // namespace tandem::daemon
