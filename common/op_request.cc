#include "tandem/op_request.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace tandem {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 59;  // 2^62 bytes at 8 bytes each

constexpr std::array<std::pair<Op, std::string_view>, 13> kOps = {{
    {Op::kAllReduce, "all_reduce"},
    {Op::kAllGather, "all_gather"},
    {Op::kReduceScatter, "reduce_scatter"},
    {Op::kAllGatherMatmul, "all_gather_matmul"},
    {Op::kMatmulReduceScatter, "matmul_reduce_scatter"},
    {Op::kMatmulAllReduce, "matmul_all_reduce"},
    {Op::kBroadcast, "broadcast"},
    {Op::kReduce, "reduce"},
    {Op::kAllToAll, "all_to_all"},
    {Op::kSendReceive, "send_receive"},
    {Op::kBarrier, "barrier"},
    {Op::kAsyncInputMatmul, "async_input_matmul"},
    {Op::kEmpty, "empty"},
}};

constexpr std::array<std::pair<Algorithm, std::string_view>, 14> kAlgorithms = {{
    {Algorithm::kAuto, "auto"},
    {Algorithm::kOneShot, "one_shot"},
    {Algorithm::kTwoShot, "two_shot"},
    {Algorithm::kHybridCubeMesh, "hybrid_cube_mesh"},
    {Algorithm::kLowLatency, "low_latency"},
    {Algorithm::kNccl, "nccl"},
    {Algorithm::kCopyEngine, "copy_engine"},
    {Algorithm::kSm, "sm"},
    {Algorithm::kUnfused, "unfused"},
    {Algorithm::kPipeline, "pipeline"},
    {Algorithm::kRing, "ring"},
    {Algorithm::kTiledTwoShot, "tiled_two_shot"},
    {Algorithm::kFused, "fused"},
    {Algorithm::kDirect, "direct"},
}};

constexpr std::array<std::pair<Role, std::string_view>, 14> kRoles = {{
    {Role::kInput, "input"},
    {Role::kOutput, "output"},
    {Role::kA, "a"},
    {Role::kB, "b"},
    {Role::kC, "c"},
    {Role::kGatheredA, "gathered_a"},
    {Role::kScaleA, "scale_a"},
    {Role::kScaleB, "scale_b"},
    {Role::kBias, "bias"},
    {Role::kResultScale, "result_scale"},
    {Role::kChunkSignals, "chunk_signals"},
    {Role::kNormWeight, "norm_weight"},
    {Role::kResidual, "residual"},
    {Role::kResidualOutput, "residual_output"},
}};

template <typename Table, typename Key>
std::string_view Name(const Table& table, Key key) {
  for (const auto& [value, name] : table) {
    if (value == key) return name;
  }
  return "unknown";
}

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

std::string_view OpName(Op op) { return Name(kOps, op); }
std::string_view AlgorithmName(Algorithm algorithm) { return Name(kAlgorithms, algorithm); }
std::string_view RoleName(Role role) { return Name(kRoles, role); }

Result<Op> ParseOp(std::string_view name) {
  for (const auto& [op, op_name] : kOps) {
    if (op_name == name) return op;
  }
  return InvalidArgument("unknown operation '" + std::string(name) + "'");
}

Result<Algorithm> ParseAlgorithm(std::string_view name) {
  if (name == "fused") return Algorithm::kFused;  // the name before 0.2
  for (const auto& [algorithm, algorithm_name] : kAlgorithms) {
    if (algorithm_name == name) return algorithm;
  }
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
    const bool of_norm = operand.role == Role::kNormWeight || operand.role == Role::kResidual ||
                         operand.role == Role::kResidualOutput;
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
