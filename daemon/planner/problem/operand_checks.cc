#include "daemon/planner/problem/operand_checks.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/op_tables.h"
#include "program/text.h"

namespace tandem::plan {
namespace {

constexpr int kRoles = static_cast<int>(kNamedValues<Role>.back().value) + 1;
constexpr int kMany = kMaxOperands;

struct RoleBounds {
  Role role;
  int least;
  int most;
};

// How often each role occurs in an operation; other roles not at all.
std::vector<RoleBounds> RolesOf(Op op) {
  using enum Role;
#define TANDEM_OPERANDS(row, ...) \
  if (op == Op::row) return {__VA_ARGS__};
#include "common/ops.def"
  return {};
}

// Sufficient for no two elements to share a byte: sorted by stride, each dimension steps over all inner ones.
bool MayOverlap(const TensorSpec& spec) {
  if (spec.strides.empty()) return false;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, extent
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (spec.shape[i] == 0) return false;
    if (spec.shape[i] > 1) dims.emplace_back(spec.strides[i], spec.shape[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // last element reached by inner dimensions; SpanBytes has bounded it
  for (const auto& [stride, extent] : dims) {
    if (stride <= reach) return true;
    reach += stride * (extent - 1);
  }
  return false;
}

bool MayBeInPlace(Op op) {
  return op == Op::kAllReduce || op == Op::kAllGather || op == Op::kReduceScatter || op == Op::kBroadcast ||
         op == Op::kReduce || op == Op::kAllToAll;
}

// The slot `part` in place along a dimension: a slice of `whole`. Shapes are checked with those of every such
// operation.
Status CheckPart(const OpRequest& request, int part, int whole) {
  if (StridesOf(request, part) != StridesOf(request, whole)) {
    return FieldError(
        OperandField(part, "strides"),
        Text("must be those of operand ", whole, ", of which it is a part in place, or left out; they are ",
             ShapeText(StridesOf(request, part)), ", those of the whole ",
             ShapeText(StridesOf(request, whole))));
  }
  // A gather's is the output, which is checked in any case. Here it is read while a part of it is written.
  if (MayOverlap(request.operands[static_cast<size_t>(whole)].spec)) {
    return FieldError(OperandField(whole, "strides"),
                      "elements of an operand that is written in place overlap");
  }
  return Status::Ok();
}

Status CheckAlias(const OpRequest& request, int slot) {
  const Operand& operand = request.operands[slot];
  if (operand.alias_of == -1) return Status::Ok();
  const std::string field = OperandField(slot, "alias_of");
  if (operand.alias_of < 0 || operand.alias_of >= static_cast<int>(request.operands.size()) ||
      operand.alias_of == slot) {
    return FieldError(field, Text("slot ", operand.alias_of, " is no other slot of this request"));
  }
  const Operand& target = request.operands[operand.alias_of];
  const bool is_output =
      MayBeInPlace(request.op) && operand.role == Role::kOutput && target.role == Role::kInput;
  const bool is_residual = operand.role == Role::kResidualOutput && target.role == Role::kResidual;
  if (!is_output && !is_residual) {
    return FieldError(field,
                      "only the output of all_reduce, all_gather, reduce_scatter, broadcast, reduce and "
                      "all_to_all may be its input, and only residual_output its residual");
  }
  if (operand.symmetric != target.symmetric) {
    return FieldError(field, "the two slots of an operation in place are both symmetric or both not");
  }
  if (const int part = PartSlot(request); part >= 0) {
    if (operand.spec.dtype != target.spec.dtype)
      return FieldError(field, "an operation in place needs equal dtypes");
    return CheckPart(request, part, part == slot ? operand.alias_of : slot);
  }
  if (operand.spec.dtype != target.spec.dtype || operand.spec.shape != target.spec.shape) {
    return FieldError(field, "an operation in place needs equal shapes and dtypes");
  }
  if (StridesOf(request, slot) != StridesOf(request, operand.alias_of)) {
    return FieldError(field, "an operation in place needs equal strides");
  }
  return Status::Ok();
}

}  // namespace

std::string OperandField(int slot, std::string_view member) { return Text("operands[", slot, "].", member); }

Status CheckOperands(const OpRequest& request) {
  if (request.operands.size() > kMaxOperands) {
    return FieldError("operands", Text(request.operands.size(), " operands; at most ", kMaxOperands));
  }
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    const Operand& operand = request.operands[slot];
    const TensorSpec& spec = operand.spec;
    if (!IsValid(spec.dtype)) return FieldError(OperandField(slot, "dtype"), "unknown dtype");
    if (spec.shape.size() > kMaxDims) {
      return FieldError(OperandField(slot, "shape"),
                        Text(spec.shape.size(), " dimensions; at most ", kMaxDims));
    }
    if (auto count = ElementCount(spec.shape); !count.ok()) {
      return FieldError(OperandField(slot, "shape"), count.status().message());
    }
    auto bytes = SpanBytes(spec);
    if (!bytes.ok()) return FieldError(OperandField(slot, "strides"), bytes.status().message());
    // Far above any GPU, and far enough below 2^63 that sums over ranks and operands cannot overflow.
    const int64_t packed = *ElementCount(spec.shape) * static_cast<int64_t>(DTypeBytes(spec.dtype));
    if (packed > kMaxOperandBytes) return FieldError(OperandField(slot, "shape"), "is over 64 TiB");
    if (*bytes > kMaxOperandBytes) return FieldError(OperandField(slot, "strides"), "span over 64 TiB");
    if (IsOutput(operand.role) && MayOverlap(spec)) {
      return FieldError(OperandField(slot, "strides"), "elements of an output overlap");
    }
  }
  // An alias looks at another slot's tensor: all are checked by now.
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    TANDEM_RETURN_IF_ERROR(CheckAlias(request, slot));
  }
  return Status::Ok();
}

Result<Slots> FindSlots(const OpRequest& request) {
  std::array<std::vector<int>, kRoles> found;
  for (int slot = 0; slot < static_cast<int>(request.operands.size()); ++slot) {
    const int role = static_cast<int>(request.operands[slot].role);
    if (!IsListed(request.operands[slot].role)) return FieldError(OperandField(slot, "role"), "unknown role");
    found[role].push_back(slot);
  }
  std::array<bool, kRoles> known{};
  for (const RoleBounds& bounds : RolesOf(request.op)) {
    const auto& slots = found[static_cast<int>(bounds.role)];
    known[static_cast<int>(bounds.role)] = true;
    if (static_cast<int>(slots.size()) < bounds.least) {
      return FieldError("operands",
                        Text(OpName(request.op), " needs an operand of role ", RoleName(bounds.role)));
    }
    if (static_cast<int>(slots.size()) > bounds.most) {
      return FieldError(
          OperandField(slots[bounds.most], "role"),
          Text(OpName(request.op), " takes ", bounds.most, " operand of role ", RoleName(bounds.role)));
    }
  }
  for (int role = 0; role < kRoles; ++role) {
    if (!known[role] && !found[role].empty()) {
      return FieldError(
          OperandField(found[role][0], "role"),
          Text(OpName(request.op), " has no operand of role ", RoleName(static_cast<Role>(role))));
    }
  }
  const auto one = [&found](Role role) {
    const auto& slots = found[static_cast<int>(role)];
    return slots.empty() ? -1 : slots[0];
  };
  Slots slots;
  slots.input = one(Role::kInput);
  slots.output = one(Role::kOutput);
  slots.a = one(Role::kA);
  slots.gathered_a = one(Role::kGatheredA);
  slots.scale_a = one(Role::kScaleA);
  slots.chunk_signals = one(Role::kChunkSignals);
  slots.norm_weight = one(Role::kNormWeight);
  slots.residual = one(Role::kResidual);
  slots.residual_output = one(Role::kResidualOutput);
  slots.quantized_output = one(Role::kQuantizedOutput);
  slots.static_scale = one(Role::kStaticScale);
  slots.scale_output = one(Role::kScaleOutput);
  slots.b = found[static_cast<int>(Role::kB)];
  slots.c = found[static_cast<int>(Role::kC)];
  slots.scale_b = found[static_cast<int>(Role::kScaleB)];
  slots.bias = found[static_cast<int>(Role::kBias)];
  slots.result_scale = found[static_cast<int>(Role::kResultScale)];
  return slots;
}

}  // namespace tandem::plan
