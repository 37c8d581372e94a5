#include "daemon/planner/problem/matmul_checks.h"

#include <algorithm>
#include <utility>

#include "daemon/planner/problem/operand_checks.h"
#include "daemon/planner/problem/scale_checks.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

using Shape = std::vector<int64_t>;

Status ShapeError(int slot, const Shape& want, const Shape& have) {
  return FieldError(OperandField(slot, "shape"),
                    Text("must be ", ShapeText(want), ", not ", ShapeText(have)));
}

// One of an optional, per-B role for each B, or none at all.
Status CheckCount(const std::vector<int>& slots, size_t count, Role role) {
  if (slots.empty() || slots.size() == count) return Status::Ok();
  return FieldError("operands", Text(slots.size(), " operands of role ", RoleName(role), " for ", count,
                                     " of role b; give one for each or none"));
}

Status CheckDTypes(const Problem& problem, int b_slot, int c_slot) {
  const DType a = Spec(problem, problem.slots.a).dtype, b = Spec(problem, b_slot).dtype;
  const DType c = Spec(problem, c_slot).dtype;
  if (!IsFloating(a)) {
    return FieldError(OperandField(problem.slots.a, "dtype"),
                      Text("a matmul of ", DTypeName(a), " is not supported"));
  }
  if (IsFloat8(a) ? !IsFloat8(b) : a != b) {
    return FieldError(OperandField(b_slot, "dtype"), Text("is ", DTypeName(b), " while A is ", DTypeName(a)));
  }
  const bool fits = IsFloat8(a) ? IsFloating(c) : c == a || c == DType::kF32;
  if (!fits) {
    return FieldError(OperandField(c_slot, "dtype"),
                      Text("cannot be ", DTypeName(c), " for A of ", DTypeName(a)));
  }
  return Status::Ok();
}

// A sum over one element that is named again and again: K would be bounded by nothing that the caller has,
// neither memory nor time.
Status CheckInnerStride(const Problem& problem, int slot, size_t dim) {
  const TensorSpec& spec = Spec(problem, slot);
  const bool sums =
      spec.shape[dim] > 1 && std::find(spec.shape.begin(), spec.shape.end(), 0) == spec.shape.end();
  if (spec.strides.empty() || spec.strides[dim] != 0 || !sums) return Status::Ok();
  return FieldError(OperandField(slot, "strides"), Text("must not be 0 along K, dimension ", dim));
}

// B, C, bias and result_scale number `i`; `c_shape` without its last extent, which `columns` of B
// replace.
Status CheckProduct(const Problem& problem, size_t i, int64_t k, Shape c_shape, bool scatter_columns) {
  const Slots& slots = problem.slots;
  const Shape& b = Spec(problem, slots.b[i]).shape;
  if (b.size() != 2) return FieldError(OperandField(slots.b[i], "shape"), "B must have 2 dimensions");
  if (b[0] != k) {
    return FieldError(OperandField(slots.b[i], "shape"), Text("has ", b[0], " rows; A's K is ", k));
  }
  TANDEM_RETURN_IF_ERROR(CheckInnerStride(problem, slots.b[i], 0));
  const int64_t columns = b[1];
  if (scatter_columns && columns % problem.world_size != 0) {
    return FieldError(OperandField(slots.b[i], "shape"), Text("its ", columns,
                                                              " columns are not divisible by the "
                                                              "world size ",
                                                              problem.world_size));
  }
  c_shape.push_back(scatter_columns ? columns / problem.world_size : columns);
  const Shape& c = Spec(problem, slots.c[i]).shape;
  if (c != c_shape) return ShapeError(slots.c[i], c_shape, c);
  if (!ElementCount(c_shape).ok()) return FieldError(OperandField(slots.c[i], "shape"), "overflows");
  TANDEM_RETURN_IF_ERROR(CheckDTypes(problem, slots.b[i], slots.c[i]));
  if (!slots.bias.empty()) {
    const TensorSpec& bias = Spec(problem, slots.bias[i]);
    if (bias.shape != Shape{columns}) return ShapeError(slots.bias[i], {columns}, bias.shape);
    if (bias.dtype != Spec(problem, slots.c[i]).dtype && bias.dtype != DType::kF32) {
      return FieldError(OperandField(slots.bias[i], "dtype"), "must be C's dtype or f32");
    }
  }
  if (!slots.result_scale.empty()) {
    const TensorSpec& scale = Spec(problem, slots.result_scale[i]);
    if (scale.dtype != DType::kF32)
      return FieldError(OperandField(slots.result_scale[i], "dtype"), "must be f32");
    if (*ElementCount(scale.shape) != 1) {
      return FieldError(OperandField(slots.result_scale[i], "shape"), "must be one element");
    }
  }
  return Status::Ok();
}

Status CheckChunkSignals(const Problem& problem, int64_t rows) {
  const int slot = problem.slots.chunk_signals;
  const TensorSpec& spec = Spec(problem, slot);
  if (spec.dtype != DType::kI32) return FieldError(OperandField(slot, "dtype"), "chunk signals are i32");
  if (spec.shape.size() != 1 || spec.shape[0] < 1) {
    return FieldError(OperandField(slot, "shape"), "must be one dimension of at least one word");
  }
  if (spec.shape[0] > kMaxChunkSignals) {
    return FieldError(
        OperandField(slot, "shape"),
        Text(spec.shape[0], " chunks are more than ", kMaxChunkSignals,
             ": the work of all is enqueued before the first signal comes, and a stream takes only so much"));
  }
  if (!spec.strides.empty() && spec.shape[0] > 1 && spec.strides[0] != 1) {
    return FieldError(OperandField(slot, "strides"), "chunk signals must be contiguous");
  }
  if (rows % spec.shape[0] != 0) {
    return FieldError(OperandField(slot, "shape"),
                      Text("A's ", rows, " rows are not divisible into ", spec.shape[0], " chunks"));
  }
  for (size_t rank = 0; rank < problem.requests.size(); ++rank) {
    const int pivot = problem.requests[rank].chunk_pivot;
    if (pivot < 0 || pivot >= spec.shape[0]) {
      return FieldError("chunk_pivot", Text("rank ", rank, " asks for chunk ", pivot, " of ", spec.shape[0]));
    }
  }
  return Status::Ok();
}

}  // namespace

Status FillMatmul(Problem* problem) {
  const OpRequest& request = *problem->request;
  const Slots& slots = problem->slots;
  const Op op = request.op;
  const Shape& a = Spec(*problem, slots.a).shape;
  const int dims = static_cast<int>(a.size());
  const int world = problem->world_size;
  if (dims < 2) return FieldError(OperandField(slots.a, "shape"), "A must have at least 2 dimensions");
  const bool by_dim = op == Op::kAllGatherMatmul || op == Op::kMatmulReduceScatter;
  if (by_dim) {
    if (request.dim < -dims || request.dim >= dims) {
      return FieldError("dim", Text(request.dim, " is out of range for ", dims, " dimensions"));
    }
    problem->dim = request.dim < 0 ? request.dim + dims : request.dim;
  }
  Shape gathered = a;
  if (op == Op::kAllGatherMatmul) gathered[problem->dim] *= world;
  if (!ElementCount(gathered).ok())
    return FieldError(OperandField(slots.a, "shape"), "gathered shape overflows");
  Shape c_leading(gathered.begin(), gathered.end() - 1);
  problem->rows = *ElementCount(c_leading);
  const bool scatters = op == Op::kMatmulReduceScatter;
  const bool scatter_columns = scatters && problem->last_dim();
  if (scatters && !scatter_columns) {
    int64_t& extent = c_leading[problem->dim];
    if (extent % world != 0) {
      return FieldError(OperandField(slots.a, "shape"),
                        Text("extent ", extent, " along dimension ", problem->dim,
                             " is not divisible by the world size ", world));
    }
    extent /= world;
  }
  if (slots.b.size() != slots.c.size()) {
    return FieldError("operands",
                      Text(slots.b.size(), " operands of role b but ", slots.c.size(), " of role c"));
  }
  TANDEM_RETURN_IF_ERROR(CheckCount(slots.scale_b, slots.b.size(), Role::kScaleB));
  TANDEM_RETURN_IF_ERROR(CheckCount(slots.bias, slots.b.size(), Role::kBias));
  TANDEM_RETURN_IF_ERROR(CheckCount(slots.result_scale, slots.b.size(), Role::kResultScale));
  problem->k = gathered.back();
  TANDEM_RETURN_IF_ERROR(CheckInnerStride(*problem, slots.a, a.size() - 1));
  for (size_t i = 0; i < slots.b.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckProduct(*problem, i, problem->k, c_leading, scatter_columns));
    problem->n += Spec(*problem, slots.b[i]).shape[1];
  }
  TANDEM_RETURN_IF_ERROR(FillScaleMode(problem, gathered));
  if (slots.gathered_a >= 0) {
    const TensorSpec& spec = Spec(*problem, slots.gathered_a);
    if (spec.dtype != Spec(*problem, slots.a).dtype) {
      return FieldError(OperandField(slots.gathered_a, "dtype"), "must be A's dtype");
    }
    if (spec.shape != gathered) return ShapeError(slots.gathered_a, gathered, spec.shape);
  }
  if (op == Op::kAsyncInputMatmul) TANDEM_RETURN_IF_ERROR(CheckChunkSignals(*problem, problem->rows));
  const DType c = Spec(*problem, slots.c[0]).dtype;
  problem->wire = request.wire == WireType::kF32 ? DType::kF32 : c;
  if (op == Op::kAllGatherMatmul) {
    problem->message_bytes =
        static_cast<uint64_t>(*ElementCount(gathered)) * DTypeBytes(Spec(*problem, slots.a).dtype);
  } else if (op != Op::kAsyncInputMatmul) {
    problem->message_bytes = static_cast<uint64_t>(problem->rows * problem->n) * DTypeBytes(problem->wire);
  }
  return Status::Ok();
}

}  // namespace tandem::plan
