// File: client_queue.h
//
// `ClientQueue`: how a backend runs the client-placed launches of one rank and group. One implementation for
// the host backend, one for CUDA (client/lib/client_launch/cuda).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/lib/base/client_device.h"
#include "client/lib/base/launch_state.h"
#include "client/lib/client_launch/client_program.h"
#include "client/lib/client_launch/launched_plan.h"
#include "program/program.h"
#include "runtime/executor/executor.h"
#include "tandem/status.h"

namespace tandem::client {

// One launch's operands.
struct ClientBindings {
  std::vector<runtime::SlotAddress> slots;
  uint16_t tag = 0;
};

// One call of Plan::Launch.
struct ClientCall {
  ClientBindings bindings;
  std::chrono::nanoseconds deadline{0};  // of the launch, at least 1 ns
  LaunchedPlan plan = 0;
  uint64_t stream_id = 0;  // LaunchStream::Id(), or kReplays
  bool capturing = false;
  std::shared_ptr<ClientPlanState> state;
  // The plan's member. Held until the launch has ended, or the graph that captured it is gone.
  std::shared_ptr<void> keep;
};

// How long a program's products are tried on the GPU before its first launch.
enum class Trials : uint8_t {
  kWhole,
  kBrief,         // many numbers of rows are tried
  kBriefAligned,  // kBrief, for operands that are aligned to 16 bytes alone
  kNone,          // other members of the family were tried
};

// A rank program that is ready for launches on one backend. Used by the queue that made it.
class ClientWork {
 public:
  virtual ~ClientWork() = default;
};

// Thread-safe.
class ClientQueue {
 public:
  virtual ~ClientQueue() = default;
  // Checks `program` against the memory that it may touch, and loads what its launches need.
  // INVALID_ARGUMENT or OUT_OF_RANGE: it touches what it may not. UNIMPLEMENTED: it needs an engine.
  virtual Result<std::shared_ptr<ClientWork>> Prepare(const plan::RankProgram& program,
                                                      std::vector<runtime::SlotLimit> slots,
                                                      const ClientLaunchMemory& memory, Trials trials) = 0;
  // Puts one launch onto `stream`, behind all earlier ones of the group. Its failure is kept in the call's
  // state under its stream.
  virtual Status Launch(LaunchStream& stream, ClientWork& work, ClientCall call) = 0;
  // Why no launch can be made any more; OK while they can.
  virtual Status Failed() const = 0;
  // Looks how launches have ended, and keeps their failures in their plans' states. Called by whoever waits,
  // and from a thread of the session every PollInterval().
  virtual void PollFailures() {}
  // 0: launches keep their failures by themselves, and nobody need poll.
  virtual std::chrono::milliseconds PollInterval() const { return std::chrono::milliseconds(0); }
  // Reports to tandemd how many launches had ended at about the last call. Does not wait for the device.
  virtual void ReportProgress() {}
  // Reports to tandemd how many launches have ended. Before this rank leaves, when none is under way.
  virtual Status ReportFinal() { return Status::Ok(); }
  // For a renewal. Waits until no launch is under way, replays neither, and returns the last number that a
  // block has finished. DEADLINE_EXCEEDED.
  virtual Result<uint64_t> Stop(std::chrono::steady_clock::time_point deadline) = 0;
  // Behind Stop, while no rank launches: the next launch is `number` + 1, and nothing is left of launches
  // that have failed.
  virtual Status Restart(uint64_t number) = 0;
  // Behind Stop, for a suspension: gives up the memory of the device that only this process has, and keeps its
  // addresses. No launch, replay or Prepare follows before Refill, which makes the memory again; Restart comes then.
  // Both are idempotent. RESOURCE_EXHAUSTED: Refill has made nothing.
  virtual Status Vacate() { return Status::Ok(); }
  virtual Status Refill() { return Status::Ok(); }
};

}  // namespace tandem::client
