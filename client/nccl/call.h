// File: call.h
//
// `NcclCall`: one collective as NCCL's API names it, and what Tandem makes of it. Everything here depends on the
// arguments alone, so that all ranks come to the same answer.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>

#include "tandem/c_collectives.h"

namespace tandem::nccl {

enum class NcclCollective : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kBroadcast,
  kReduce
};

struct NcclCall {
  NcclCollective op = NcclCollective::kAllReduce;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t count = 0;  // as NCCL counts: of one rank's part for all_gather, reduce_scatter and all_to_all
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t reduction = ncclSum;
  int root = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
};

// "all_reduce", …
const char* NameOf(NcclCollective op);
// Whether the elements are reduced; else they are only moved.
bool Reduces(NcclCollective op);
// 0 for a type that this library does not know.
size_t BytesOf(ncclDataType_t type);

// Why Tandem does not run such a call, in words that follow "since"; null where it may.
const char* WhyNot(const NcclCall& call);

// Writes the call as one of Tandem's. WhyNot must have let it pass. Elements that are only moved travel as bits.
void Describe(const NcclCall& call, tandem_collective* collective);

// The bytes of the larger of input and output.
uint64_t BytesOf(const NcclCall& call, int ranks);

}  // namespace tandem::nccl
