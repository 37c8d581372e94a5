#include "daemon/planner/choice/placement.h"

#include <algorithm>
#include <utility>

#include "program/verifier/verifier.h"

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

Status CheckClientPlacement(const Plan& plan, std::span<const OpRequest> requests) {
  Status status = CheckOneKernel(plan.programs);
  if (status.ok()) {
    TANDEM_ASSIGN_OR_RETURN(const VerifyContext context, ContextOf(requests));
    status = VerifyPrograms(plan.programs, context, {.client_placed = true});
  }
  if (status.ok()) return status;
  StatusDetail detail = status.detail();
  detail.field = "placement";
  return Status(Code::kFailedPrecondition, std::string(status.message()), std::move(detail));
}

std::vector<Algorithm> OtherAlgorithms(const Plan& plan) {
  const auto time = [](const RefusedAlgorithm& other) {
    return other.measured_us > 0 ? other.measured_us : other.predicted_us;
  };
  std::vector<RefusedAlgorithm> others;
  for (const RefusedAlgorithm& other : plan.refused) {
    if (time(other) > 0) others.push_back(other);
  }
  std::stable_sort(others.begin(), others.end(),
                   [&](const RefusedAlgorithm& a, const RefusedAlgorithm& b) { return time(a) < time(b); });
  std::vector<Algorithm> algorithms;
  algorithms.reserve(others.size());
  for (const RefusedAlgorithm& other : others) algorithms.push_back(other.algorithm);
  return algorithms;
}

}  // namespace tandem::plan
