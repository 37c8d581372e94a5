// File: reference_ops.h
//
// The result of every operation, in double precision and independent of algorithms, and a harness that plans,
// verifies and interprets a request and compares.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "daemon/planner/planner.h"
#include "tandem/op_request.h"

namespace tandem::plan {

// Logical values, row-major, [rank][slot]; empty for slots that an operation does not read or write on that
// rank.
using TensorValues = std::vector<std::vector<std::vector<double>>>;

// Elements of a rank's slot as doubles, from the bytes to which it is bound, and back (rounded to the dtype).
std::vector<double> LoadTensor(const OpRequest& request, int slot, int rank,
                               const std::vector<uint8_t>& bytes);
void StoreTensor(const OpRequest& request, int slot, int rank, const std::vector<double>& values,
                 std::vector<uint8_t>& bytes);

// Two ranks' values as one, in the type of `Number`. An average's is the sum. Bits are those of integers.
template <typename Number>
Number Combined(ReduceOp op, Number a, Number b) {
  const auto of_bits = [&](auto f) {
    return static_cast<Number>(f(static_cast<int64_t>(a), static_cast<int64_t>(b)));
  };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return a + b;
    case ReduceOp::kMin: return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
    case ReduceOp::kMax: return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kBitAnd: return of_bits(std::bit_and<>());
    case ReduceOp::kBitOr: return of_bits(std::bit_or<>());
    case ReduceOp::kBitXor: return of_bits(std::bit_xor<>());
  }
  return a;
}

// The outputs of `requests` (one per rank) for these inputs. Epilogues: a matmul that is not reduced over
// ranks is (AB + bias) * result_scale, a reduced one (sum + bias) * result_scale, as MatmulStep and
// ReduceStep have them.
TensorValues ReferenceOutputs(std::span<const OpRequest> requests, const TensorValues& inputs);

// Compares the quantised norm in the slots' bytes with the norm beside it, in double precision. Returns the first
// difference; empty where there is none, or no quantised norm.
std::string WrongQuantization(const OpRequest& request, const std::vector<std::vector<uint8_t>>& slots);

// Random operands: [rank][slot], small integers for integer dtypes, chunk signals all 1; what is replicated
// by definition is the same on all ranks: replicated and tensor-wise scales of a gathered A, epilogues of an
// all-reduce.
TensorValues RandomInputs(std::span<const OpRequest> requests, uint64_t seed);

struct CheckOptions {
  std::vector<uint64_t> seeds = {1, 2};  // schedules to interpret
  int launches = 3;
  std::vector<int> verify_queues = {0, 1, 2};
  int interpret_queues = 0;
};

// Interprets `programs` under each seed and compares with the reference: empty if right, else what is wrong.
std::string CompareWithReference(std::span<const RankProgram> programs, std::span<const OpRequest> requests,
                                 const CheckOptions& options, bool alternate_parity = true);

// Verifies, interprets (unless there are no seeds) and compares: empty if right.
std::string CheckPlan(const OperationPlan& plan, std::span<const OpRequest> requests,
                      const CheckOptions& options = {});

// The same of what `requests` are planned as. `plan` receives the plan if not null.
std::string CheckRequests(std::span<const OpRequest> requests, const GroupContext& group,
                          const CheckOptions& options = {}, OperationPlan* plan = nullptr);

}  // namespace tandem::plan
