// File: mock_nccl_library.h
//
// An NcclLibrary without NCCL, in the groups of nccl_library.h.
#pragma once

#include <gmock/gmock.h>

#include "drivers/nccl/nccl_library.h"

namespace tandem::cuda {

class MockNcclLibrary : public NcclLibrary {
 public:
  // --- communicators ---
  MOCK_METHOD(Result<ncclUniqueId>, GetUniqueId, (), (override));
  MOCK_METHOD(Result<ncclComm_t>, CommInitRankConfig, (int, const ncclUniqueId&, int, ncclConfig_t),
              (override));
  MOCK_METHOD(Status, CommSplit, (ncclComm_t, int, ncclConfig_t, ncclComm_t*), (override));
  MOCK_METHOD(Result<bool>, CommReady, (ncclComm_t), (override));
  MOCK_METHOD(Status, CommAbort, (ncclComm_t), (override));

  // --- collectives ---
  MOCK_METHOD(Status, AllReduce,
              (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t),
              (override));
  MOCK_METHOD(Status, AllGather, (const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t),
              (override));
  MOCK_METHOD(Status, ReduceScatter,
              (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t),
              (override));
  MOCK_METHOD(Status, Broadcast, (const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t),
              (override));
  MOCK_METHOD(Status, Reduce,
              (const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t),
              (override));
  MOCK_METHOD(Status, GroupStart, (), (override));
  MOCK_METHOD(Status, GroupEnd, (), (override));
  MOCK_METHOD(Status, Send, (const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), (override));
  MOCK_METHOD(Status, Recv, (void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t), (override));
};

}  // namespace tandem::cuda
