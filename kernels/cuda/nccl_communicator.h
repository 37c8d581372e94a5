// File: nccl_communicator.h
//
// `NcclCommunicator`: a group's NCCL communicator, made without blocking and abortable from any thread.
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
  // Begins to make the communicator and returns; the first collective waits for its completion.
  static Result<std::unique_ptr<NcclCommunicator>> Create(std::shared_ptr<CudaDevice> device, NcclLibrary* nccl,
                                                          const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  // Enqueues one collective of plan::NcclStep. Waits until NCCL has enqueued it: the first one waits for the peers'
  // communicators too, at most two minutes (DEADLINE_EXCEEDED). ABORTED after Abort.
  Status Enqueue(const NcclArgs& args, CUstream stream);
  void Abort() override;

 private:
  NcclCommunicator(std::shared_ptr<CudaDevice> device, NcclLibrary* nccl, const CommunicatorOptions& options)
      : device_(std::move(device)), nccl_(nccl), rank_(options.rank), world_size_(options.world_size) {}
  Status AwaitReady();
  Status Issue(const NcclArgs& args, CUstream stream);
  Status AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type, CUstream stream);

  std::shared_ptr<CudaDevice> device_;
  NcclLibrary* const nccl_;
  const int rank_, world_size_;
  VmmAllocation barrier_;  // the word that barriers sum
  std::mutex mutex_;  // guards the calls on communicator_
  std::atomic<bool> aborted_{false};
  ncclComm_t communicator_ = nullptr;
};

}  // namespace tandem::cuda
