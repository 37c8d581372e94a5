// File: engines.h
//
// `Engines`: tandemd's view of the engine processes, one per GPU. The supervisor implements it; tests fake
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/mps_endpoint.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::engine::v1 {
class Command;
class LaunchDone;
class LaunchFailed;
class Late;
class PeerSilent;
class Queue;
}  // namespace tandem::engine::v1

namespace tandem::daemon {

// kIdle: it has no process since nobody uses it, and starts with the next use.
enum class EngineState { kStarting, kReady, kIdle, kDown, kCrashLooped };

// As tools and metrics call it.
inline const char* EngineStateName(EngineState state) {
  switch (state) {
    case EngineState::kStarting: return "starting";
    case EngineState::kReady: return "ready";
    case EngineState::kIdle: return "idle";
    case EngineState::kDown: return "down";
    case EngineState::kCrashLooped: return "crash_looped";
  }
  return "down";
}

// The abilities that an engine announced at its start.
struct EngineCapabilities {
  bool packet_kernels = false;  // it has the kernels of the algorithm low_latency
  bool communicators = false;   // it makes communicators of NCCL, each from a unique id
  bool ipc_memory = false;      // it opens clients' memory by CUDA IPC handles
  // It runs on a GPU. Kernels of several processes take turns there. Measured times hold for the GPU's model.
  // Clients' descriptors are the driver's.
  bool on_gpu = false;
  bool operator==(const EngineCapabilities&) const = default;
};

// An engine that announces none has not started yet, or is of an earlier build.
inline EngineCapabilities CapabilitiesOfBackend(std::string_view backend) {
  const bool cuda = backend == "cuda";
  return {.packet_kernels = cuda, .communicators = cuda, .ipc_memory = cuda, .on_gpu = cuda};
}

struct EngineStatus {
  EngineState state = EngineState::kDown;
  int pid = 0;
  uint64_t generation = 0;  // counts this GPU's engine processes, from 1
  uint64_t restarts = 0;
  std::string last_exit;  // "signal 9", "exit 3"; empty if none
  // Of a ready engine: since its latest answer. The supervisor asks every two seconds.
  double silent_seconds = 0;
  uint64_t own_memory_bytes = 0;  // device memory that it takes without its segments; 0: not known
  // The time of the latest start, by phases: "1.82 s: process 0.05, driver 1.20, …". Empty before the engine
  // has been ready.
  std::string start = {};
  double start_seconds = 0;
  // Why it has none of the fused algorithm's kernels, for people; empty: they are loaded.
  std::string no_fused_kernels = "it has not started yet";
  // SMs that a kernel that waits for peers may take there; 0: no bound.
  uint32_t kernel_sms = 0;
  EngineCapabilities capabilities = {};
  // Why a new process cannot start for now because of other processes (an MPS server waits for the last
  // process of a fault to end). The start is tried again and again. Empty if nothing is in the way.
  std::string blocked = {};
  // For people: its process has been killed and has not ended, since the kernel holds it, most likely in a
  // driver's call. Until the process ends, nothing is started and the listener hears nothing. Empty if there
  // is no such process.
  std::string lingers = {};
  // Its last end was the loss of the GPU context under MPS: every client of that server on that GPU lost its
  // context too.
  bool context_lost = false;
  MpsEndpoint mps = {};  // which the process was started with, as it was then; empty on the host backend
};

// The control plane's view of the engines' events. Called from the supervisor's thread of that GPU, never
// under a lock of Engines; the listener may call Engines::Call from within.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  // The engine answered Start and knows nothing yet: the listener sends it what it must hold again.
  virtual void OnEngineUp(int gpu, uint64_t generation) = 0;
  // The process has gone (seen by its exit, not only by end of file); `reason` is for people.
  virtual void OnEngineDown(int gpu, uint64_t generation, const std::string& reason) = 0;
  // Asked now and then about a ready engine. True: nobody has used it for long, and the listener counts it as
  // gone from now on. Its process then ends, without OnEngineDown, and the engine is idle until Engines::Wake.
  virtual bool MayRest(int /*gpu*/, uint64_t /*generation*/) { return false; }
  virtual void OnLaunchDone(int gpu, const engine::v1::LaunchDone& done) = 0;
  virtual void OnLaunchFailed(int gpu, const engine::v1::LaunchFailed& failed) = 0;
  virtual void OnLate(int gpu, const engine::v1::Late& late) = 0;
  // `gpu`'s engine waits for another one, which gives no sign of life.
  virtual void OnPeerSilent(int gpu, const engine::v1::PeerSilent& silent) = 0;
};

class Engines {
 public:
  virtual ~Engines() = default;
  virtual int count() const = 0;
  virtual EngineStatus StatusOf(int gpu) const = 0;
  // Sends a command with descriptors (kept by the caller) and waits for its Ack. The command's id is set
  // here. Thread-safe; commands of one GPU are executed in the order of the calls. UNAVAILABLE if the engine
  // is down or ends meanwhile, DEADLINE_EXCEEDED if it does not answer.
  virtual Status Call(int gpu, engine::v1::Command command, const std::vector<int>& fds = {},
                      std::chrono::milliseconds deadline = std::chrono::milliseconds(10000)) = 0;
  // The same without descriptors, for the payload of the Ack.
  virtual Result<std::string> Ask(int gpu, engine::v1::Command command,
                                  std::chrono::milliseconds deadline) = 0;
  // AllocateSegment: the descriptor of a new segment on `gpu`.
  virtual Result<UniqueFd> AllocateSegment(int gpu, uint64_t segment_id, uint64_t bytes) = 0;
  // The id that the ranks of a new communicator share, made by `gpu`'s engine.
  virtual Result<std::string> MakeUniqueId(int /*gpu*/) {
    return Unimplemented("these engines make no communicators");
  }
  // Starts an engine again that is held down after a crash loop, with an empty record of crashes.
  // FAILED_PRECONDITION if it is not held down. Returns at once; the engine is ready later, or held down
  // again.
  virtual Status Reset(int /*gpu*/) { return Unimplemented("these engines are not supervised"); }
  // Asks a running engine for a sign of life, and ends the engine if none comes within `limit`. Returns at
  // once.
  virtual void DemandAnswer(int /*gpu*/, std::chrono::milliseconds /*limit*/) {}
  // Somebody is about to use the engine of `gpu`: an idle one starts. Returns at once; OnEngineUp follows. Any
  // thread, under any lock.
  virtual void Wake(int /*gpu*/) {}
  // The engine's queue right now. UNAVAILABLE if the engine is down, DEADLINE_EXCEEDED if it does not answer
  // within a second.
  virtual Result<std::unique_ptr<engine::v1::Queue>> QueueSnapshot(int gpu) = 0;
};

}  // namespace tandem::daemon
