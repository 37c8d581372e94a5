#include "tandem/op_request.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/op_tables.h"

namespace tandem {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 59;  // 2^62 bytes at 8 bytes each

// An operation in place along a dimension: the slot that is a part, and the one of which it is one.
struct Part {
  int part = -1, whole = -1;
};
Part PartOf(const OpRequest& request) {
  if (request.op != Op::kAllGather && request.op != Op::kReduceScatter) return {};
  const int slots = static_cast<int>(request.operands.size());
  for (int slot = 0; slot < slots; ++slot) {
    const Operand& operand = request.operands[static_cast<size_t>(slot)];
    if (operand.role != Role::kOutput || operand.alias_of < 0 || operand.alias_of >= slots ||
        operand.alias_of == slot)
      continue;
    return request.op == Op::kAllGather ? Part{operand.alias_of, slot} : Part{slot, operand.alias_of};
  }
  return {};
}

}  // namespace

std::string_view OpName(Op op) { return NameOf(op); }
std::string_view AlgorithmName(Algorithm algorithm) { return NameOf(algorithm); }
std::string_view RoleName(Role role) { return NameOf(role); }

Result<Op> ParseOp(std::string_view name) {
  if (const auto op = ValueOf<Op>(name)) return *op;
  return InvalidArgument("unknown operation '" + std::string(name) + "'");
}

Result<Algorithm> ParseAlgorithm(std::string_view name) {
  if (const auto algorithm = ValueOf<Algorithm>(name)) return *algorithm;
  return InvalidArgument("unknown algorithm '" + std::string(name) + "'");
}

Result<int64_t> ElementCount(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  bool zero = false;
  for (int64_t extent : shape) {
    if (extent < 0) return InvalidArgument("shape has a negative extent");
    if (extent == 0) zero = true;
    if (extent > 0 && count > kMaxElements / extent) return InvalidArgument("shape overflows");
    if (extent > 0) count *= extent;
  }
  return zero ? 0 : count;
}

std::vector<int64_t> ContiguousStrides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= shape[i];
  }
  return strides;
}

Result<int64_t> SpanBytes(const TensorSpec& spec) {
  if (!IsValid(spec.dtype)) return InvalidArgument("unknown dtype");
  TANDEM_ASSIGN_OR_RETURN(int64_t count, ElementCount(spec.shape));
  if (!spec.strides.empty() && spec.strides.size() != spec.shape.size()) {
    return InvalidArgument("strides and shape have different ranks");
  }
  if (count == 0) return int64_t{0};
  std::vector<int64_t> strides = spec.strides.empty() ? ContiguousStrides(spec.shape) : spec.strides;
  int64_t last = 0;
  for (size_t i = 0; i < spec.shape.size(); ++i) {
    if (strides[i] < 0) return InvalidArgument("negative strides are not supported");
    int64_t steps = spec.shape[i] - 1;
    if (steps > 0 && strides[i] > (kMaxElements - last) / steps) return InvalidArgument("strides overflow");
    last += steps * strides[i];
  }
  return (last + 1) * static_cast<int64_t>(DTypeBytes(spec.dtype));
}

OpRequest WithoutNorm(const OpRequest& request) {
  OpRequest sum = request;
  sum.operands.clear();
  sum.norm_epsilon = 0;
  std::vector<int> slot_of;  // by the old one; -1: left out
  for (Operand operand : request.operands) {
    const bool of_norm = IsOfNorm(operand.role);
    slot_of.push_back(of_norm ? -1 : static_cast<int>(sum.operands.size()));
    if (of_norm) continue;
    const bool has_slot = operand.alias_of >= 0 && operand.alias_of < static_cast<int>(slot_of.size());
    if (has_slot) operand.alias_of = slot_of[static_cast<size_t>(operand.alias_of)];
    sum.operands.push_back(std::move(operand));
  }
  return sum;
}

int PartSlot(const OpRequest& request) { return PartOf(request).part; }

std::vector<int64_t> StridesOf(const OpRequest& request, int slot) {
  const auto strides = [&request](int of) {
    const TensorSpec& spec = request.operands[static_cast<size_t>(of)].spec;
    return spec.strides.empty() ? ContiguousStrides(spec.shape) : spec.strides;
  };
  const Part pair = PartOf(request);
  const bool left_out = request.operands[static_cast<size_t>(slot)].spec.strides.empty();
  return strides(left_out && slot == pair.part ? pair.whole : slot);
}

Result<int64_t> BoundBytes(const OpRequest& request, int slot) {
  const auto holder = [&request](int of) {
    const int alias = request.operands[static_cast<size_t>(of)].alias_of;
    return alias >= 0 ? alias : of;
  };
  int64_t most = 0;
  for (int other = 0; other < static_cast<int>(request.operands.size()); ++other) {
    if (holder(other) != holder(slot)) continue;
    TANDEM_ASSIGN_OR_RETURN(const int64_t bytes,
                            SpanBytes(request.operands[static_cast<size_t>(other)].spec));
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace tandem
