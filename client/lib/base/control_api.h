// File: control_api.h
//
// The line between the library's two halves. The core (libtandem.so) has the launch path and no gRPC; the
// gRPC plugin (libtandem_grpc.so) speaks gRPC and protobuf and is loaded with dlopen. The core knows it
// by this abstract class only, and a test puts a fake in its place. Types are plain: no generated message
// crosses.
//
// Thread rule: every function may be called from any thread, but Attach first and once, and Shutdown last.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/lib/base/cancellation.h"
#include "common/unique_fd.h"
#include "daemon/planner/types/operation_plan.h"
#include "program/program.h"
#include "tandem/client.h"
#include "tandem/log.h"

namespace tandem::client {

// Grows with every change of this header: core and gRPC plugin must be of one build.
inline constexpr int kControlApiVersion = 11;

struct AttachInfo {
  uint64_t session_id = 0;
  std::string daemon_version, instance_id, backend;
  std::vector<GpuDescription> gpus;
  std::map<std::string, int64_t> limits;
};

struct JoinInfo {
  uint64_t group_id = 0, incarnation = 0, generation = 1;
  std::string topology_class, placement;
  bool renews_engines = false;  // a launch that a rank misses stalls the group on engines, too
  std::vector<std::string> gpu_uuids;
  std::vector<int> link_counts;  // world_size x world_size, row-major
  std::vector<Group::Offer> offers;
};

struct RendezvousInfo {
  int rank = 0, world_size = 0;
  uint64_t buffer_bytes = 0, pad_bytes = 0, segment_bytes = 0, buffer_offset = 0, pad_offset = 0,
           registration_id = 0;
  std::vector<UniqueFd> segments;     // by rank
  std::vector<uint64_t> segment_ids;  // by rank: which of them are one
};

// Memory of the client's own: descriptors, or a CUDA IPC handle.
struct RegisterInfo {
  std::string gpu_uuid;
  uint64_t bytes = 0;
  std::vector<int> fds;               // stay the caller's
  std::vector<uint64_t> chunk_bytes;  // one a descriptor
  std::string ipc_handle;             // instead of descriptors
  uint64_t offset = 0;  // of the memory in the first descriptor's, or in the IPC handle's allocation
};

struct ChannelInfo {
  uint64_t channel_id = 0, generation = 0;
  UniqueFd ring, words;
};

// A family: what this rank needs beside its request to make the plan of any number of rows (see
// plan::MakeMember).
struct FamilyInfo {
  uint32_t members_version = 0;  // plan::kMembersVersion of the daemon's build
  plan::GroupContext group;
  plan::RowTable table;
};

// This rank's data for launches of a plan that is placed in the client.
struct ClientPlacementInfo {
  plan::RankProgram program;
  UniqueFd verdict_page;
  std::vector<UniqueFd> signals, workspace;         // by rank; no workspace: empty
  std::vector<uint64_t> signal_ids, workspace_ids;  // by rank: which of them are one
  uint64_t signal_bytes = 0, workspace_bytes = 0;   // of each segment
  uint64_t half_bytes = 0, bulk_bytes = 0;          // of a workspace: half 0, half 1, then the bulk area
  Milliseconds launch_deadline{0};
  std::shared_ptr<const FamilyInfo> family;  // null: a plan of one shape. `program` is its bound's
};

// An algorithm's time on this rank, in microseconds of a launch.
struct MeasuredTime {
  Algorithm algorithm = Algorithm::kAuto;
  uint32_t samples = 0;
  double median_us = 0, p10_us = 0, p90_us = 0;
};

// Sent by a rank beside its request when it prepares: measured times (autotune.h), and the number of
// launches.
struct PrepareTuning {
  bool can_measure = false;                          // asks what to time first
  PlanPlacement placement = PlanPlacement::kEngine;  // of `times`
  std::vector<MeasuredTime> times;
  std::string cannot_measure;       // why this rank cannot, though it was asked to; empty: it can
  uint64_t next_client_launch = 0;  // the number of the next client-placed launch; 0: not known
};

struct PreparedPlan {
  PlanInfo info;
  std::vector<Algorithm> measure;             // to be timed, the plan's own first; empty: nothing is
  std::optional<ClientPlacementInfo> client;  // none: engines run it
};

// A client-placed launch that this rank has seen fail.
struct FailureReport {
  uint64_t group_id = 0, plan_id = 0;
  uint64_t launch = 0;    // its number in the group
  int64_t rows = -1;      // of a family's launch; -1: the plan is of one shape
  int awaited_rank = -1;  // that it waited for; -1: none
  uint64_t renewals = 0;  // of the group, before the launch
  Status status;
};

// The agreement of all ranks in a renewal.
struct RenewalInfo {
  uint64_t number = 0;    // the launch behind which all ranks go on
  uint64_t renewals = 0;  // of the group
};

// The meetings of ranks that suspend and resume their group, in this order.
enum class SuspendStep : uint8_t { kStopped, kUnmapped, kResuming, kMapped };

// The daemon's answer to such a step.
struct SuspensionInfo {
  uint64_t number = 0;                // the launch behind which all ranks go on
  uint64_t generation = 0;            // of the group
  uint64_t renewals = 0;              // of the group
  std::vector<uint64_t> segment_ids;  // kStopped, kResuming: of all ranks, that members may map
  std::vector<UniqueFd> segments;     // kResuming: their descriptors
  bool awake = false;                 // kResuming: all ranks have resumed it already
};

// A session's part in operators' requests to suspend.
enum class ServePhase : uint8_t { kOffer, kAgree, kArrived };

struct DirectLaunch {
  uint64_t plan_id = 0, generation = 0, deadline_ms = 0;
  std::string tag;
  std::vector<std::pair<uint64_t, uint64_t>> bindings;  // registration, offset
};

// An event as the daemon sends it: `generation` belongs to kEngineRestarted, `request` to kSuspendRequested.
struct ControlEvent {
  ClientEvent event;
  uint64_t generation = 0;
  uint64_t request = 0;
};

// The plugin's events for the core, called from threads of the plugin. They must not call back into the
// plugin.
struct ControlCallbacks {
  std::function<void(const ControlEvent&)> on_event;
  std::function<void(const Status&)> on_lost;  // the lease has ended: at most once
  // What can cancel calls of this thread that wait for other ranks. Unlike the others, called by these calls;
  // may be empty.
  std::function<std::shared_ptr<Cancellation>()> cancellation = {};
};

// The core's log for lines of the plugin's libraries. Lives as long as the process.
struct PluginLog {
  // Takes a line. `severity` is a ClientLogLevel.
  void (*write)(int severity, const char* text) = nullptr;
  // Lines below are not wanted.
  std::atomic<int> least{0};
  // The plugin's, set by the first call for a Control. Called after that, and at each change of `least`: whether
  // there is nobody to write to. One call at a time.
  std::atomic<void (*)(bool nobody, int least)> follow{nullptr};
};

// All deadlines are for the whole call. Failures carry the daemon's code, message and detail.
class ClientControl {
 public:
  virtual ~ClientControl() = default;
  virtual Result<AttachInfo> Attach(const ConnectOptions& options, const std::string& runtime_dir,
                                    ControlCallbacks callbacks) = 0;
  // `products`: this process can run products around its client-placed kernels.
  virtual Result<JoinInfo> JoinGroup(const JoinOptions& options, const std::string& gpu_uuid,
                                     bool products) = 0;
  virtual Status LeaveGroup(uint64_t group_id, Milliseconds deadline) = 0;
  virtual Result<uint64_t> Empty(const TensorSpec& spec, const std::string& gpu_uuid,
                                 const std::string& name) = 0;
  virtual Result<RendezvousInfo> Rendezvous(uint64_t tensor_id, uint64_t group_id, Milliseconds deadline) = 0;
  virtual Status Free(uint64_t tensor_id) = 0;
  virtual Result<uint64_t> Register(const RegisterInfo& memory) = 0;
  virtual Status Deregister(uint64_t registration_id) = 0;
  virtual Result<PreparedPlan> Prepare(uint64_t group_id, const std::string& key, const OpRequest& request,
                                       const PrepareTuning& tuning, Milliseconds deadline) = 0;
  // The plan of a Prepare by all ranks. Waits for no rank.
  virtual Result<PlanInfo> Preview(uint64_t group_id, const OpRequest& request) = 0;
  // Whether this rank can launch a client-placed plan (`refusal` is OK). Waits for all ranks; fails on all if
  // one of them cannot.
  virtual Status ArmPlan(uint64_t plan_id, const Status& refusal, Milliseconds deadline) = 0;
  // Returns once the group is stalled, after a few ten milliseconds.
  virtual Status ReportFailure(const FailureReport& report) = 0;
  // The two steps of a renewal; each waits for the same step of all ranks. First: no launch of this rank's is
  // under way, and `finished` is the last that a block of it has finished. Then: its counters stand at the
  // number of the first step's answer.
  virtual Result<RenewalInfo> StopForRenewal(uint64_t group_id, uint64_t finished, Milliseconds deadline) = 0;
  virtual Result<RenewalInfo> EndRenewal(uint64_t group_id, Milliseconds deadline) = 0;
  // One step of this rank's; waits for the same step of all ranks. `finished`: as StopForRenewal's, with kStopped.
  virtual Result<SuspensionInfo> Suspend(uint64_t group_id, SuspendStep step, uint64_t finished,
                                         Milliseconds deadline) = 0;
  // kOffer: the session gets requests from now on.
  // kAgree: the program has begun `step`, and begins no further one. Returns the step before which the job sleeps.
  // kArrived: the program is at that step. Waits for the job's other sessions.
  // ABORTED: nobody asks any more.
  virtual Result<uint64_t> ServeSuspension(ServePhase phase, uint64_t request, uint64_t step) = 0;
  // No call is under way, and none is made before EndCheckpoint: the session is left to a restored process, and this
  // one keeps no connection. FAILED_PRECONDITION: reason NOT_SUSPENDED, HAS_CHANNELS. After an error it goes on.
  virtual Status BeginCheckpoint(Milliseconds) { return NoCheckpoints(); }
  // The process takes its session back; nothing where it has it. After an error the call may be made again.
  virtual Status EndCheckpoint(Milliseconds) { return NoCheckpoints(); }
  // The memory that the daemon shares with this process: of registrations, and verdict pages of groups.
  virtual Result<std::vector<UniqueFd>> TakeShared(const std::vector<uint64_t>& /*registration_ids*/,
                                                   const std::vector<uint64_t>& /*group_ids*/) {
    return NoCheckpoints();
  }
  virtual Status ReleasePlan(uint64_t plan_id) = 0;
  virtual Result<ChannelInfo> OpenChannel(const std::string& gpu_uuid, uint32_t entries) = 0;
  virtual Status CloseChannel(uint64_t channel_id) = 0;
  virtual Result<uint64_t> Launch(const DirectLaunch& launch) = 0;
  // How the launch has ended, once. DEADLINE_EXCEEDED with reason NOT_ENDED if it has not by `deadline`; 0:
  // asks without waiting.
  virtual Status WaitLaunch(uint64_t launch_id, Milliseconds deadline) = 0;
  // OK if the daemon answers and knows the session.
  virtual Status Check() = 0;
  virtual Status Detach() = 0;
  // Ends the plugin's threads; no callback comes after it.
  virtual void Shutdown() = 0;
  // The lease socket, for a forked child to close; -1 before Attach.
  virtual int LeaseFd() const = 0;

 private:
  static Status NoCheckpoints() { return Status(Code::kUnimplemented, "this control has no checkpoints"); }
};

}  // namespace tandem::client

extern "C" {
// The one symbol of libtandem_grpc.so: a new Control, owned by the caller; null if `api_version` is not
// its own. `log`: for lines of the plugin's libraries, the same at each call; null: they are the program's.
typedef tandem::client::ClientControl* (*TandemGrpcCreate)(int api_version, tandem::client::PluginLog* log);
}
