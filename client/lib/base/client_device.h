// File: client_device.h
//
// The interface of the library to the process's GPU: streams that launches are put on, pages of words that
// streams wait on, and memory. One implementation for the host backend, one over the CUDA driver
// (cuda/cuda_client_device.h). Everything else of the library is the same for both.
//
// Thread rule: a ClientDevice is thread-safe; a LaunchStream belongs to the call that opened it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "ipc/channel_layout.h"
#include "tandem/client.h"

namespace tandem {
class HostEvent;
}

namespace tandem::client {

class ClientGroup;
class ClientQueue;

// A user's stream for the length of one call, in which its context is current on the calling thread. Every
// function enqueues and returns; a failed one has enqueued nothing.
class LaunchStream {
 public:
  virtual ~LaunchStream() = default;
  // Names the stream among all streams of the process, for ever: unlike its handle, never given to another.
  // Not 0, and below 2^63. Not for a stream that captures: CUDA has no answer then.
  virtual Result<uint64_t> Id() = 0;
  // FAILED_PRECONDITION when the capture has been invalidated.
  virtual Result<bool> IsCapturing() = 0;
  // A launch: after all earlier work *request = value, then the stream is held until *done >= value
  // (cyclically).
  virtual Status Arrive(Word* request, Word* done, uint64_t value) = 0;
  // After all earlier work the stream is held until *done >= value (cyclically).
  virtual Status Await(Word* done, uint64_t value) = 0;
  // A captured launch, at every replay: *done = 0, *doorbell = 1, held until *done >= 1.
  virtual Status ArriveCaptured(Word* doorbell, Word* done) = 0;
  // A client-placed launch: runs `kernel` after all earlier work of the stream and after the last record of
  // `order`, then records `order`. Captured, it does all three at every replay.
  virtual Status RunInOrder(HostEvent& order, std::function<void()>&& kernel);
  // Gives `object` to the graph under capture: dropped once that, all its executable graphs and their
  // launches are gone, on a thread that must not wait for a stream.
  virtual Status RetainInCapture(std::shared_ptr<void> object) = 0;
  // Stores `value` into count words of memory that `keep` holds: on the host until then, on CUDA `keep` is
  // the caller's to hold, as with any memory that a stream works on.
  virtual Status Memset32(std::shared_ptr<void> keep, uint32_t* words, uint32_t value, size_t count) = 0;
  virtual Status Write32(std::shared_ptr<void> keep, uint32_t* word, uint32_t value) = 0;
  // Copies memory of the caller's, which holds it until then.
  virtual Status Copy(void* to, const void* from, size_t bytes) = 0;
  // Adds 1 to the eventfd after all earlier work. The caller keeps the descriptor open until then.
  virtual Status Notify(int event_fd) = 0;
};

// Room for one LaunchStream on the caller's stack: the launch path allocates nothing.
class LaunchStreamStorage {
 public:
  LaunchStreamStorage() = default;
  LaunchStreamStorage(const LaunchStreamStorage&) = delete;
  LaunchStreamStorage& operator=(const LaunchStreamStorage&) = delete;
  ~LaunchStreamStorage() {
    if (made_ != nullptr) made_->~LaunchStream();
  }
  // Once.
  template <typename T, typename... Arguments>
  T* Emplace(Arguments&&... arguments) {
    static_assert(sizeof(T) <= kBytes && alignof(T) <= alignof(std::max_align_t));
    T* stream = new (bytes_) T(std::forward<Arguments>(arguments)...);
    made_ = stream;
    return stream;
  }

 private:
  static constexpr size_t kBytes = 64;
  alignas(std::max_align_t) std::byte bytes_[kBytes];
  LaunchStream* made_ = nullptr;
};

// Memory of a GPU at an address of this process; unmapped with the object.
class DeviceMapping {
 public:
  virtual ~DeviceMapping() = default;
  virtual std::byte* data() const = 0;
  virtual size_t bytes() const = 0;
  // Gives the memory up and keeps the addresses, which nothing may use until Remap. Idempotent.
  virtual Status Unmap() = 0;
  // Maps the memory behind `fd`, of bytes() or more, at the same addresses, in place of what is mapped there.
  virtual Status Remap(int fd) = 0;
};

// Memory of the user's own, found by an address: what is registered for it as one.
struct ForeignRange {
  // One allocation, or the chunk of one address range. `id` names it in this process for ever.
  struct Piece {
    uintptr_t base = 0;
    size_t bytes = 0;
    uint64_t id = 0;
  };
  std::string gpu_uuid;
  bool by_ipc = false;  // cudaMalloc's: one piece, the whole allocation; else chunks in address order
  std::vector<Piece> pieces;

  uintptr_t base() const { return pieces.front().base; }
  size_t bytes() const { return pieces.back().base + pieces.back().bytes - base(); }
};

// The data with which another process maps such memory.
struct ExportedRange {
  std::string ipc_handle;
  std::vector<UniqueFd> fds;
  std::vector<uint64_t> chunk_bytes;  // one a descriptor
};

class ClientDevice {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~ClientDevice() = default;

  // Takes up the user's stream for one call. INVALID_ARGUMENT if it is none of this backend's, or of a GPU
  // other than `gpu_uuid`.
  virtual Result<LaunchStream*> Open(StreamRef stream, const std::string& gpu_uuid,
                                     LaunchStreamStorage* storage) = 0;
  // Makes whole pages of words reachable for streams, at the same address, until the pin is dropped. Dropping
  // it may block behind all work of the process's GPUs: see DeferredReclaimer. Null where nothing needs to be
  // done.
  virtual Result<std::shared_ptr<void>> PinWords(const std::string& gpu_uuid, std::byte* data,
                                                 size_t bytes) = 0;

  // Maps a segment of the daemon's for this GPU. Takes nothing of `fd`.
  virtual Result<std::shared_ptr<DeviceMapping>> Map(const std::string& gpu_uuid, int fd, size_t bytes) = 0;
  // Like it for a descriptor of the user's, checked first.
  virtual Result<std::shared_ptr<DeviceMapping>> MapForeign(const std::string& gpu_uuid, int fd,
                                                            size_t bytes) = 0;
  // Makes memory that others can map: the descriptor, and how long the memory behind it is (at least
  // `bytes`).
  virtual Result<UniqueFd> Allocate(const std::string& gpu_uuid, size_t bytes, size_t* allocated) = 0;

  // Sets *word, in memory mapped for the GPU, from `from` to `to` if it holds `from`: true then. May take
  // until `deadline`, or some milliseconds longer, when the GPU is slow to answer. Only for words with one
  // writer for each of the two changes.
  virtual Result<bool> Exchange32(const std::string& gpu_uuid, uint32_t* word, uint32_t from, uint32_t to,
                                  Clock::time_point deadline) = 0;

  // Copies between memory mapped for the GPU and memory of the process, in either direction. Returns once it is
  // done.
  virtual Status CopyNow(const std::string& gpu_uuid, void* to, const void* from, size_t bytes) = 0;

  // Returns the memory at `address`. INVALID_ARGUMENT: the memory cannot be registered; the message gives the
  // reason and names memory that can.
  virtual Result<ForeignRange> Describe(const void* address, size_t bytes) = 0;
  virtual Result<ExportedRange> Export(const ForeignRange& range) = 0;
  // True if the pieces of `range` that [address, address + bytes) touches are still the memory that was
  // described. On the launch path: one query a piece, in whatever context is current.
  virtual Result<bool> Holds(const ForeignRange& range, uintptr_t address, size_t bytes) = 0;
  // True if a piece of `range` is gone, whatever has taken its address. From any thread.
  virtual Result<bool> Vanished(const ForeignRange& range) = 0;

  // How this device runs the client-placed launches of `group`, which owns the queue. UNIMPLEMENTED: only
  // engines run launches.
  virtual Result<std::unique_ptr<ClientQueue>> MakeClientQueue(const std::string& gpu_uuid,
                                                               ClientGroup& group);
};

// The device of the daemon's backend. UNIMPLEMENTED for cuda in a library built without it, UNAVAILABLE
// without a driver.
Result<std::shared_ptr<ClientDevice>> MakeClientDevice(const std::string& backend);

// Each function has its own file; the build has one of the last two.
std::shared_ptr<ClientDevice> MakeHostClientDevice();
Result<std::shared_ptr<ClientDevice>> MakeCudaClientDevice();
Result<std::string> CudaDeviceUuid(int ordinal);
// Whether this process has cuBLASLt, which products around client-placed kernels need. Loads it, and nothing
// else: no driver and no context.
bool HasCudaProducts();

}  // namespace tandem::client
