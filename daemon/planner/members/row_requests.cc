#include "daemon/planner/members/row_requests.h"

#include <algorithm>
#include <numeric>

#include "daemon/planner/problem/operand_checks.h"
#include "daemon/planner/problem/problem.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

bool HasRows(Op op) {
  switch (op) {
    case Op::kAllReduce:
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllGatherMatmul:
    case Op::kMatmulReduceScatter:
    case Op::kMatmulAllReduce:
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kAllToAll: return true;
    default: return false;
  }
}

// Operations that cut or join tensors along `dim`.
bool HasDim(Op op) {
  return op == Op::kAllGather || op == Op::kReduceScatter || op == Op::kAllToAll ||
         op == Op::kAllGatherMatmul || op == Op::kMatmulReduceScatter;
}

bool FollowsRows(const Operand& operand) {
  switch (operand.role) {
    case Role::kInput:
    case Role::kOutput:
    case Role::kA:
    case Role::kC:
    case Role::kGatheredA:
    case Role::kResidual:
    case Role::kResidualOutput: return true;
    case Role::kScaleA: return ElementCount(operand.spec.shape).value() != 1;
    default: return false;
  }
}

}  // namespace

Result<RowRequests> RowRequests::Make(std::span<const OpRequest> requests) {
  if (requests.empty()) return FieldError("world_size", "there are no requests");
  const OpRequest& first = requests[0];
  if (!HasRows(first.op)) return FieldError("op", Text(OpName(first.op), " has no rows that could vary"));
  RowRequests made;
  for (const Operand& operand : first.operands) {
    if (operand.role == Role::kInput || operand.role == Role::kA) {
      made.rows_ = operand.spec.shape.empty() ? 0 : operand.spec.shape[0];
      const auto dims = static_cast<int>(operand.spec.shape.size());
      if (HasDim(first.op) && first.dim != 0 && first.dim != -dims)
        return FieldError("dim", Text("must be the first dimension, that of rows, not ", first.dim));
      break;
    }
  }
  if (made.rows_ < 1) return FieldError("operands[0].shape", "needs a first dimension of at least one row");
  made.extents_.resize(first.operands.size());
  for (size_t slot = 0; slot < first.operands.size(); ++slot) {
    const Operand& operand = first.operands[slot];
    if (!ElementCount(operand.spec.shape).ok() || operand.spec.shape.empty() || !FollowsRows(operand))
      continue;
    const int64_t extent = operand.spec.shape[0];
    if (extent < 1 || (extent % made.rows_ != 0 && made.rows_ % extent != 0)) {
      return FieldError(OperandField(static_cast<int>(slot), "shape"),
                        Text("extent ", extent, " is in no proportion to ", made.rows_, " rows"));
    }
    Extent& follows = made.extents_[slot];
    if (extent >= made.rows_) {
      follows = {extent / made.rows_, 1};
    } else {
      follows = {1, made.rows_ / extent};
    }
    made.unit_ = std::lcm(made.unit_, follows.parts);
  }
  if (first.op == Op::kAllToAll) made.unit_ = std::lcm(made.unit_, static_cast<int64_t>(requests.size()));
  made.requests_.assign(requests.begin(), requests.end());
  for (OpRequest& request : made.requests_) {
    if (request.operands.size() != first.operands.size())
      return FieldError("operands", "the ranks have different numbers of operands");
    request.placement = PlanPlacement::kClient;
  }
  return made;
}

Result<std::vector<OpRequest>> RowRequests::At(int64_t rows) const {
  if (rows < 0) return FieldError("rows", Text(rows, " is negative"));
  if (rows % unit_ != 0) return FieldError("rows", Text(rows, " is no multiple of ", unit_));
  std::vector<OpRequest> requests = requests_;
  for (OpRequest& request : requests) {
    for (size_t slot = 0; slot < extents_.size(); ++slot) {
      const Extent& follows = extents_[slot];
      if (follows.times > 0) request.operands[slot].spec.shape[0] = rows / follows.parts * follows.times;
    }
  }
  return requests;
}

}  // namespace tandem::plan
