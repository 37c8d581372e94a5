// File: snapshot.h
//
// The control plane's state as plain values for operators: administration, metrics and doctor read these and
// never the registry itself. Each snapshot is taken under one short lock and is consistent in itself.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/mps_endpoint.h"
#include "daemon/control/base/counters.h"

namespace tandem::v1 {
class PlanInfo;
}

namespace tandem::daemon {

// The new work that the node takes. Jobs that it has go on in every state, and prepare new plans.
enum class Admission : uint8_t {
  kOpen,      // everything
  kCordoned,  // no sessions and groups
  kDraining,  // as kCordoned, and the jobs have been asked to end
};

// The job that an operator's request is about.
struct AskedJob {
  std::set<uint64_t> sessions, groups;
};

struct SessionSnapshot {
  uint64_t id = 0;
  uint32_t uid = 0;
  uint32_t gid = 0;
  int pid = 0;
  std::string name;                     // as the client calls itself
  std::string command;                  // /proc/<pid>/comm at attach
  std::string cgroup;                   // at attach; empty if unreadable
  std::string owner;                    // the job's cgroup: OwnerOf(cgroup)
  MpsEndpoint mps;                      // that its CUDA driver meets, as it told
  uint32_t device_max_connections = 0;  // as it told; 0: not set
  double age_seconds = 0;
  uint32_t groups = 0;
  uint32_t tensors = 0;
  uint32_t registrations = 0;
  uint32_t channels = 0;
  uint64_t bytes = 0;  // of its symmetric tensors
  uint64_t registered_bytes = 0;
  uint32_t descriptors = 0;         // that tandemd holds for it
  bool suspends = false;            // it takes operators' requests to suspend
  double checkpointed_seconds = 0;  // since it waits for a restored process; 0: its process has it
};

struct MemberSnapshot {
  int rank = 0;
  uint64_t session_id = 0;
  int pid = 0;
  int gpu = 0;  // position in the node's topology
  std::string gpu_uuid;
  bool left = false;  // cleanly or by death
};

struct GroupSnapshot {
  uint64_t id = 0;
  std::string name;
  uint32_t uid = 0;
  uint64_t incarnation = 0;
  uint64_t generation = 0;
  int world_size = 0;
  std::string state;  // "joining", "ready", "suspended", "closing", "broken"
  std::string state_reason;
  std::string topology_class;
  std::vector<MemberSnapshot> members;
  uint32_t plans = 0;
  uint64_t workspace_bytes = 0;           // both halves of one rank, as allocated
  uint64_t unshared_workspace_bytes = 0;  // the same if each plan had its own workspace
  uint64_t bulk_bytes = 0;
  uint64_t client_launches = 0;  // that have ended on the ranks' own streams
  double asleep_seconds = 0;     // 0: it does not sleep
};

struct SegmentSnapshot {
  uint64_t id = 0;
  uint64_t bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t group_id = 0;
  std::string purpose;  // "symmetric", "workspace", "bulk", "control"
};

struct PoolSnapshot {
  int gpu = 0;
  std::string gpu_uuid;
  uint64_t memory_bytes = 0;
  uint64_t segment_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t registered_bytes = 0;
  std::vector<SegmentSnapshot> segments;
};

struct PlanSnapshot {
  uint64_t plan_id = 0;
  uint64_t group_id = 0;
  uint32_t uid = 0;  // of the group
  std::string group_name;
  std::vector<int> gpus;  // by rank
  std::string info;       // a serialised tandem.v1.PlanInfo, without the group's own figures, which follow
  uint64_t group_workspace_bytes = 0;           // GroupSnapshot::workspace_bytes
  uint64_t unshared_workspace_bytes = 0;        // GroupSnapshot::unshared_workspace_bytes
  std::vector<std::string> programs;            // listings by rank, if asked for
  std::vector<std::vector<std::string>> steps;  // with them, by rank: what each step is called
};

// The plans to list, and which of their fields.
struct PlanQuery {
  uint64_t group_id = 0, plan_id = 0;             // 0: all
  const std::set<uint64_t>* only = nullptr;       // these plans; null: all
  std::function<bool(uint32_t uid)> viewer = {};  // plans of the groups of such uids; empty: all
  bool programs = false;                          // listings, and what steps are called
  bool steps = false;                             // what steps are called
  uint64_t after_group = 0,
           after_plan = 0;       // those behind this one, in the order of groups and of their plans
  size_t most_bytes = SIZE_MAX;  // of what is kept of them; at least one plan
};

struct PlanPage {
  std::vector<PlanSnapshot> plans;
  bool more = false;  // than most_bytes allowed
};

struct ChannelSnapshot {
  uint64_t id = 0;
  uint64_t session_id = 0;
  int gpu = 0;
  bool over = false;  // its engine has ended; the client has yet to close it
};

// The resources of one owner (SessionSnapshot::owner), or of all owners without a separate entry.
struct OwnerUse {
  std::string owner;  // empty: all the others
  uint64_t sessions = 0, groups = 0, plans = 0, segment_bytes = 0, registered_bytes = 0;
};
// Owners with an entry of their own: a node has eight GPUs, and monitoring keeps series of each owner.
inline constexpr size_t kMaxOwners = 32;

struct ControlSnapshot : NodeCounters {
  std::string instance_id;
  double uptime_seconds = 0;
  Admission admission = Admission::kOpen;
  std::map<int, std::string> cordoned_gpus;  // why, by the GPU's position: no new groups there
  bool open_to_all = true;                   // no rule binds sessions to GPUs
  uint64_t sessions = 0;
  uint64_t groups = 0;
  uint64_t names = 0;  // that groups have, had, or are joined by
  uint64_t plans = 0;
  uint64_t tensors = 0;
  uint64_t registrations = 0;
  uint64_t channels = 0;
  uint64_t segment_bytes = 0;
  uint64_t descriptors = 0;  // held by the control plane: segments, registrations, channels
  // By the quota's key ("plans", "sessions_per_uid"): the part of it that the uid or cgroup uses that uses
  // the most, 0 to 1.
  std::map<std::string, double> quota_use;
  std::map<uint32_t, uint64_t> sessions_by_uid;
  // The kMaxOwners that have the most memory, the most first, then all others together, also those whose
  // owner is not known.
  std::vector<OwnerUse> owners;
};

// Records that are there now, for /metrics and the web page.
inline constexpr Figure<ControlSnapshot> kNodeGauges[] = {
    {"tandem_sessions", "Attached sessions", &ControlSnapshot::sessions, true},
    {"tandem_groups", "Groups", &ControlSnapshot::groups, true},
    {"tandem_plans", "Prepared plans", &ControlSnapshot::plans, true},
    {"tandem_tensors", "Symmetric tensors", &ControlSnapshot::tensors, true},
    {"tandem_registrations", "Registrations of clients' own memory", &ControlSnapshot::registrations, true},
    {"tandem_channels", "Open channels", &ControlSnapshot::channels, true},
};

}  // namespace tandem::daemon
