// File: nccl_communicator.h
//
// `NcclCommunicator`: a group's NCCL communicator, made without blocking and abortable from any thread.
// NCCL's own abort may wait for streams and for memory to be freed, hence for other lanes: it runs on a
// separate thread.
//
// Calls on a communicator that does not block go through a thread that NCCL makes for each (ncclGroupEnd): 42
// to 48 us a call on two H200s, against 6 to 8 us without (cuda_nccl_test). So once the communicator is
// there, it is split (ncclCommSplit) into a child that blocks, and the child has the collectives. Parent and
// child share resources (splitShare), the abort flag among them: aborting the parent ends what the child has
// in flight, kernels and calls, whoever is in them. The group option nccl.blocking = 0 does without the
// child.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "drivers/nccl/nccl_library.h"
#include "kernels/backend.h"
#include "kernels/cuda/device/cuda_device.h"

namespace tandem::cuda {

class NcclCommunicator : public Communicator {
 public:
  // Begins to make the communicator and returns: see Ready. `options.config` may hold nccl.min_ctas,
  // nccl.max_ctas, nccl.cga_cluster_size and nccl.blocking (0 or 1; default 1); INVALID_ARGUMENT names
  // another key that begins with "nccl.".
  static Result<std::unique_ptr<NcclCommunicator>> Create(std::shared_ptr<CudaDevice> device,
                                                          NcclLibrary* nccl,
                                                          const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  // Enqueues one collective of plan::NcclStep. Waits until NCCL has enqueued it: the first one waits for the
  // peers' communicators too, at most two minutes (DEADLINE_EXCEEDED). ABORTED after Abort.
  Status Enqueue(const NcclArgs& args, CUstream stream);
  void Abort() override;
  Result<bool> Ready() override;
  // Aborts of this process that have not ended, those of destroyed communicators too. They are threads within
  // NCCL, which must not meet the end of the process by exit().
  static int AbortsUnderWay();

 private:
  // The handles that an abort under way needs, and may outlive the object for.
  struct Handle {
    std::shared_ptr<CudaDevice> device;
    NcclLibrary* nccl = nullptr;
    VmmAllocation barrier;  // the word that barriers sum
    std::atomic<bool> aborted{false};
    std::mutex mutex;  // guards communicator, and child until it is complete; never held while NCCL blocks
    ncclComm_t communicator = nullptr;
    bool splits = false;  // collectives are the child's
    bool split = false;   // the child has been begun
    ncclConfig_t child_config;
    std::mutex calls;  // guards collectives; taken before mutex
    ncclComm_t child = nullptr;
  };
  NcclCommunicator(std::shared_ptr<Handle> handle, const CommunicatorOptions& options)
      : handle_(std::move(handle)), rank_(options.rank), world_size_(options.world_size) {}
  // Under Handle::mutex: whether the last call is complete, and the child; begins the child when it is its
  // turn.
  Result<bool> Advance();
  Status AwaitReady();
  Status Issue(const NcclArgs& args, ncclComm_t communicator, CUstream stream);
  Status AllToAll(const NcclArgs& args, size_t count, ncclDataType_t type, ncclComm_t communicator,
                  CUstream stream);

  const std::shared_ptr<Handle> handle_;
  const int rank_, world_size_;
  bool child_ready_ = false;  // under Handle::calls
};

}  // namespace tandem::cuda
