#include "daemon/planner/forms/client_form.h"

#include <string>
#include <variant>

#include "program/text.h"
#include "program/verifier/verifier.h"

namespace tandem::plan {
namespace {

std::string WhyNotOnCuda(const CollectiveStep& collective, ClientKernels kernels) {
  if (collective.skinny) return {};
  if (IsFusedKernel(collective)) {
    return kernels == ClientKernels::kFused ? ""
                                            : "of this group have an older library on some rank, or no "
                                              "cuBLASLt, and no fused kernel of many "
                                              "rows";
  }
  if (collective.blocks == 0) return "launch collectives that one kernel runs";
  // The halves of packets' own tensors would be known on the device alone.
  const bool in_half =
      collective.in.ref.space == Space::kWorkspace || collective.out.ref.space == Space::kWorkspace;
  return collective.algorithm == Algorithm::kLowLatency && in_half
             ? "send packets between operands and the bulk area only"
             : "";
}

std::string WhyNotOnCuda(const MatmulStep& product) {
  if (product.has_scale_a || product.has_scale_b || product.has_result_scale)
    return "run products without scales only";
  const DType type = product.a.dtype;
  const bool floats = type == DType::kF32 || type == DType::kF16 || type == DType::kBf16;
  const bool to_floats = product.c.dtype == type || product.c.dtype == DType::kF32;
  return floats && product.b.dtype == type && to_floats
             ? ""
             : "run products of f32, f16 and bf16 into the same type or f32 only";
}

// Why a client on CUDA cannot launch `step`, which has the form; empty if it can.
std::string WhyNotOnCuda(const Step& step, ClientKernels kernels) {
  if (const auto* collective = std::get_if<CollectiveStep>(&step.work))
    return WhyNotOnCuda(*collective, kernels);
  if (std::holds_alternative<NopStep>(step.work)) return {};
  if (kernels == ClientKernels::kCollectives)
    return "need cuBLASLt in the process of every rank for products and what goes with them";
  if (const auto* product = std::get_if<MatmulStep>(&step.work)) return WhyNotOnCuda(*product);
  return {};
}

}  // namespace

Status CheckClientForm(const OperationPlan& plan, ClientKernels kernels) {
  TANDEM_RETURN_IF_ERROR(CheckOneKernel(plan.programs));
  if (kernels == ClientKernels::kAll) return Status::Ok();
  const StatusDetail detail{.reason = "NOT_ONE_KERNEL"};
  if (plan.programs.size() == 1) return Status(Code::kFailedPrecondition, "one rank meets nobody", detail);
  for (const RankProgram& program : plan.programs) {
    for (size_t s = 0; s < program.steps.size(); ++s) {
      const std::string why = WhyNotOnCuda(program.steps[s], kernels);
      if (why.empty()) continue;
      return Status(Code::kFailedPrecondition,
                    Text("rank ", program.rank, ", step ", s, ": on CUDA clients ", why), detail);
    }
  }
  return Status::Ok();
}

}  // namespace tandem::plan
