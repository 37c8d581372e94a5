#include "daemon/planner/problem/norm_checks.h"

#include <cmath>
#include <utility>
#include <vector>

#include "daemon/planner/problem/operand_checks.h"
#include "program/norm_scales.h"
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

Status CheckDType(const Problem& problem, int slot, DType dtype) {
  const DType is = problem.operand(slot).spec.dtype;
  if (is == dtype) return Status::Ok();
  return FieldError(OperandField(slot, "dtype"), Text("must be ", DTypeName(dtype), ", not ", DTypeName(is)));
}

// The operands by which a norm of this shape is quantised.
Status CheckQuantization(const Problem& problem, const std::vector<int64_t>& shape) {
  const Slots& slots = problem.slots;
  const int quantized = slots.quantized_output, given = slots.static_scale, made = slots.scale_output;
  if (quantized < 0) {
    if (given < 0 && made < 0) return Status::Ok();
    return FieldError(OperandField(given < 0 ? made : given, "role"), "a scale without a quantized_output");
  }
  if ((given >= 0) == (made >= 0)) {
    return FieldError(OperandField(quantized, "role"),
                      Text("a quantized_output needs a static_scale or a scale_output",
                           given < 0 ? "" : ", and takes no two"));
  }
  TANDEM_RETURN_IF_ERROR(CheckDType(problem, quantized, DType::kF8E4M3));
  if (const TensorSpec& spec = problem.operand(quantized).spec; spec.shape != shape) {
    return FieldError(OperandField(quantized, "shape"),
                      Text("must be ", ShapeText(shape), ", not ", ShapeText(spec.shape)));
  }
  if (!IsContiguous(problem.Slot(0, quantized)))
    return FieldError(OperandField(quantized, "strides"), "operands of a norm are contiguous");
  const int slot = given < 0 ? made : given;
  TANDEM_RETURN_IF_ERROR(CheckDType(problem, slot, DType::kF32));
  const View scale = problem.Slot(0, slot);
  if (given >= 0) {
    if (Elements(scale) == 1) return Status::Ok();
    return FieldError(OperandField(slot, "shape"),
                      Text("must be one element, not ", ShapeText(scale.extent)));
  }
  if (!FitScales(scale.extent, shape)) {
    std::vector<int64_t> rows = shape, blocks = shape;
    rows.back() = 1;
    blocks.back() = NormScaleBlocks(shape.back());
    return FieldError(OperandField(slot, "shape"),
                      Text("must be ", ShapeText(rows), ", or ", ShapeText(blocks), " by blocks, not ",
                           ShapeText(scale.extent)));
  }
  if (!RowPitchOf(scale)) {
    return FieldError(OperandField(slot, "strides"),
                      "leading dimensions of scales must lie as rows at one pitch");
  }
  return Status::Ok();
}

}  // namespace

Status CheckNorm(const Problem& problem) {
  const Slots& slots = problem.slots;
  const float epsilon = problem.request->norm_epsilon;
  if (slots.norm_weight < 0) {
    for (const auto& [slot, what] : {std::pair{slots.residual, "residual"},
                                     {slots.residual_output, "residual_output"},
                                     {slots.quantized_output, "quantized_output"},
                                     {slots.static_scale, "static_scale"},
                                     {slots.scale_output, "scale_output"}}) {
      if (slot >= 0)
        return FieldError(OperandField(slot, "role"), Text("a ", what, " without a norm_weight"));
    }
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
  if (slots.residual >= 0) {
    TANDEM_RETURN_IF_ERROR(CheckOne(problem, slots.residual, spec.dtype, spec.shape));
    TANDEM_RETURN_IF_ERROR(CheckOne(problem, slots.residual_output, spec.dtype, spec.shape));
  }
  return CheckQuantization(problem, spec.shape);
}

}  // namespace tandem::plan
