// File: async_input_matmul.h
//
// C = A * B where A's rows arrive in chunks while the multiplication runs. The matmul reads chunk i once the
// word i of the signals is 1. The plan is like any other; this header only spells the request.
#pragma once

#include <memory>
#include <string>

#include "tandem/client.h"

namespace tandem {

struct AsyncInputMatmulOptions {
  TensorSpec a, b, c;
  int chunks = 1;  // of A's rows, equal in size; so many 32-bit signals, 128 at most
  int pivot = 0;   // the chunk computed first, then pivot + 1, ... mod chunks
  Milliseconds deadline{kDefaultDeadline};
};

// Prepares the matmul under `key`, on every rank of the group. The plan's slots are 0 A, 1 B, 2 C, 3 the
// signals. The errors are those of Group::Prepare.
inline Result<std::shared_ptr<Plan>> AsyncInputMatmul(Group& group, const std::string& key,
                                                      const AsyncInputMatmulOptions& options) {
  OpRequest request;
  request.op = Op::kAsyncInputMatmul;
  request.operands = {{Role::kA, options.a},
                      {Role::kB, options.b},
                      {Role::kC, options.c},
                      {Role::kChunkSignals, {DType::kI32, {options.chunks}, {}}}};
  request.chunk_pivot = options.pivot;
  return group.Prepare(key, request, options.deadline);
}

}  // namespace tandem
