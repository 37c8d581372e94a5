// File: nccl_device.h
//
// `NcclDevice`: what differs between a GPU and an emulated one of the host backend. NCCL's stream argument is
// a cudaStream_t on a GPU. For the host backend, in tests, it is a tandem_stream, and NCCL is a stand-in that
// works on host memory.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "client/nccl/tandem_library.h"
#include "tandem/status.h"

namespace tandem::nccl {

class NcclDevice {
 public:
  // NCCL's all-gather of `send` into `receive`, on the stream.
  using AllGather = std::function<Status(const void* send, void* receive, cudaStream_t stream)>;

  virtual ~NcclDevice() = default;
  // "cuda" or "host", as the daemon names its backend.
  virtual std::string backend() const = 0;
  // Every rank's bytes, in rank order, by `all_gather` on memory of the device. Waits for all ranks.
  virtual Status Gather(const AllGather& all_gather, std::span<const std::byte> own,
                        std::span<std::byte> all) = 0;
  // The daemon's name of the rank's GPU.
  virtual Result<std::string> Gpu(const TandemLibrary& library, tandem_client* client) = 0;
  virtual Result<bool> IsCapturing(cudaStream_t stream) = 0;
  // Enqueues the collective on the stream.
  virtual Status Launch(const TandemLibrary& library, tandem_group* group, cudaStream_t stream,
                        const tandem_collective& collective) = 0;
  // Keeps what the launches of the stream's capture need, so that replays run ahead. Null: something does.
  virtual OwnedHold Hold(const TandemLibrary& library, cudaStream_t stream) = 0;
};

// The device with this number in the process. UNAVAILABLE: there is no CUDA driver.
Result<std::unique_ptr<NcclDevice>> MakeCudaNcclDevice(int device);
// `library` must have been loaded.
std::unique_ptr<NcclDevice> MakeHostNcclDevice(int device);
// The one that TANDEM_NCCL_DEVICE names; without it a GPU.
Result<std::unique_ptr<NcclDevice>> MakeNcclDevice(int device);

}  // namespace tandem::nccl
