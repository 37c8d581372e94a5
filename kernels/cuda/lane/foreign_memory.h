// File: foreign_memory.h
//
// `ForeignMemory`: allocations of other processes, opened by CUDA IPC handle. A handle that is opened again
// while it is open shares the mapping.
//
// Thread rule: thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::cuda {

class ForeignMemory {
 public:
  explicit ForeignMemory(std::shared_ptr<CudaDevice> device) : device_(std::move(device)) {}

  // See Backend::ImportIpc. INVALID_ARGUMENT for what is no handle, memory of this very process, or of
  // another GPU; FAILED_PRECONDITION when the memory is gone. A segment of fewer bytes, or of none, when it
  // ends before offset + bytes: it is the caller who knows when it may be closed.
  Result<std::unique_ptr<Segment>> Open(std::string_view handle, uint64_t offset, size_t bytes);

 private:
  class Allocation;
  class Part;

  std::shared_ptr<CudaDevice> device_;
  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Allocation>, std::less<>> open_;  // by handle
};

}  // namespace tandem::cuda
