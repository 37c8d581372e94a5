// File: client.h
//
// Tandem's client library. A training process connects to the node's daemon, joins a group, gives memory to
// it, prepares plans once and launches them on its streams.
//
//   tandem::ConnectOptions options;
//   auto client = tandem::Client::Connect(options);
//   auto group = (*client)->JoinGroup({.job_key = key, .name = "tp", .world_size = 4, .rank = rank});
//   auto plan = (*group)->Prepare("layer0.up", request, deadline);
//   (*plan)->Launch(stream, bindings);            // stream-ordered: no CPU waits
//   stream.Synchronize(...);  (*plan)->Wait();    // the status of what was launched
//
// Thread rule: Client, Group, Plan and Memory may be used from any thread at the same time. Handles are
// reference counted; a handle keeps what it came from alive. No type of gRPC, protobuf or abseil appears here
// or in the library's symbols.
//
// Fork: the child of a process that has connected has no use of this library, for gRPC does not outlive a
// fork. Its handles, and Connect, answer FAILED_PRECONDITION with reason FORKED; what they mapped is not
// there; dropping them is allowed, and the parent's are unharmed. Start such a child by exec or spawn, or
// fork it before the parent connects.
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

#include "tandem/dtype.h"
#include "tandem/op_request.h"
#include "tandem/status.h"

#define TANDEM_API __attribute__((visibility("default")))

namespace tandem {

// Deadlines and timeouts are at least 0 and count as a year where they are longer.
using Milliseconds = std::chrono::milliseconds;

// The client's stream on the host backend: tandem/host_stream.h. On the CUDA backend a cudaStream_t (or
// CUstream) is passed: one of any context of the group's GPU, null for the legacy default stream,
// cudaStreamPerThread.
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
  std::string runtime_dir;      // empty: $TANDEM_RUNTIME_DIR, else /run/tandem
  Milliseconds deadline{5000};  // for the daemon to answer
  std::string name;             // shown by tandemctl; empty: the program's name
};

struct GpuDescription {
  std::string uuid;
  std::string model;
  int index = 0;
  uint64_t memory_bytes = 0;
};

struct JoinOptions {
  std::string job_key;  // at least 16 bytes, equal on all ranks of the job, secret to it
  std::string name;
  int world_size = 1;
  int rank = 0;
  std::string gpu_uuid;  // empty: the GPU with index `rank`
  std::map<std::string, std::string>
      options;  // must agree on all ranks; known: docs/operations.md, group options
  Milliseconds deadline{30000};
  Milliseconds launch_deadline{0};  // from a launch's first arrival; 0: the daemon's default (10 minutes)
  // Where client and engine of some rank share no MPS server; kError refuses the group, and later plans with
  // kernels, with FAILED_PRECONDITION and reason SLOW_PLACEMENT.
  OnSlowPlacement on_slow_placement = OnSlowPlacement::kAllow;
};

// How a plan explains itself; equal on all ranks. Fields are those of plan::Plan (docs/algorithms.md).
struct PlanInfo {
  struct Refused {
    Algorithm algorithm;
    std::string reason;
    double predicted_us;
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
  int roundings = 0;
  bool deterministic = true;
  uint64_t workspace_bytes = 0, bulk_bytes = 0, bytes_moved = 0, gathered_a_bytes = 0;
  uint64_t group_workspace_bytes = 0;     // what the group's plans need together, sharing both halves
  uint64_t unshared_workspace_bytes = 0;  // what they would take without sharing
  double predicted_us = 0;
  std::vector<std::string> warnings;
  std::vector<uint64_t> slot_bytes;  // by slot: bytes needed from a binding's offset
};

// Something that happened to the session, its groups or the daemon.
struct ClientEvent {
  enum class Kind { kRankLost, kGroupBroken, kRankLeft, kEngineRestarted, kDraining, kLate, kDaemonLost };
  Kind kind;
  uint64_t group_id = 0;
  int rank = -1;
  Status status;
};

// Memory that launches can be bound to: a symmetric tensor after its rendezvous, or registered memory of the
// client's.
class TANDEM_API Memory {
 public:
  virtual ~Memory() = default;
  virtual uint64_t registration_id() const = 0;
  // This rank's bytes, mapped in this process: an address of the device on the CUDA backend. Valid while the
  // handle lives, which must be longer than the work on streams that uses them.
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // Where data() lies in what was registered, in bytes: a registration may be larger than the memory asked
  // for.
  virtual uint64_t registration_offset() const { return 0; }
  // The GPU that it lies on.
  virtual const std::string& gpu_uuid() const = 0;
  // FAILED_PRECONDITION once the memory behind a device pointer has been freed, whatever has its address now.
  // Launches ask this of what they are bound to.
  virtual Status Check() const { return Status::Ok(); }
};

// A symmetric tensor: the same offset on every rank of the group, all of them mapped here.
class TANDEM_API SymmetricTensor : public Memory {
 public:
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // The bytes of `peer`'s tensor from `offset` on; OUT_OF_RANGE for a wrong rank or range.
  virtual Result<std::byte*> GetBuffer(int peer, const std::vector<int64_t>& shape, DType dtype,
                                       size_t offset_bytes = 0) const = 0;
  // The user's own signal pad on `peer`: 32-bit words, zero at the rendezvous, never touched by Tandem
  // otherwise. An address of the device on the CUDA backend: for kernels, not for the CPU.
  virtual std::span<uint32_t> SignalPad(int peer) const = 0;
  // Word 0 -> 1 on the peer's pad for (this rank, channel); DEADLINE_EXCEEDED if the peer has not taken the
  // last one.
  virtual Status PutSignal(int peer, int channel, Milliseconds timeout) = 0;
  // Waits for the peer's signal and takes it (1 -> 0).
  virtual Status WaitSignal(int peer, int channel, Milliseconds timeout) = 0;
  // PutSignal to all and WaitSignal from all; DEADLINE_EXCEEDED names the ranks that did not come.
  virtual Status Barrier(int channel, Milliseconds timeout) = 0;
  // Channels of the pad: [0, channels()).
  virtual int channels() const = 0;
  // Stream-ordered writes into this rank's or a peer's tensor, by tensor and offset, never by a bare address.
  virtual Status StreamWriteValue32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value) = 0;
  virtual Status Memset32(StreamRef stream, int peer, size_t offset_bytes, uint32_t value, size_t count) = 0;
};

// What a slot is bound to: `offset` bytes into a Memory; or, without one, an address in this process. That
// may lie in a symmetric tensor of the group or in memory made by AllocateRegistered whose handles live, or,
// on the CUDA backend, in memory of the user's own on the GPU, which is registered as by Client::RegisterCuda
// when a launch first sees it.
struct Binding {
  const Memory* memory = nullptr;
  uint64_t offset = 0;
  const void* pointer = nullptr;
};

struct LaunchOptions {
  Milliseconds deadline{0};  // from the first rank's arrival; 0: the group's
  std::string tag;           // compared across ranks: a mismatch fails the launch on all of them
};

// A request prepared once, launched many times. Ends with its last handle; a graph with a captured launch has
// one. A failed launch's status has a reason in its detail, the same on a stream, in a graph and by gRPC:
// docs/protocol.md, "Launching".
class TANDEM_API Plan {
 public:
  virtual ~Plan() = default;
  virtual const PlanInfo& info() const = 0;
  // Enqueues the launch on `stream`, behind what is there; work enqueued later runs after it. One binding per
  // slot. Returns the failure of an earlier launch of this plan on this stream if there is one not yet
  // returned, else what is wrong with this launch (which then still arrives, and fails on all ranks). The
  // launch is made all the same, save for the failures after which nothing can be: ABORTED (an engine was
  // started again; one launch of the group's is stopped by that, then all plans go on; launches of other
  // plans that it cut off are told by Wait and Query), a broken group, a lost daemon. RESOURCE_EXHAUSTED with
  // reason RING_FULL: the ring was full for as long as the launch's deadline, and the launch was not made; a
  // later call returns the earlier failure then. In a capture the launch becomes part of the graph and is
  // served at each replay; a replay's failure is returned by the next call whatever stream it ran on, of
  // several since the last call the latest.
  virtual Status Launch(StreamRef stream, std::span<const Binding> bindings,
                        const LaunchOptions& options = {}) = 0;
  // Without a stream, over gRPC: arrives at once. Returns a number for WaitLaunch.
  virtual Result<uint64_t> LaunchDirect(std::span<const Binding> bindings,
                                        const LaunchOptions& options = {}) = 0;
  // How that launch of this plan has ended, once. DEADLINE_EXCEEDED also if it has not by `deadline`, with
  // reason NOT_ENDED: it can be waited for again then. NOT_FOUND for a launch that is not this plan's, or
  // whose outcome a call has told.
  virtual Status WaitLaunch(uint64_t launch, Milliseconds deadline) = 0;
  // Waits until every launch of this plan by this client has ended; the first failure not yet returned,
  // ABORTED before any other, which tells the rest too, else OK.
  virtual Status Wait(Milliseconds deadline = Milliseconds(600000)) = 0;
  // Like Wait without waiting: OK with true if all have ended. Asks the daemon, one call that waits for
  // nothing, while a launch by LaunchDirect is under way.
  virtual Result<bool> Query() = 0;
  // Ends the plan. Launches on streams end first: DEADLINE_EXCEEDED if they have not within a minute, and the
  // plan goes on then, as it does where the daemon has not heard of it. Those by LaunchDirect that are under
  // way end with ABORTED.
  virtual Status Release() = 0;
};

class TANDEM_API Group {
 public:
  struct Offer {
    Op op;
    Algorithm algorithm;
    bool available;
    std::string reason;
  };
  virtual ~Group() = default;
  virtual uint64_t id() const = 0;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual uint64_t incarnation() const = 0;
  virtual const std::string& gpu_uuid() const = 0;
  virtual const std::string& topology_class() const = 0;
  virtual const std::vector<std::vector<int>>& link_counts() const = 0;
  virtual const std::vector<Offer>& offers() const = 0;
  // Waits until all ranks have asked for `key`; all get the same plan, or one error that names the field.
  virtual Result<std::shared_ptr<Plan>> Prepare(const std::string& key, const OpRequest& request,
                                                Milliseconds deadline = Milliseconds(30000)) = 0;
  // Empty and Rendezvous in one: a symmetric tensor of this shape on every rank. `persistent_name` not empty:
  // the same memory on every later call with the name while the group lives.
  virtual Result<std::shared_ptr<SymmetricTensor>> Allocate(const std::vector<int64_t>& shape, DType dtype,
                                                            const std::string& persistent_name = {},
                                                            Milliseconds deadline = Milliseconds(30000)) = 0;
  // Leaves cleanly: waits for the own launches; later launches of others fail with this rank's name.
  virtual Status Leave(Milliseconds deadline = Milliseconds(30000)) = 0;
};

class TANDEM_API Client : public std::enable_shared_from_this<Client> {
 public:
  // UNAVAILABLE if no daemon answers by the deadline; the message names the socket. FAILED_PRECONDITION with
  // reason FORKED in a child forked by a process that had connected.
  static Result<std::shared_ptr<Client>> Connect(const ConnectOptions& options = {});
  virtual ~Client() = default;

  virtual uint64_t session_id() const = 0;
  virtual const std::string& backend() const = 0;
  virtual const std::string& daemon_version() const = 0;
  virtual const std::vector<GpuDescription>& gpus() const = 0;

  virtual Result<std::shared_ptr<Group>> JoinGroup(const JoinOptions& options) = 0;

  // A tensor without a group (memory comes with the first rendezvous), and its meeting with the other ranks.
  // One tensor may meet in several groups.
  virtual Result<uint64_t> Empty(const std::vector<int64_t>& shape, DType dtype, const std::string& gpu_uuid,
                                 const std::string& persistent_name = {}) = 0;
  virtual Result<std::shared_ptr<SymmetricTensor>> Rendezvous(
      uint64_t tensor, const std::shared_ptr<Group>& group, Milliseconds deadline = Milliseconds(30000)) = 0;
  virtual Status Free(uint64_t tensor) = 0;

  // Registers memory of the client's own on the GPU: on the host backend a sealed memfd of at least `bytes`,
  // on the CUDA backend an exported VMM allocation of `bytes`, a multiple of its granularity. `fd` stays the
  // caller's.
  virtual Result<std::shared_ptr<Memory>> RegisterFd(int fd, size_t bytes, const std::string& gpu_uuid) = 0;
  // Makes such memory and registers it; on the CUDA backend a VMM allocation on that GPU, which this process
  // must see.
  virtual Result<std::shared_ptr<Memory>> AllocateRegistered(size_t bytes, const std::string& gpu_uuid) = 0;
  // Registers [device_pointer, device_pointer + bytes) of the user's own memory on a GPU: cudaMalloc's (whose
  // whole allocation the daemon's engine then maps) or virtual memory that can be exported as POSIX
  // descriptors (PyTorch's expandable segments: the chunks touched, a descriptor each, of which there may be
  // 1024; for more INVALID_ARGUMENT, reason TOO_MANY_DESCRIPTORS). The same memory again costs a look-up.
  // Registered until it is freed or the session ends; the handle only names it. INVALID_ARGUMENT with reason
  // NOT_REGISTRABLE says why other memory cannot be, and what can.
  virtual Result<std::shared_ptr<Memory>> RegisterCuda(const void* device_pointer, size_t bytes) = 0;
  // The UUID of this process's CUDA device `ordinal`, as the daemon names it.
  static Result<std::string> CudaDeviceUuid(int ordinal);

  // Called from a thread of the library's, one event at a time; must not block. It may drop handles, the last
  // one too, and call OnEvent. Replaces an earlier one, which is not called any more once OnEvent has
  // returned (null: none is).
  virtual void OnEvent(std::function<void(const ClientEvent&)> callback) = 0;
  // The daemon is reachable and the session lives; else why not (UNAVAILABLE, or UNAUTHENTICATED with
  // SESSION_LOST).
  virtual Status Check() = 0;
  // Ends the session cleanly. Handles answer UNAVAILABLE afterwards.
  virtual Status Detach() = 0;
};

}  // namespace tandem
