#include "daemon/planner/choice/placement.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

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

namespace {

// Whether there is a CUDA kernel for it that takes its number from the device.
bool HasClientKernel(const CollectiveStep& step) {
  return step.skinny || (step.blocks > 0 && step.algorithm != Algorithm::kFused);
}

}  // namespace

Status CheckClientForm(const OperationPlan& plan, ClientKernels kernels) {
  TANDEM_RETURN_IF_ERROR(CheckOneKernel(plan.programs));
  if (kernels == ClientKernels::kAll) return Status::Ok();
  for (const RankProgram& program : plan.programs) {
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const auto* collective = std::get_if<CollectiveStep>(&program.steps[s].work);
      const bool empty = std::holds_alternative<NopStep>(program.steps[s].work);
      // The halves of packets' own tensors would be known on the device alone.
      if (collective != nullptr && collective->algorithm == Algorithm::kLowLatency &&
          (collective->in.ref.space == Space::kWorkspace || collective->out.ref.space == Space::kWorkspace)) {
        return Status(Code::kFailedPrecondition,
                      "rank " + std::to_string(program.rank) + ", step " + std::to_string(s) +
                          ": on CUDA clients send packets between operands only",
                      {.reason = "NOT_ONE_KERNEL"});
      }
      if (empty || (collective != nullptr && HasClientKernel(*collective))) continue;
      return Status(
          Code::kFailedPrecondition,
          "rank " + std::to_string(program.rank) + ", step " + std::to_string(s) +
              ": on CUDA clients launch collectives and products of few rows only, without other work "
              "around them",
          {.reason = "NOT_ONE_KERNEL"});
    }
  }
  return Status::Ok();
}

Status CheckClientPlacement(const OperationPlan& plan, std::span<const OpRequest> requests,
                            ClientKernels kernels) {
  Status status = CheckClientForm(plan, kernels);
  if (status.ok()) {
    TANDEM_ASSIGN_OR_RETURN(const VerifyContext context, ContextOf(requests));
    status = VerifyPrograms(plan.programs, context, {.client_placed = true});
  }
  if (status.ok()) return status;
  StatusDetail detail = status.detail();
  detail.field = "placement";
  return Status(Code::kFailedPrecondition, std::string(status.message()), std::move(detail));
}

std::vector<Algorithm> OtherAlgorithms(const OperationPlan& plan) {
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
