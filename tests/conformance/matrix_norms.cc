#include "tests/conformance/matrix.h"

namespace tandem::conformance {
namespace {

constexpr float kEpsilon = 1e-5f;

struct Shape3 {
  int64_t rows, n, k;
};

// `request` with the norm of the output, slot `output`: weights, then the residual and where it goes.
OpRequest WithNorm(OpRequest request, int output, bool residual) {
  const Operand of = request.operands[static_cast<size_t>(output)];
  request.norm_epsilon = kEpsilon;
  request.operands.push_back(MakeOperand(Role::kNormWeight, of.spec.dtype, {of.spec.shape.back()}));
  if (!residual) return request;
  request.operands.push_back(MakeOperand(Role::kResidual, of.spec.dtype, of.spec.shape));
  request.operands.push_back(MakeOperand(Role::kResidualOutput, of.spec.dtype, of.spec.shape));
  return request;
}

// How the norm is quantised: not at all, by a given scale, by one of each row, or of each 128 columns.
enum class Quantized : uint8_t { kNo, kStatic, kRows, kBlocks };

OpRequest WithQuantization(OpRequest request, int output, Quantized how) {
  if (how == Quantized::kNo) return request;
  Shape shape = request.operands[static_cast<size_t>(output)].spec.shape;
  request.operands.push_back(MakeOperand(Role::kQuantizedOutput, DType::kF8E4M3, shape));
  if (how == Quantized::kStatic) {
    request.operands.push_back(MakeOperand(Role::kStaticScale, DType::kF32, {1}));
    return request;
  }
  shape.back() = how == Quantized::kRows ? 1 : (shape.back() + 127) / 128;
  request.operands.push_back(MakeOperand(Role::kScaleOutput, DType::kF32, shape));
  // By columns, as TMA takes them.
  if (shape.size() == 2 && how == Quantized::kBlocks)
    request.operands.back().spec.strides = {1, (shape[0] + 3) / 4 * 4};
  return request;
}

void AddOne(Matrix* matrix, const OpRequest& sum, int output, bool may_be_in_place) {
  for (const bool residual : {false, true}) {
    OpRequest request = WithNorm(sum, output, residual);
    Draw& draw = matrix->draw();
    if (may_be_in_place && draw.OneIn(3)) request.operands[1].alias_of = 0;
    const int last = static_cast<int>(request.operands.size()) - 1;
    if (residual && draw.OneIn(2)) request.operands[static_cast<size_t>(last)].alias_of = last - 1;
    request = WithQuantization(std::move(request), output, static_cast<Quantized>(draw.Below(4)));
    if (draw.OneIn(4)) request.reduce_op = ReduceOp::kAvg;
    matrix->AddEvery(request, {.note = "norm", .shift = draw.Of(std::vector<int>{0, 0, 0, 1, 4, 8})});
  }
}

}  // namespace

// Rows of one element and of some, of all lengths that FlashInfer's and vLLM's tests of fused norms have
// (2048 to 8192), of more than a block's registers hold, and of lengths that no word divides.
void AddNorms(Matrix* matrix) {
  const std::vector<Shape> shapes = {{1, 1},     {3, 5, 7}, {1, 8},     {0, 16},     {2, 2048},
                                     {8, 4096},  {1, 8192}, {33, 8192}, {300, 256},  {5, 16384},
                                     {2, 70000}, {7, 1000}, {64},       {2, 3, 4104}};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBf16}) {
    for (const Shape& shape : shapes) {
      OpRequest request;
      request.op = Op::kAllReduce;
      const bool symmetric = matrix->draw().OneIn(2);
      request.operands = {MakeOperand(Role::kInput, dtype, shape, symmetric),
                          MakeOperand(Role::kOutput, dtype, shape, symmetric)};
      AddOne(matrix, request, 1, true);
    }
    // Few rows, and so many that fused kernels take them.
    for (const auto& [rows, n, k] : {Shape3{5, 264, 64}, Shape3{64, 1024, 256}, Shape3{1024, 512, 128}}) {
      OpRequest request;
      request.op = Op::kMatmulAllReduce;
      request.operands = {MakeOperand(Role::kA, dtype, {rows, k}), MakeOperand(Role::kB, dtype, {k, n}),
                          MakeOperand(Role::kC, dtype, {rows, n}, matrix->draw().OneIn(2))};
      AddOne(matrix, request, 2, false);
    }
  }
}

}  // namespace tandem::conformance
