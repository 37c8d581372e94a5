#include "daemon/planner/types/operation_plan.h"

#include <string>
#include <vector>

namespace tandem::plan {

std::string_view PlacementName(PlanPlacement placement) {
  switch (placement) {
    case PlanPlacement::kAuto: return "auto";
    case PlanPlacement::kEngine: return "engine";
    case PlanPlacement::kClient: return "client";
  }
  return "";
}

Result<PlanPlacement> ParsePlacement(std::string_view name) {
  for (PlanPlacement placement : {PlanPlacement::kAuto, PlanPlacement::kEngine, PlanPlacement::kClient}) {
    if (name == PlacementName(placement)) return placement;
  }
  return InvalidArgument("unknown placement '" + std::string(name) +
                         "'; the placements are auto, engine, client")
      .WithDetail({.field = "placement"});
}

std::vector<Algorithm> AlgorithmsOf(Op op) {
  using enum Algorithm;
  switch (op) {
    case Op::kAllReduce: return {kOneShot, kTwoShot, kHybridCubeMesh, kCopyEngine, kLowLatency, kNccl};
    case Op::kAllGather:
    case Op::kReduceScatter: return {kSm, kCopyEngine, kLowLatency, kNccl};
    case Op::kAllGatherMatmul:
    case Op::kMatmulReduceScatter: return {kPipeline, kRing, kFused, kLowLatency, kUnfused, kNccl};
    case Op::kMatmulAllReduce: return {kTiledTwoShot, kFused, kLowLatency, kUnfused, kNccl};
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kAllToAll: return {kSm, kNccl};
    case Op::kBarrier: return {kDirect, kNccl};
    case Op::kSendReceive:
    case Op::kAsyncInputMatmul:
    case Op::kEmpty: return {kDirect};
  }
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
