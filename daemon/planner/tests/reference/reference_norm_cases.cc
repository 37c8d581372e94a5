// Norms behind sums.
#include "daemon/planner/tests/reference/reference_cases.h"

namespace tandem::plan {

OpRequest WithNorm(OpRequest request, int output, bool residual) {
  const TensorSpec out = request.operands[static_cast<size_t>(output)].spec;
  request.norm_epsilon = 1e-3f;
  request.operands.push_back(MakeOperand(Role::kNormWeight, out.dtype, {out.shape.back()}));
  if (!residual) return request;
  request.operands.push_back(MakeOperand(Role::kResidual, out.dtype, out.shape));
  request.operands.push_back(MakeOperand(Role::kResidualOutput, out.dtype, out.shape));
  return request;
}

OpRequest WithQuantization(OpRequest request, int output, int64_t scales) {
  std::vector<int64_t> shape = request.operands[static_cast<size_t>(output)].spec.shape;
  request.operands.push_back(MakeOperand(Role::kQuantizedOutput, DType::kF8E4M3, shape));
  shape.back() = scales;
  request.operands.push_back(scales == 0 ? MakeOperand(Role::kStaticScale, DType::kF32, {1})
                                         : MakeOperand(Role::kScaleOutput, DType::kF32, shape));
  return request;
}

std::vector<std::pair<std::string, OpRequest>> NormRequests() {
  std::vector<std::pair<std::string, OpRequest>> requests;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const bool residual : {false, true}) {
      const std::string name =
          std::string("norm ") + std::string(DTypeName(dtype)) + (residual ? " residual" : "");
      OpRequest r;
      r.op = Op::kAllReduce;
      r.operands = {MakeOperand(Role::kInput, dtype, {3, 5, 7}),
                    MakeOperand(Role::kOutput, dtype, {3, 5, 7})};
      requests.emplace_back(name, WithNorm(r, 1, residual));
      r.operands[1].alias_of = 0;
      OpRequest in_place = WithNorm(r, 1, residual);
      if (residual) in_place.operands[4].alias_of = 3;
      requests.emplace_back(name + " in place", in_place);
      r.operands = {MakeOperand(Role::kInput, dtype, {9, 8}, true),
                    MakeOperand(Role::kOutput, dtype, {9, 8}, true)};
      requests.emplace_back(name + " sym", WithNorm(r, 1, residual));
      for (const int64_t scales : {0, 1, 2}) {
        OpRequest wide = r;
        wide.operands = {MakeOperand(Role::kInput, dtype, {3, 130}),
                         MakeOperand(Role::kOutput, dtype, {3, 130})};
        requests.emplace_back(name + " quantized " + std::to_string(scales),
                              WithQuantization(WithNorm(wide, 1, residual), 1, scales));
      }
      r.op = Op::kMatmulAllReduce;
      r.operands = {MakeOperand(Role::kA, dtype, {9, 4}), MakeOperand(Role::kB, dtype, {4, 6}),
                    MakeOperand(Role::kC, dtype, {9, 6})};
      requests.emplace_back(name, WithNorm(r, 2, residual));
      requests.emplace_back(name + " quantized", WithQuantization(WithNorm(r, 2, residual), 2, 1));
    }
  }
  return requests;
}

}  // namespace tandem::plan
