// File: rank_device.h
//
// The GPU work of one rank of an example, a test or a benchmark, alike on every backend. It has streams with
// host functions and captures, events, and copies between launch memory and host buffers. The client library
// itself needs none of this.
//
// Example:
//   auto device = RankDevice::Create(client->backend(), group->gpu_uuid());
//   auto stream = (*device)->MakeStream();
//   auto mirror = (*device)->MakeMirror(memory, memory->bytes());
//   (*stream)->Enqueue([&] { Fill(mirror.data()); });
//   (*mirror)->ToDevice(**stream, 0, bytes);
//   plan->Launch((*stream)->ref(), bindings);
//
// Thread rule: a stream is used by one thread at a time; a device by any number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tandem/client.h"
#include "tandem/status.h"

namespace tandem {

// A point in a stream's work.
class RankEvent {
 public:
  virtual ~RankEvent() = default;
  // Microseconds from `start`'s latest record to this one's; both must have been reached.
  virtual Result<double> MicrosecondsSince(const RankEvent& start) const = 0;
};

// A recorded capture, ready to be replayed. Destroy it when no replay is in flight.
class RankGraph {
 public:
  virtual ~RankGraph() = default;
};

// An in-order stream of the client's. Destroying it waits for nothing: synchronise first.
class RankStream {
 public:
  virtual ~RankStream() = default;
  // For Plan::Launch and the like; valid while this object lives.
  virtual StreamRef ref() = 0;
  // Runs `function` on a thread of the backend's, in stream order. It must not throw, and not call a GPU's
  // interface or anything that waits for a stream.
  virtual Status Enqueue(std::function<void()> function) = 0;
  virtual Status Record(RankEvent& event) = 0;
  virtual Status Wait(RankEvent& event) = 0;
  // Waits for all work so far, without spinning longer than a millisecond; DEADLINE_EXCEEDED after
  // `deadline`.
  virtual Status Synchronize(Milliseconds deadline) = 0;
  // True when all work so far is done.
  virtual Result<bool> Query() = 0;
  // From here to EndCapture work is recorded and nothing runs. Host functions are recorded too, and run at
  // each replay.
  virtual Status BeginCapture() = 0;
  virtual Result<std::unique_ptr<RankGraph>> EndCapture() = 0;
  virtual Status Replay(RankGraph& graph) = 0;
};

// Host bytes that stand for bytes of a device's memory. On the host backend both are the same bytes, and
// nothing is ever copied. Elsewhere they are pinned memory.
class RankMirror {
 public:
  virtual ~RankMirror() = default;
  virtual std::byte* data() const = 0;
  // Stream-ordered copies of [offset, offset + bytes), which must lie inside; not checked.
  virtual Status ToDevice(RankStream& stream, size_t offset, size_t bytes) = 0;
  virtual Status ToHost(RankStream& stream, size_t offset, size_t bytes) = 0;
};

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  // The device `gpu_uuid` of `backend` ("host" or "cuda"), as Client::backend() and Group::gpu_uuid() name
  // them. On cuda the device's primary context becomes current on the calling thread. UNIMPLEMENTED where
  // this build has no CUDA.
  static Result<std::shared_ptr<RankDevice>> Create(const std::string& backend, const std::string& gpu_uuid);

  // Makes the device current on the calling thread, for threads other than Create's.
  virtual Status Enter() = 0;
  virtual Result<std::unique_ptr<RankStream>> MakeStream() = 0;
  virtual Result<std::unique_ptr<RankEvent>> MakeEvent() = 0;
  // A mirror of `memory`, which must outlive it. Its bytes are undefined until they are written or copied.
  virtual Result<std::unique_ptr<RankMirror>> MakeMirror(const Memory& memory) = 0;
};

namespace internal {
Result<std::shared_ptr<RankDevice>> MakeHostRankDevice();
Result<std::shared_ptr<RankDevice>> MakeCudaRankDevice(const std::string& gpu_uuid);
}  // namespace internal

}  // namespace tandem
