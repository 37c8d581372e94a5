// Reductions that are neither sums nor averages.
#include "common/op_tables.h"
#include "daemon/planner/tests/reference/reference_cases.h"

namespace tandem::plan {

std::vector<std::pair<std::string, OpRequest>> ReductionRequests(int world) {
  std::vector<std::pair<std::string, OpRequest>> requests;
  const std::vector<int64_t> shard = {2, 3}, whole = {2 * world, 3};
  for (const auto& [reduce_op, name] : kNamedValues<ReduceOp>) {
    if (reduce_op == ReduceOp::kSum || reduce_op == ReduceOp::kAvg) continue;
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kI32, DType::kU8}) {
      if (IsFloating(dtype) && IsBitwise(reduce_op)) continue;
      // Integers wrap, as doubles do not; a mesh rounds bf16 twice.
      if (reduce_op == ReduceOp::kProduct && dtype != DType::kF32) continue;
      OpRequest r;
      r.reduce_op = reduce_op;
      for (const Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kReduce}) {
        r.op = op;
        r.operands = {MakeOperand(Role::kInput, dtype, op == Op::kReduceScatter ? whole : shard),
                      MakeOperand(Role::kOutput, dtype, shard)};
        requests.emplace_back(std::string(name) + " " + std::string(DTypeName(dtype)), r);
      }
    }
  }
  return requests;
}

}  // namespace tandem::plan
