#include "tests/conformance/matrix.h"

#include <set>

#include "common/op_tables.h"
#include "daemon/planner/planner.h"

namespace tandem::conformance {
namespace {

constexpr size_t kHeavyBytes = 1 << 20;

std::string ShapeText(const Shape& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d ? "x" : "") + std::to_string(shape[d]);
  return text + "]";
}

// Everything that a request says, in short.
std::string Describe(const OpRequest& request) {
  std::string text(OpName(request.op));
  text += "/" + std::string(AlgorithmName(request.algorithm));
  for (const Operand& operand : request.operands) {
    text += " " + std::string(RoleName(operand.role)) + ":" + std::string(DTypeName(operand.spec.dtype)) +
            ShapeText(operand.spec.shape);
    if (!operand.spec.strides.empty()) text += "strides" + ShapeText(operand.spec.strides);
    if (operand.symmetric) text += "*";
    if (operand.alias_of >= 0) text += "=" + std::to_string(operand.alias_of);
  }
  if (request.dim != 0) text += " dim" + std::to_string(request.dim);
  if (request.root != 0) text += " root" + std::to_string(request.root);
  if (request.reduce_op != ReduceOp::kSum) text += " " + std::string(NameOf(request.reduce_op));
  if (request.wire == WireType::kF32) text += " wire_f32";
  if (request.low_contention) text += " low_contention";
  if (!request.fast_accumulation) text += " slow_accumulation";
  if (request.steps != 0) text += " S" + std::to_string(request.steps);
  if (request.lanes != 0) text += " n" + std::to_string(request.lanes);
  if (request.chunk_pivot != 0) text += " pivot" + std::to_string(request.chunk_pivot);
  if (request.norm_epsilon != 0) text += " epsilon";
  return text;
}

std::string ValuesText(Values values) {
  switch (values) {
    case Values::kExact: return " exact";
    case Values::kSpecial: return " special";
    case Values::kBits: return " bits";
    default: return "";
  }
}

size_t BytesOf(const OpRequest& request) {
  size_t bytes = 0;
  for (const Operand& operand : request.operands) {
    bytes += static_cast<size_t>(CountOf(operand.spec.shape)) * DTypeBytes(operand.spec.dtype);
  }
  return bytes;
}

}  // namespace

Operand MakeOperand(Role role, DType dtype, Shape shape, bool symmetric, Shape strides) {
  return {role, {dtype, std::move(shape), std::move(strides)}, symmetric, -1};
}

void DrawReduction(Draw* draw, DType dtype, OpRequest* request, Extras* extras) {
  using enum ReduceOp;
  std::vector<ReduceOp> choices = {kMin, kMax};
  if (dtype != DType::kF16 && !IsFloat8(dtype)) choices.push_back(kProduct);
  if (!IsFloating(dtype)) choices.insert(choices.end(), {kBitAnd, kBitOr, kBitXor});
  request->reduce_op = draw->Of(choices);
  if (request->reduce_op == kProduct) extras->values = Values::kRandom;
}

Shape TransposedStrides(const Shape& shape) {
  Shape swapped = shape;
  std::swap(swapped[shape.size() - 1], swapped[shape.size() - 2]);
  Shape strides = ContiguousStrides(swapped);
  std::swap(strides[shape.size() - 1], strides[shape.size() - 2]);
  return strides;
}

void Matrix::Add(const OpRequest& request, const Extras& extras) {
  AddRanks(std::vector<OpRequest>(static_cast<size_t>(world_), request), extras);
}

void Matrix::AddRanks(std::vector<OpRequest> requests, const Extras& extras) {
  Case test;
  test.name = Describe(requests[0]) + ValuesText(extras.values);
  if (extras.shift != 0) test.name += " +" + std::to_string(extras.shift);
  if (extras.skew != 0) test.name += " skew" + std::to_string(extras.skew);
  if (!extras.note.empty()) test.name += " (" + extras.note + ")";
  size_t slots = 0;
  for (const OpRequest& request : requests) slots = std::max(slots, request.operands.size());
  test.shift.assign(slots, extras.shift);
  test.skew = extras.skew;
  test.values = extras.values;
  test.heavy = BytesOf(requests[0]) > kHeavyBytes;
  test.judge_choice = extras.judge_choice;
  test.refusal = extras.refusal;
  test.must_run = extras.must_run;
  test.requests = std::move(requests);
  cases_.push_back(std::move(test));
}

void Matrix::AddEvery(OpRequest request, const Extras& extras) {
  for (Algorithm algorithm : plan::AlgorithmsOf(request.op)) {
    if (request.steps != 0 && algorithm != Algorithm::kRing) continue;
    if (request.lanes != 0 && algorithm != Algorithm::kRing && algorithm != Algorithm::kPipeline) continue;
    if (algorithm == Algorithm::kNccl && IsBitwise(request.reduce_op)) continue;  // NCCL has none
    request.algorithm = algorithm;
    Extras own = extras;
    // Copies by copy engines are what low contention means; everything else must say that it cannot.
    if (request.low_contention && algorithm != Algorithm::kCopyEngine && algorithm != Algorithm::kPipeline &&
        algorithm != Algorithm::kRing) {
      own.refusal = "communicates by SMs";
    }
    Add(request, own);
  }
}

std::vector<Case> MakeMatrix(int world, uint64_t seed) {
  Matrix matrix(world, seed);
  AddReductions(&matrix);
  AddExchanges(&matrix);
  AddTransfers(&matrix);
  AddGatherMatmuls(&matrix);
  AddReducedMatmuls(&matrix);
  AddFusedMatmuls(&matrix);
  AddBlockScaledMatmuls(&matrix);
  AddNorms(&matrix);
  AddLongExchanges(&matrix);
  std::vector<Case> cases = matrix.Take();
  // The same case may have been drawn twice.
  std::set<std::string> seen;
  std::erase_if(cases, [&seen](const Case& test) { return !seen.insert(test.name).second; });
  return cases;
}

}  // namespace tandem::conformance
