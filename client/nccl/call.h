// File: call.h
//
// `NcclCall`: one collective as NCCL's API names it, and what Tandem makes of it. Everything here depends on the
// arguments alone, so that all ranks come to the same answer.
#pragma once

#include <nccl.h>

#include <compare>
#include <cstddef>
#include <cstdint>

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

// Calls with equal keys belong to one family. WhyNot must have let them pass.
struct FamilyKey {
  int op = 0;         // enum tandem_op
  int dtype = 0;      // enum tandem_dtype: elements that are only moved travel as bits
  int reduce_op = 0;  // enum tandem_reduce_op
  int root = 0;
  bool in_place = false;
  auto operator<=>(const FamilyKey&) const = default;
};
FamilyKey KeyOf(const NcclCall& call, int rank);

// The elements of the input, each of which is a row of the family.
int64_t RowsOf(const NcclCall& call, int ranks);
// The bytes of the larger of input and output.
uint64_t BytesOf(const NcclCall& call, int ranks);

// The bound of the family that serves so many rows. It doubles from a least one on, and is a multiple of the
// ranks. 0: there is none.
int64_t BoundFor(int64_t rows, int ranks);

}  // namespace tandem::nccl
