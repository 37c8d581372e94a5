// File: collectives.h
//
// Collectives of any number of elements in one call each. The plans behind the calls are kept and grow by
// themselves.
//
//   auto collectives = tandem::Collectives::Make(group);
//   (*collectives)->AllReduce(stream, input, output, count, tandem::DType::kBf16);
//   stream.Synchronize(...);  (*collectives)->Wait();    // the status of the launches
//
// Kinds. Calls of one operation, element type, reduction and root, all of them in place or none, are of one
// kind. A kind's first call prepares a family of plans, and so does the first call beyond the family's bound,
// which doubles from 65,536 rows on. Such a call waits for all ranks. Every other call needs no rank and no
// daemon, whatever its count. Where all ranks have been refused a family, later calls of the kind get the
// same error at once.
//
// In place. all_reduce: input and output are equal. all_gather: the input is the rank's own part of the
// output. reduce_scatter: the output is the rank's own part of the input. Each of them is in place on all
// ranks or on none. all_to_all is never in place. broadcast and reduce may be so on the root alone. Other
// overlaps are refused.
#pragma once

#include <cstddef>
#include <memory>

#include "tandem/client.h"

namespace tandem {

// One collective. The count, as everything but the addresses, is equal on all ranks.
struct CollectiveCall {
  // kAllReduce, kAllGather, kReduceScatter, kAllToAll, kBroadcast or kReduce.
  Op op = Op::kAllReduce;
  // Device memory of the rank's GPU; on the host backend any memory of the process. A
  // broadcast reads the root's alone.
  const void* input = nullptr;
  // A reduce writes the root's alone.
  void* output = nullptr;
  // Elements: of the input, but of one rank's part for all_gather, reduce_scatter and all_to_all. 0: the call
  // does nothing.
  size_t count = 0;
  DType dtype = DType::kF32;
  ReduceOp reduce_op = ReduceOp::kSum;  // of the three that reduce
  int root = 0;                         // of broadcast and reduce
};

// The collectives of one group, whose plans end with this object. Any thread, but all ranks make the calls of
// one group in one order. A group has one such object on each rank.
class TANDEM_API Collectives {
 public:
  // Waits for nobody. INVALID_ARGUMENT: the group is null.
  static Result<std::unique_ptr<Collectives>> Make(std::shared_ptr<Group> group);
  virtual ~Collectives() = default;

  // Prepares the family of such a call, if there is none: the meeting of all ranks, without a launch. For
  // captures, where a call cannot prepare. The addresses count for whether it is in place. A deadline of zero or
  // less only looks: FAILED_PRECONDITION, reason NOT_PREPARED, where there is no family.
  //
  // INVALID_ARGUMENT: a field is wrong, or differs between ranks (reason FIELD_MISMATCH). OUT_OF_RANGE, field
  // "count": input of more than 2^28 elements, on all ranks together for reduce_scatter and all_to_all. Else
  // as Group::Prepare.
  virtual Status Prepare(const CollectiveCall& call, Milliseconds deadline = kDefaultDeadline) = 0;
  // Enqueues the call on `stream`, after Prepare with kDefaultDeadline. FAILED_PRECONDITION, reason
  // NOT_PREPARED: the stream captures, and there is no family yet. Else as Prepare and as Plan::Launch, whose
  // slots 0 and 1 are the input and the output.
  virtual Status Launch(StreamRef stream, const CollectiveCall& call) = 0;
  // As Plan::Wait and Plan::Query, for all launches of these collectives.
  virtual Status Wait(Milliseconds deadline = kDefaultWaitDeadline) = 0;
  virtual Result<bool> Query() = 0;

  // Launch, by operation.
  Status AllReduce(StreamRef stream, const void* input, void* output, size_t count, DType dtype,
                   ReduceOp reduce_op = ReduceOp::kSum) {
    return Launch(stream, {Op::kAllReduce, input, output, count, dtype, reduce_op, 0});
  }
  Status AllGather(StreamRef stream, const void* input, void* output, size_t count, DType dtype) {
    return Launch(stream, {Op::kAllGather, input, output, count, dtype, ReduceOp::kSum, 0});
  }
  Status ReduceScatter(StreamRef stream, const void* input, void* output, size_t count, DType dtype,
                       ReduceOp reduce_op = ReduceOp::kSum) {
    return Launch(stream, {Op::kReduceScatter, input, output, count, dtype, reduce_op, 0});
  }
  Status AllToAll(StreamRef stream, const void* input, void* output, size_t count, DType dtype) {
    return Launch(stream, {Op::kAllToAll, input, output, count, dtype, ReduceOp::kSum, 0});
  }
  Status Broadcast(StreamRef stream, const void* input, void* output, size_t count, DType dtype, int root) {
    return Launch(stream, {Op::kBroadcast, input, output, count, dtype, ReduceOp::kSum, root});
  }
  Status Reduce(StreamRef stream, const void* input, void* output, size_t count, DType dtype,
                ReduceOp reduce_op, int root) {
    return Launch(stream, {Op::kReduce, input, output, count, dtype, reduce_op, root});
  }
};

}  // namespace tandem
