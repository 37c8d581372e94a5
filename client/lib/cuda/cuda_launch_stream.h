// File: cuda_launch_stream.h
//
// A cudaStream_t (the runtime's and the driver's are one type) as a LaunchStream: words by stream memory
// operations, so that neither a kernel nor a CPU waits. Works alike for streams of any context, the legacy
// default stream and the per-thread one.
#pragma once

#include <memory>

#include "client/lib/base/client_device.h"
#include "client/lib/cuda/context_scope.h"

namespace tandem::client {

class CudaLaunchStream final : public LaunchStream {
 public:
  CudaLaunchStream(cuda::CudaDriver& driver, CUstream stream)
      : driver_(driver), scope_(driver), stream_(stream) {}

  // True if the stream is one of the three that belong to whatever context is current.
  bool IsDefault() const {
    return stream_ == nullptr || stream_ == CU_STREAM_LEGACY || stream_ == CU_STREAM_PER_THREAD;
  }
  CUstream stream() const { return stream_; }
  // No context was current on the thread.
  bool NoContext() const { return scope_.before() == nullptr; }
  // Makes the stream's context current (a default stream's is). INVALID_ARGUMENT if it is none of `device`.
  Status Enter(CUdevice device, const std::string& gpu_uuid);

  Result<uint64_t> Id() override;
  Result<bool> IsCapturing() override;
  Status Arrive(Word* request, Word* done, uint64_t value) override;
  Status Await(Word* done, uint64_t value) override;
  Status ArriveCaptured(Word* doorbell, Word* done) override;
  Status RetainInCapture(std::shared_ptr<void> object) override;
  Status Memset32(std::shared_ptr<void> keep, uint32_t* words, uint32_t value, size_t count) override;
  Status Write32(std::shared_ptr<void> keep, uint32_t* word, uint32_t value) override;
  Status Copy(void* to, const void* from, size_t bytes) override;
  Status Notify(int event_fd) override;

 private:
  cuda::CudaDriver& driver_;
  ContextScope scope_;
  const CUstream stream_;
};

}  // namespace tandem::client
