#include "daemon/planner/choice/placement.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {

bool RunsKernels(const RankProgram& program) {
  return std::any_of(program.steps.begin(), program.steps.end(), [](const Step& step) {
    if (const auto* copy = std::get_if<CopyStep>(&step.work)) return !copy->copy_engine;
    return !std::holds_alternative<NopStep>(step.work) && !std::holds_alternative<SignalStep>(step.work) &&
           !std::holds_alternative<WaitStep>(step.work);
  });
}

Status CheckClientPlacement(const OperationPlan& plan, std::span<const OpRequest> requests,
                            ClientKernels kernels) {
  Status status = CheckClientForm(plan, kernels);
  if (status.ok()) {
    TANDEM_ASSIGN_OR_RETURN(const VerifyContext context, ContextOf(requests));
    status = VerifyPrograms(plan.programs, context, {.in_client = true});
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
