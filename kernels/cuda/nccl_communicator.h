// File: nccl_communicator.h
//
// `NcclCommunicator`: a group's NCCL communicator, made without blocking and abortable from any thread. NCCL's own abort
// may wait for streams and for memory to be freed, hence for other lanes: it runs on a thread of its own.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/driver/nccl_library.h"

namespace tandem::cuda {

class NcclCommunicator : public Communicator {
 public:
  // Begins to make the communicator and returns: see Ready. `options.config` may hold nccl.min_ctas, nccl.max_ctas and
  // nccl.cga_cluster_size; INVALID_ARGUMENT names another key that begins with "nccl.".
  static Result<std::unique_ptr<NcclCommunicator>> Create(std::shared_ptr<CudaDevice> device, NcclLibrary* nccl,
                                                          const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  // Enqueues one collective of plan::NcclStep. Waits until NCCL has enqueued it: the first one waits for the peers'
  // communicators too, at most two minutes (DEADLINE_EXCEEDED). ABORTED after Abort.
  Status Enqueue(const NcclArgs& args, CUstream stream);
  void Abort() override;
  Result<bool> Ready() override;

 private:
  // What an abort under way needs, and may outlive the object for.
  struct Handle {
    std::shared_ptr<CudaDevice> device;
    NcclLibrary* nccl = nullptr;
    VmmAllocation barrier;   // the word that barriers sum
    std::mutex mutex;        // guards the calls on communicator
    std::atomic<bool> aborted{false};
    ncclComm_t communicator = nullptr;
  };
  NcclCommunicator(std::shared_ptr<Handle> handle, const CommunicatorOptions& options)
      : handle_(std::move(handle)), rank_(options.rank), world_size_(options.world_size) {}
  Status AwaitReady();
  Status Issue(const NcclArgs& args, CUstream stream);
  Status AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type, CUstream stream);

  const std::shared_ptr<Handle> handle_;
  const int rank_, world_size_;
};

}  // namespace tandem::cuda
