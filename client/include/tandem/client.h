// File: client.h
//
// The C++ interface of Tandem's client library. A training process connects to the node's daemon, joins a
// group, gives memory to it, prepares plans once, and launches them on its streams.
//
//   tandem::ConnectOptions options;
//   auto client = tandem::Client::Connect(options);
//   auto group = (*client)->JoinGroup({.job_key = key, .name = "tp", .world_size = 4, .rank = rank});
//   auto plan = (*group)->Prepare("layer0.up", request);
//   (*plan)->Launch(stream, bindings);            // stream-ordered: no CPU waits
//   stream.Synchronize(...);  (*plan)->Wait();    // the status of the launches
//
// Stability: this interface needs C++20 and is not ABI-stable. A program and the library must have the same
// headers, or the program does not load (tandem/interface_guard.h). The C interface (tandem/tandem.h) is
// ABI-stable. No type of gRPC, protobuf or abseil appears here or in the library's symbols.
//
// Threads: Client, Group, Plan and Memory may be used from any thread at the same time.
//
// Ownership: handles are reference counted. A handle keeps what it came from alive. References that a handle
// returns live as long as the handle. Arguments are copied, if their function does not say otherwise.
//
// Errors: every call fails with UNAVAILABLE (reason DAEMON_LOST) once the daemon is gone. After an eviction
// the reason is EVICTED (UNAVAILABLE, or UNAUTHENTICATED at first). After Client::Detach calls fail with
// UNAVAILABLE, and in a forked child with FAILED_PRECONDITION (reason FORKED). Each function names its other
// errors; docs/recovery.md lists the reasons.
//
// Fork: the child of a process that has connected cannot use this library, because gRPC does not outlive a
// fork. The child may drop handles; their mappings are not there. The parent is unharmed. Start such a child
// by exec or spawn, or fork before connecting.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tandem/deadlines.h"
#include "tandem/dtype.h"
#include "tandem/interface_guard.h"
#include "tandem/memory_usage.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

#define TANDEM_API __attribute__((visibility("default")))

namespace tandem {

// Durations of deadlines and timeouts. Zero or less means: look once, do not wait. More than a year counts as
// a year.
using Milliseconds = std::chrono::milliseconds;
// For the daemon to answer a connection.
inline constexpr Milliseconds kDefaultConnectDeadline{TANDEM_DEFAULT_CONNECT_DEADLINE_MS};
// For the other ranks of a group: joining, preparing, rendezvous, allocating, leaving.
inline constexpr Milliseconds kDefaultDeadline{TANDEM_DEFAULT_DEADLINE_MS};
// For launches to end.
inline constexpr Milliseconds kDefaultWaitDeadline{TANDEM_DEFAULT_WAIT_DEADLINE_MS};

// The client's stream: on the host backend a HostStream (tandem/host_stream.h), on the CUDA backend a
// cudaStream_t or CUstream of any context of the group's GPU. Null is the legacy default stream;
// cudaStreamPerThread is allowed. The stream stays the caller's.
class HostStream;
struct StreamRef {
  StreamRef(HostStream* stream) : host(stream) {}  // NOLINT(google-explicit-constructor)
  static StreamRef Cuda(void* stream) {
    StreamRef ref(nullptr);
    ref.cuda = stream;
    ref.is_cuda = true;
    return ref;
  }
  HostStream* host = nullptr;
  void* cuda = nullptr;
  bool is_cuda = false;
};

struct ConnectOptions {
  std::string runtime_dir = {};  // empty: $TANDEM_RUNTIME_DIR, else /run/tandem
  Milliseconds deadline{kDefaultConnectDeadline};
  std::string name = {};  // shown by tandemctl; empty: the program's name
};

struct GpuDescription {
  std::string uuid = {};
  std::string model = {};
  int index = 0;  // on the node, as nvidia-smi has it
  uint64_t memory_bytes = 0;
};

struct JoinOptions {
  std::string job_key = {};   // at least 16 bytes, equal on all ranks of the job, secret to the job
  std::string name = {};      // of the group, within the job
  int world_size = 1;         // 1 to 8 ranks, one GPU each
  int rank = 0;               // 0 to world_size - 1
  std::string gpu_uuid = {};  // empty: the GPU with index `rank`
  // Must agree on all ranks: docs/operations.md, group options.
  std::map<std::string, std::string> options = {};
  Milliseconds deadline{kDefaultDeadline};  // for all ranks to join
  // Of launches, from the first rank's arrival; 0: the daemon's default, 10 minutes.
  Milliseconds launch_deadline{0};
  // For a rank whose client and engine share no MPS server. kError refuses the group, and later plans with
  // kernels, with FAILED_PRECONDITION and reason SLOW_PLACEMENT.
  OnSlowPlacement on_slow_placement = OnSlowPlacement::kAllow;
};

// A plan's explanation, equal on all ranks. docs/algorithms.md describes the fields.
struct PlanInfo {
  struct Refused {
    Algorithm algorithm = Algorithm::kAuto;
    std::string reason = {};
    double predicted_us = 0;
  };
  uint64_t plan_id = 0;
  std::string key;
  Op op = Op::kBarrier;
  Algorithm algorithm = Algorithm::kAuto;
  std::string reason;
  std::vector<Refused> refused;
  bool fused = true;
  int steps = 0;
  int lanes = 1;
  std::string summary, scale_mode, wire_type, reduction_order, placement;
  PlanPlacement placed =
      PlanPlacement::kAuto;  // who launches it: kEngine or kClient; kAuto: an older daemon's plan
  int roundings = 0;
  bool deterministic = true;
  Determinism determinism = Determinism::kOff;  // what the plan keeps
  std::string rounding;  // "once" or "model", of the norm behind a sum with a residual; "": no such norm
  std::string norm;      // which kernel norms, and why; "": no norm
  uint64_t workspace_bytes = 0, bulk_bytes = 0, bytes_moved = 0, gathered_a_bytes = 0;
  uint64_t group_workspace_bytes = 0;     // what the group's plans need together, sharing both halves
  uint64_t unshared_workspace_bytes = 0;  // what they would take without sharing
  double predicted_us = 0;
  std::vector<std::string> warnings;
  std::vector<uint64_t> slot_bytes;  // by slot: bytes needed from a binding's offset
  // Numbers of rows of a family (OpRequest::max_rows) that have one algorithm. The first range begins at 0,
  // each other one behind the last number of the range before.
  struct RowRange {
    int64_t last = 0;
    Algorithm algorithm = Algorithm::kAuto;
    std::string reason = {};
    double predicted_us = 0;  // of `last` rows
  };
  // A family's launches have multiples of row_unit, up to max_rows. The other fields describe its bound.
  int64_t max_rows = 0, row_unit = 1;
  std::vector<RowRange> rows;  // ascending
};

// The explanation as text for people, in lines. Empty where memory is out.
TANDEM_API std::string Explain(const PlanInfo& info);

// Something that happened to the session, its groups or the daemon. `rank` and `status` name the cause.
struct ClientEvent {
  enum class Kind {
    kRankLost,          // a member's session ended without leaving
    kGroupBroken,       // the group's launches fail from now on
    kRankLeft,          // a member has left cleanly
    kEngineRestarted,   // launches in flight were aborted; plans and memory go on
    kDraining,          // the daemon takes no new sessions and groups
    kLate,              // ranks have not arrived at a launch for a second
    kDaemonLost,        // this session is over: the daemon is gone, or has evicted it
    kPlanWarning,       // a plan was made that does less than was asked; once a plan
    kGroupStalled,      // a launch has failed, and later ones fail until the ranks have renewed the group
    kSuspendRequested,  // an operator wants the memory of the client's groups: see IsAskedToSuspend
    kResumeRequested,   // the groups may have it again
  };
  Kind kind = Kind::kLate;
  uint64_t group_id = 0;  // 0: no group
  int rank = -1;          // -1: no rank
  Status status = {};
};

// Memory that launches can be bound to: a symmetric tensor after its rendezvous, or registered memory of the
// client's.
class TANDEM_API Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t registration_id() const = 0;
  // This rank's bytes, mapped in this process: a host address on the host backend, a device address on CUDA.
  // Valid while the handle lives, which must be longer than the work on streams that uses the address.
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // The offset of data() in the registration, in bytes. A registration may be larger than the memory asked
  // for.
  virtual uint64_t registration_offset() const { return 0; }
  // The memory's GPU.
  virtual const std::string& gpu_uuid() const = 0;
  // FAILED_PRECONDITION, reason MEMORY_FREED, once the memory behind a device pointer has been freed,
  // whatever has its address now. Launches check the memory that they are bound to.
  virtual Status Check() const { return Status::Ok(); }
};

// A symmetric tensor: memory at the same offset on every rank of the group, all of it mapped here. Offsets
// are in bytes. Functions that take a peer fail with OUT_OF_RANGE for a rank that is none. Signals: see
// SignalPad.
class TANDEM_API SymmetricTensor : public Memory {
 public:
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The address in this process of `peer`'s tensor, `offset_bytes` on. OUT_OF_RANGE: a tensor of this shape
  // does not fit there.
  virtual Result<std::byte*> GetBuffer(int peer, const std::vector<int64_t>& shape, DType dtype,
                                       size_t offset_bytes = 0) const = 0;
  // The user's own signal pad on `peer`: 32-bit words, zero at the rendezvous. Only the user, and the three
  // functions that follow, change them. A device address on CUDA: for kernels, not for the CPU. Empty for a
  // rank that is none.
  virtual std::span<uint32_t> SignalPad(int peer) const = 0;
  // Signals `peer` on `channel`: sets the pad's word for (this rank, channel) from 0 to 1. Waits until the
  // peer has taken the signal before. DEADLINE_EXCEEDED names the peer in `ranks`. OUT_OF_RANGE: no such
  // channel.
  virtual Status PutSignal(int peer, int channel, Milliseconds timeout) = 0;
  // Waits for the peer's signal and takes it (1 to 0). Errors: those of PutSignal.
  virtual Status WaitSignal(int peer, int channel, Milliseconds timeout) = 0;
  // PutSignal to all, then WaitSignal from all. DEADLINE_EXCEEDED names the ranks that did not
  // arrive. The channel's next Barrier then continues this one.
  virtual Status Barrier(int channel, Milliseconds timeout) = 0;
  // Channels of the pad: [0, channels()).
  virtual int channels() const = 0;
  // Enqueue writes of 32-bit words into this rank's or a peer's tensor; Memset32 writes `count` words.
  // `offset_bytes` is a multiple of 4, else INVALID_ARGUMENT. OUT_OF_RANGE: beyond the tensor.
  virtual Status StreamWriteValue32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value) = 0;
  virtual Status Memset32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value, size_t count) = 0;
};

// A slot's memory in a launch: `offset` bytes into a Memory; or, without a Memory, `offset` bytes from an
// address in this process. The address may lie in a symmetric tensor of the group, or in memory of
// AllocateRegistered whose handles live. On the CUDA backend it may also lie in the user's own memory on the
// GPU, which the first launch with it registers, as Client::RegisterCuda.
struct Binding {
  const Memory* memory = nullptr;
  uint64_t offset = 0;
  const void* pointer = nullptr;
};

struct LaunchOptions {
  Milliseconds deadline{0};  // from the first rank's arrival; 0: the group's
  std::string tag = {};      // compared across ranks; a mismatch fails the launch on all ranks
  // A family's launch names its number of rows, the same on all ranks. Bindings need memory for these rows
  // only. kBoundRows stands for the family's bound, and is the only value for plans of one shape.
  static constexpr int64_t kBoundRows = -1;
  int64_t rows = kBoundRows;
};

// A request prepared once, launched many times. The plan ends with its last handle; a graph with a captured
// launch holds one. A failed launch's status has a reason in its detail: docs/protocol.md, "Launching".
//
// Operands belong to a launch from the call until the launch has ended. If `started` in a failed launch's
// detail is false, no operand was written. Else every operand that the launch writes is undefined, on every
// rank: a launch that failed on one rank may have ended well on another. To retry after ABORTED, all ranks
// agree on the launch to repeat, restore operands in place, and launch again. A plan prepared with
// `restartable` changes no input, so that its operands need no restoring.
class TANDEM_API Plan {
 public:
  virtual ~Plan() = default;
  virtual const PlanInfo& info() const = 0;

  // Enqueues one launch on `stream`, behind the work that is there; later work of the stream runs after the
  // launch. Does not wait for the launch. One binding for each slot. Every rank of the group must launch the
  // plan.
  //
  // Two slots must not overlap in memory, unless one is alias_of the other or the launch reads both.
  //
  // Returns the failure of an earlier launch of this plan on this stream, once, if there is one; else what is
  // wrong with this launch. The launch is enqueued even when an error is returned, and fails on all ranks
  // then, except for: - ABORTED, reason ENGINE_RESTARTED: not enqueued. Returned once per rank after an
  // engine's restart; then all
  //   plans go on. Wait and Query return the failures of launches of other plans.
  // - RESOURCE_EXHAUSTED, reason RING_FULL: too many launches were in flight for as long as the deadline. A
  // later
  //   call returns the earlier failure.
  // - UNAVAILABLE: the group is broken, or the daemon is lost.
  // - Any error while the stream captures.
  //
  // Errors of bindings, with `field` "bindings[i]":
  // - INVALID_ARGUMENT, reason NOT_BOUND, BINDING_COUNT, SLOTS_OVERLAP, WRONG_DEVICE or NOT_REGISTRABLE.
  // - OUT_OF_RANGE, reason BINDING_TOO_SMALL.
  // - INVALID_ARGUMENT, reason NOT_ALIGNED or NOT_SYMMETRIC.
  // - FAILED_PRECONDITION, reason MEMORY_FREED, OTHER_GROUP (a symmetric tensor of another group) or
  // OTHER_CLIENT.
  //
  // In a capture the launch becomes part of the graph and is made at each replay. A replay's failure is
  // returned by the next call of the plan, whatever its stream; of several, the latest.
  virtual Status Launch(StreamRef stream, std::span<const Binding> bindings,
                        const LaunchOptions& options = {}) = 0;

  // Launches without a stream, by gRPC: the launch arrives at once. Returns a number for WaitLaunch, which
  // also returns what is wrong with the bindings. ABORTED and UNAVAILABLE are as with Launch.
  virtual Result<uint64_t> LaunchWithoutStream(std::span<const Binding> bindings,
                                               const LaunchOptions& options = {}) = 0;
  // Waits for a launch of LaunchWithoutStream and returns its outcome, once. DEADLINE_EXCEEDED, reason
  // NOT_ENDED: it has not ended by `deadline`, and may be waited for again. NOT_FOUND: not a launch of this
  // plan, or its outcome has been returned.
  virtual Status WaitLaunch(uint64_t launch, Milliseconds deadline = kDefaultWaitDeadline) = 0;
  // Waits until every launch of this plan by this client has ended. Returns the first failure not yet
  // returned, ABORTED before any other; the others are dropped. `started` is then about all of them.
  // DEADLINE_EXCEEDED: launches have not ended.
  virtual Status Wait(Milliseconds deadline = kDefaultWaitDeadline) = 0;
  // Returns true if all launches have ended, without waiting. Returns failures as Wait. Asks the daemon, by
  // one call, while a launch of LaunchWithoutStream is under way.
  virtual Result<bool> Query() = 0;
  // Ends the plan on this rank, after its launches on streams. Launches of LaunchWithoutStream that are under
  // way end with ABORTED. DEADLINE_EXCEEDED: launches on streams have not ended within a minute; then, and
  // where the daemon has not heard of the release, the plan goes on. FAILED_PRECONDITION: the plan has been
  // released.
  virtual Status Release() = 0;
};

// This process's membership in a group of ranks. The group is left with its last handle (of plans and
// tensors, too).
class TANDEM_API Group {
 public:
  // Whether an algorithm can serve an operation on these GPUs, and why not.
  struct Offer {
    Op op = Op::kEmpty;
    Algorithm algorithm = Algorithm::kAuto;
    bool available = false;
    std::string reason = {};
  };
  virtual ~Group() = default;
  virtual uint64_t id() const = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Counts the lives of the group's name, from 1.
  virtual uint64_t incarnation() const = 0;
  // This rank's GPU.
  virtual const std::string& gpu_uuid() const = 0;
  // The kind of the GPUs' connections.
  virtual const std::string& topology_class() const = 0;
  // Links between the GPUs of two ranks: [from][to].
  virtual const std::vector<std::vector<int>>& link_counts() const = 0;
  virtual const std::vector<Offer>& offers() const = 0;
  // Waits until all ranks have prepared `key`. All get the same plan, or the same error. INVALID_ARGUMENT:
  // `field` is wrong, or differs between ranks (reason FIELD_MISMATCH). DEADLINE_EXCEEDED: `ranks` did not
  // come. FAILED_PRECONDITION: the chosen algorithm cannot run (ALGORITHM_REFUSED, UNFUSED_REFUSED,
  // NOT_RESTARTABLE, SLOW_PLACEMENT). RESOURCE_EXHAUSTED: workspace or a quota.
  virtual Result<std::shared_ptr<Plan>> Prepare(const std::string& key, const OpRequest& request,
                                                Milliseconds deadline = kDefaultDeadline) = 0;
  // The plan that Prepare would make if all ranks asked for `request` now: algorithm, placement, whether it is fused,
  // the reasons, predicted time. One rank alone asks the daemon. Waits for no rank, and makes nothing. `plan_id` is
  // 0, `key` empty, and the group's workspace is what it is without this plan. Memory and quotas are not looked at,
  // and a request with `autotune` is answered without measuring. Errors: those of Prepare for a request that
  // cannot run. INVALID_ARGUMENT, field "op": send_receive, whose plan needs the other ranks' transfers.
  // UNIMPLEMENTED: an older daemon.
  virtual Result<PlanInfo> Preview(const OpRequest& request) = 0;
  // Makes a symmetric tensor of this shape on every rank, in one call for Client::Empty and
  // Client::Rendezvous. Waits for all ranks. `persistent_name` not empty: later calls with the name get the
  // same memory while the group lives; else the memory ends with the tensor. DEADLINE_EXCEEDED: `ranks` did
  // not come. RESOURCE_EXHAUSTED: memory or a quota.
  virtual Result<std::shared_ptr<SymmetricTensor>> Allocate(const std::vector<int64_t>& shape, DType dtype,
                                                            const std::string& persistent_name = {},
                                                            Milliseconds deadline = kDefaultDeadline) = 0;
  // Leaves cleanly, after this rank's launches. Later launches of the other ranks fail with this rank's name.
  // DEADLINE_EXCEEDED: launches have not ended, and the group goes on.
  virtual Status Leave(Milliseconds deadline = kDefaultDeadline) = 0;
  // Lets launches go on after one of them has stalled the group, with the same plans, memory and graphs
  // (docs/recovery.md). Waits until all ranks have called it. Until it returns, this rank launches
  // no plan of the group and replays no graph with one. Launches may have ended well on some ranks and failed
  // on others: all ranks agree first on the launch to go on with. Failures that no call has returned yet are
  // dropped. With a daemon that cannot renew engines it does nothing for a group without
  // client-placed plans.
  //
  // DEADLINE_EXCEEDED: `ranks` did not call it, or launches of this rank's have not ended; all ranks may call
  // it again. UNAVAILABLE: the group is broken.
  virtual Status Renew(Milliseconds deadline = kDefaultDeadline) = 0;
  // Gives up the group's memory, on this rank and on the engines, until Resume (docs/suspend.md). Waits until all ranks
  // have called it. Addresses stay, so that plans, families, graphs and symmetric tensors are valid
  // afterwards. Until Resume returns, this rank reads no memory of the group and replays no graph with a plan of it; a
  // launch fails with reason SUSPENDED. `keep`: this rank's symmetric tensors keep their contents, in memory of the
  // process; else they are zero afterwards. Nothing for a suspended group.
  //
  // DEADLINE_EXCEEDED: `ranks` did not call it, or launches of this rank's have not ended. FAILED_PRECONDITION: a
  // stalled group, or a tensor of another group in this one's memory (TENSOR_SHARED). RESOURCE_EXHAUSTED: no
  // memory for the contents. UNAVAILABLE: the group is broken. UNIMPLEMENTED: an older daemon. After an error the
  // group runs on; if this rank had stopped already, it is suspended, and both calls may be made again.
  virtual Status Suspend(bool keep = false, Milliseconds deadline = kDefaultDeadline) = 0;
  // Makes the memory of a suspended group again, at the same addresses. Waits until all ranks have called it. Nothing for
  // a group that is not suspended. RESOURCE_EXHAUSTED: memory or a quota. DEADLINE_EXCEEDED: `ranks` did not
  // call it. UNAVAILABLE: the group is broken; a rank that has ended meanwhile is named. After an error the group
  // is suspended still, and the call may be made again.
  virtual Status Resume(Milliseconds deadline = kDefaultDeadline) = 0;
  // Returns the bytes that this process holds for the group. Needs no daemon, and works after Leave and
  // Client::Detach. Counts while other threads make and drop memory. FAILED_PRECONDITION, reason FORKED: in a forked
  // child.
  virtual Result<MemoryUsage> UsedMemory() const = 0;
};

// A session with the node's daemon. The session ends with its last handle of any kind, or by Detach.
class TANDEM_API Client : public std::enable_shared_from_this<Client> {
 public:
  // UNAVAILABLE: no daemon answers by the deadline; the message names the socket. PERMISSION_DENIED: the
  // daemon does not admit this user. RESOURCE_EXHAUSTED: a quota. FAILED_PRECONDITION: the gRPC plugin cannot
  // be loaded.
  static Result<std::shared_ptr<Client>> Connect(const ConnectOptions& options = {});
  virtual ~Client() = default;

  virtual uint64_t session_id() const = 0;
  // "host" or "cuda".
  virtual const std::string& backend() const = 0;
  virtual const std::string& daemon_version() const = 0;
  virtual const std::vector<GpuDescription>& gpus() const = 0;

  // Waits for all ranks. DEADLINE_EXCEEDED: `ranks` did not join. INVALID_ARGUMENT: `field` is wrong, or
  // differs between ranks. ALREADY_EXISTS: the rank is taken. RESOURCE_EXHAUSTED: a quota. UNAVAILABLE: the
  // daemon drains, or an engine does not run.
  virtual Result<std::shared_ptr<Group>> JoinGroup(const JoinOptions& options) = 0;

  // Makes a tensor without a group, and returns its number; memory comes with the first rendezvous.
  // NOT_FOUND: no such GPU.
  virtual Result<uint64_t> Empty(const std::vector<int64_t>& shape, DType dtype, const std::string& gpu_uuid,
                                 const std::string& persistent_name = {}) = 0;
  // Makes the tensors of all ranks one symmetric tensor. Waits for all ranks. A tensor may meet in several
  // groups. INVALID_ARGUMENT: the group is another client's, or sizes differ. NOT_FOUND: no such tensor. Else
  // as Group::Allocate.
  virtual Result<std::shared_ptr<SymmetricTensor>> Rendezvous(uint64_t tensor,
                                                              const std::shared_ptr<Group>& group,
                                                              Milliseconds deadline = kDefaultDeadline) = 0;
  // Ends a tensor of Empty; its memory goes with the last handle. NOT_FOUND: no such tensor.
  virtual Status Free(uint64_t tensor) = 0;

  // Registers `bytes` of the client's own memory on the GPU behind `fd`, which stays the caller's. On the
  // host backend: a memfd of at least `bytes`, sealed against shrinking. On CUDA: an exported VMM allocation
  // of `bytes`, a multiple of the granularity. INVALID_ARGUMENT: another kind of descriptor, or a smaller
  // one. RESOURCE_EXHAUSTED: a quota.
  virtual Result<std::shared_ptr<Memory>> RegisterFd(int fd, size_t bytes, const std::string& gpu_uuid) = 0;
  // Makes memory and registers it: on the CUDA backend a VMM allocation on that GPU, which this process must
  // see.
  virtual Result<std::shared_ptr<Memory>> AllocateRegistered(size_t bytes, const std::string& gpu_uuid) = 0;
  // Registers [device_pointer, device_pointer + bytes) of the user's own memory on a GPU. It is either
  // cudaMalloc's, and the engine maps the whole allocation, or virtual memory that can be exported as POSIX
  // descriptors, as PyTorch's expandable segments. Over 1024 touched chunks are INVALID_ARGUMENT, reason
  // TOO_MANY_DESCRIPTORS. The same memory again costs a look-up. The registration lasts until the memory is
  // freed or the session ends; the handle only names it. INVALID_ARGUMENT, reason NOT_REGISTRABLE: other
  // memory; the message says which memory to use.
  virtual Result<std::shared_ptr<Memory>> RegisterCuda(const void* device_pointer, size_t bytes) = 0;
  // The UUID of this process's CUDA device `ordinal`, as the daemon names the GPU.
  static Result<std::string> CudaDeviceUuid(int ordinal);

  // Sets the callback for events, in place of an earlier one; null: none. It is called from a thread of the
  // library, one event at a time, and must not block. It may drop handles, also the last one, and
  // call OnEvent. Once OnEvent has returned, the earlier callback is not called any more.
  virtual void OnEvent(std::function<void(const ClientEvent&)> callback) = 0;
  // Returns the bytes that this process holds for all groups of the client and for none. A segment that groups share
  // counts once, so that this may be less than the groups' sum. Else as Group::UsedMemory.
  virtual Result<MemoryUsage> UsedMemory() const = 0;
  // Call it between two steps of the program, on every rank: a step is a part of the work that all ranks of the job
  // begin and end alike. True: an operator asks the job to give up its GPU memory, and SuspendAsAsked() is to be
  // called before the step. The job takes such requests once all its processes have made the first call
  // (docs/suspend.md). `step`: the number of the step that begins, the same on all ranks, larger each time; -1: calls
  // of this client are counted, for jobs whose processes make the first call at the same step. One thread
  // calls it. It waits for the daemon in the first call alone, and for no rank.
  virtual bool IsAskedToSuspend(int64_t step = -1) = 0;
  // Suspends all groups of the client where all ranks are at the agreed step, and waits until an operator resumes the
  // job. Then it resumes them. Before the call, the program's own kernels that use memory of groups have ended, and
  // none begins on another thread before it returns. `keep`: as Group::Suspend's. Returns whether the groups
  // have slept: false where the agreed step comes later, and where the operator has given up.
  //
  // UNAVAILABLE: a group has broken meanwhile, or the daemon is lost. CANCELLED: the groups may sleep on; the call may
  // be made again.
  virtual Result<bool> SuspendAsAsked(bool keep = true) = 0;
  // Suspends all groups of the client, as Group::Suspend each. All ranks of all groups call it, whatever groups each of
  // them has, and it waits for them. `deadline`: for all groups together. Groups that sleep already sleep on, and
  // groups that have been left do not count. Nothing where all sleep.
  //
  // An error is that of the first group that does not sleep, and names it: those of Group::Suspend. The groups that
  // this call has put to sleep are woken up, which takes as long as `deadline` again at most. A group of a rank that
  // has suspended all its groups by then sleeps on, and is named: all ranks call Resume. CANCELLED: groups may sleep on;
  // either call may be made.
  virtual Status Suspend(bool keep = false, Milliseconds deadline = kDefaultDeadline) = 0;
  // Resumes all groups of the client, as Group::Resume each. All ranks call it, as Suspend. Nothing where all are awake.
  // An error is that of the first group that does not wake up, and names all groups that sleep on: those of
  // Group::Resume. The other groups are awake. The call may be made again, for those that sleep.
  virtual Status Resume(Milliseconds deadline = kDefaultDeadline) = 0;
  // Before a checkpoint of the process's memory, on the host backend: all groups sleep, and the process gives up its
  // connections to the daemon. A process that is restored from the checkpoint, or this one, takes the session back by
  // EndCheckpoint, or Group::Resume. In between, no handle of the client is used or dropped, and its end ends no session
  // (docs/suspend.md). Idempotent. FAILED_PRECONDITION: reason NOT_SUSPENDED, or HAS_CHANNELS for graphs with launches
  // that engines run. UNIMPLEMENTED: the CUDA backend.
  virtual Status BeginCheckpoint(Milliseconds deadline = kDefaultDeadline) = 0;
  // UNAVAILABLE: no daemon answers. UNAUTHENTICATED, FAILED_PRECONDITION: the session has ended, or another process has
  // restored it. Idempotent, also after an error.
  virtual Status EndCheckpoint(Milliseconds deadline = kDefaultDeadline) = 0;
  // OK if the daemon is reachable and the session lives.
  virtual Status Check() = 0;
  // Ends the session cleanly. Handles fail with UNAVAILABLE afterwards.
  virtual Status Detach() = 0;
};

}  // namespace tandem
