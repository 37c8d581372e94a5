#include "daemon/planner/problem/norm_checks.h"

#include <cmath>
#include <vector>

#include "daemon/planner/problem/operand_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

// An operand of the norm beside the output: its dtype, and elements that lie packed.
Status CheckOne(const Problem& problem, int slot, DType dtype, const std::vector<int64_t>& shape) {
  const TensorSpec& spec = problem.operand(slot).spec;
  if (spec.dtype != dtype) {
    return FieldError(OperandField(slot, "dtype"),
                      Text("must be ", DTypeName(dtype), " like the output, not ", DTypeName(spec.dtype)));
  }
  if (spec.shape != shape) {
    return FieldError(OperandField(slot, "shape"),
                      Text("must be ", ShapeText(shape), ", not ", ShapeText(spec.shape)));
  }
  if (!IsContiguous(problem.Slot(0, slot))) {
    return FieldError(OperandField(slot, "strides"), "operands of a norm are contiguous");
  }
  return Status::Ok();
}

}  // namespace

Status CheckNorm(const Problem& problem) {
  const Slots& slots = problem.slots;
  const float epsilon = problem.request->norm_epsilon;
  if (slots.norm_weight < 0) {
    if (slots.residual >= 0)
      return FieldError(OperandField(slots.residual, "role"), "a residual without a norm_weight");
    if (slots.residual_output >= 0)
      return FieldError(OperandField(slots.residual_output, "role"),
                        "a residual_output without a norm_weight");
    return epsilon == 0 ? Status::Ok() : FieldError("norm_epsilon", "is set without a norm_weight");
  }
  if (!(epsilon >= 0) || std::isinf(epsilon))
    return FieldError("norm_epsilon", Text(std::to_string(epsilon), " is no finite number from 0 on"));
  if ((slots.residual >= 0) != (slots.residual_output >= 0)) {
    const int slot = std::max(slots.residual, slots.residual_output);
    return FieldError(OperandField(slot, "role"), "residual and residual_output come together");
  }
  const int output = slots.output >= 0 ? slots.output : slots.c[0];
  const TensorSpec& spec = problem.operand(output).spec;
  if (!IsFloating(spec.dtype) || IsFloat8(spec.dtype)) {
    return FieldError(OperandField(output, "dtype"),
                      Text("a norm writes f32, f16 or bf16, not ", DTypeName(spec.dtype)));
  }
  if (spec.shape.empty())
    return FieldError(OperandField(output, "shape"), "a norm needs a dimension to go over");
  TANDEM_RETURN_IF_ERROR(CheckOne(problem, output, spec.dtype, spec.shape));
  TANDEM_RETURN_IF_ERROR(CheckOne(problem, slots.norm_weight, spec.dtype, {spec.shape.back()}));
  if (slots.residual < 0) return Status::Ok();
  TANDEM_RETURN_IF_ERROR(CheckOne(problem, slots.residual, spec.dtype, spec.shape));
  return CheckOne(problem, slots.residual_output, spec.dtype, spec.shape);
}

}  // namespace tandem::plan
