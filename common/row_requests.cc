#include "common/row_requests.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace tandem {
namespace {

Status WrongField(std::string field, const std::string& why) {
  std::string message = field + ": " + why;
  return InvalidArgument(std::move(message))
      .WithDetail({.reason = "INVALID_FIELD", .field = std::move(field)});
}

std::string ShapeField(size_t slot) { return "operands[" + std::to_string(slot) + "].shape"; }

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
    case Role::kResidualOutput:
    case Role::kQuantizedOutput:
    case Role::kScaleOutput: return true;
    case Role::kScaleA: return ElementCount(operand.spec.shape).value() != 1;
    default: return false;
  }
}

}  // namespace

Result<RowRequests> RowRequests::Make(std::span<const OpRequest> requests, int world_size) {
  if (requests.empty() || world_size < 1) return WrongField("world_size", "there are no requests");
  const OpRequest& first = requests[0];
  if (!HasRows(first.op)) {
    return WrongField("op", std::string(OpName(first.op)) + " has no rows that could vary");
  }
  RowRequests made;
  int64_t rows = 0;  // that the requests were made with
  for (const Operand& operand : first.operands) {
    if (operand.role == Role::kInput || operand.role == Role::kA) {
      rows = operand.spec.shape.empty() ? 0 : operand.spec.shape[0];
      const auto dims = static_cast<int>(operand.spec.shape.size());
      if (HasDim(first.op) && first.dim != 0 && first.dim != -dims)
        return WrongField("dim",
                          "must be the first dimension, that of rows, not " + std::to_string(first.dim));
      break;
    }
  }
  if (rows < 1) return WrongField(ShapeField(0), "needs a first dimension of at least one row");
  made.extents_.resize(first.operands.size());
  for (size_t slot = 0; slot < first.operands.size(); ++slot) {
    const Operand& operand = first.operands[slot];
    if (!ElementCount(operand.spec.shape).ok() || operand.spec.shape.empty() || !FollowsRows(operand))
      continue;
    const int64_t extent = operand.spec.shape[0];
    if (extent < 1 || (extent % rows != 0 && rows % extent != 0)) {
      return WrongField(ShapeField(slot), "extent " + std::to_string(extent) + " is in no proportion to " +
                                              std::to_string(rows) + " rows");
    }
    Extent& follows = made.extents_[slot];
    if (extent >= rows) {
      follows = {extent / rows, 1};
    } else {
      follows = {1, rows / extent};
    }
    made.unit_ = std::lcm(made.unit_, follows.parts);
  }
  if (first.op == Op::kAllToAll) made.unit_ = std::lcm(made.unit_, int64_t{world_size});
  made.requests_.assign(requests.begin(), requests.end());
  for (OpRequest& request : made.requests_) {
    if (request.operands.size() != first.operands.size())
      return WrongField("operands", "the ranks have different numbers of them");
    request.placement = PlanPlacement::kClient;
  }
  return made;
}

Result<std::vector<OpRequest>> RowRequests::At(int64_t rows) const {
  if (rows < 0) return WrongField("rows", std::to_string(rows) + " is negative");
  if (rows % unit_ != 0)
    return WrongField("rows", std::to_string(rows) + " is no multiple of " + std::to_string(unit_));
  std::vector<OpRequest> requests = requests_;
  for (OpRequest& request : requests) {
    request.max_rows = 0;
    for (size_t slot = 0; slot < extents_.size(); ++slot) {
      const Extent& follows = extents_[slot];
      if (follows.times > 0) request.operands[slot].spec.shape[0] = rows / follows.parts * follows.times;
    }
  }
  return requests;
}

Result<OpRequest> AtBound(const OpRequest& request, int world_size) {
  if (request.max_rows == 0) return request;
  TANDEM_ASSIGN_OR_RETURN(const RowRequests rows, RowRequests::Make({&request, 1}, world_size));
  if (request.max_rows < rows.unit() || request.max_rows % rows.unit() != 0) {
    return WrongField("max_rows", std::to_string(request.max_rows) + " is no positive multiple of " +
                                      std::to_string(rows.unit()));
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<OpRequest> bound, rows.At(request.max_rows));
  bound[0].max_rows = request.max_rows;
  bound[0].placement = request.placement;
  return std::move(bound[0]);
}

}  // namespace tandem
