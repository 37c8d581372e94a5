// File: nccl_library.h
//
// `NcclLibrary`: the one wrapper of NCCL. Each function returns a Status with the call, the code and NCCL's
// text. `ncclInProgress`, of communicators that do not block, is no error here but "not yet".
#pragma once

#include <nccl.h>

#include <cstddef>
#include <string>

#include "tandem/status.h"

namespace tandem::cuda {

// The status of a failed call; OK for ncclSuccess and ncclInProgress. UNAVAILABLE when a peer is gone
// (ncclRemoteError), INVALID_ARGUMENT for bad arguments and usage, else INTERNAL.
Status NcclStatus(const char* call, ncclResult_t result, const char* text);

class NcclLibrary {
 public:
  virtual ~NcclLibrary() = default;

  // --- communicators ---
  virtual Result<ncclUniqueId> GetUniqueId() = 0;
  virtual Result<ncclComm_t> CommInitRankConfig(int world_size, const ncclUniqueId& id, int rank,
                                                ncclConfig_t config) = 0;
  // A communicator of all of the parent's ranks in their order; all of them must call it. *child is null
  // until it is complete: with a parent that does not block, until CommReady(parent) says so. It must stay
  // where it is until then.
  virtual Status CommSplit(ncclComm_t parent, int rank, ncclConfig_t config, ncclComm_t* child) = 0;
  // True when the last call on the communicator has been completed; its error otherwise.
  virtual Result<bool> CommReady(ncclComm_t communicator) = 0;
  virtual Status CommAbort(ncclComm_t communicator) = 0;

  // --- collectives; counts as NCCL counts them ---
  virtual Status AllReduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t communicator, cudaStream_t stream) = 0;
  virtual Status AllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t communicator, cudaStream_t stream) = 0;
  virtual Status ReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t communicator, cudaStream_t stream) = 0;
  virtual Status Broadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t communicator, cudaStream_t stream) = 0;
  virtual Status Reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t communicator, cudaStream_t stream) = 0;

  // --- point to point ---
  virtual Status GroupStart() = 0;
  virtual Status GroupEnd() = 0;
  virtual Status Send(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) = 0;
  virtual Status Recv(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                      cudaStream_t stream) = 0;
};

// Loads libnccl.so.2; UNAVAILABLE where there is none. Never destroyed. Sets NCCL_NVLS_ENABLE=0 before,
// unless the environment has the variable: Tandem makes no use of NVLink multicast.
Result<NcclLibrary*> LoadNccl();

}  // namespace tandem::cuda
