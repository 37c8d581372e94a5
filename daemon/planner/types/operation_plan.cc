#include "daemon/planner/types/operation_plan.h"

#include <string>
#include <vector>

#include "common/op_tables.h"

namespace tandem::plan {

std::string_view PlacementName(PlanPlacement placement) { return NameOf(placement); }

Result<PlanPlacement> ParsePlacement(std::string_view name) {
  if (const auto placement = ValueOf<PlanPlacement>(name)) return *placement;
  return InvalidArgument("unknown placement '" + std::string(name) + "'; the placements are " +
                         ListedNames<PlanPlacement>())
      .WithDetail({.field = "placement"});
}

std::vector<Algorithm> AlgorithmsOf(Op op) {
  using enum Algorithm;
#define TANDEM_ALGORITHMS(row, ...) \
  if (op == Op::row) return {__VA_ARGS__};
#include "common/ops.def"
  return {};
}

bool MeasuredOnRequestOnly(Algorithm algorithm) {
  return algorithm == Algorithm::kRing || algorithm == Algorithm::kTiledTwoShot;
}

bool IsFusedOp(Op op) {
  return op == Op::kAllGatherMatmul || op == Op::kMatmulReduceScatter || op == Op::kMatmulAllReduce;
}

bool Overlaps(Algorithm algorithm) {
  return algorithm != Algorithm::kUnfused && algorithm != Algorithm::kLowLatency &&
         algorithm != Algorithm::kNccl;
}

}  // namespace tandem::plan
