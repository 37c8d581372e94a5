#include "client/tandemctl/explain.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "client/tandemctl/names.h"
#include "client/tandemctl/table.h"
#include "client/tandemctl/views.h"
#include "common/op_tables.h"
#include "common/row_requests.h"
#include "daemon/planner/cost/cost_model.h"
#include "daemon/topology/topology_file.h"
#include "program/verifier/verifier.h"

namespace tandem::ctl {
namespace {

using Shape = std::vector<int64_t>;

Operand MakeOperand(Role role, DType dtype, Shape shape, bool symmetric) {
  Operand operand;
  operand.role = role;
  operand.spec.dtype = dtype;
  operand.spec.shape = std::move(shape);
  operand.symmetric = symmetric;
  return operand;
}

Result<Shape> Divided(Shape shape, int dim, int world, const std::string& what) {
  if (shape[dim] % world != 0) {
    return InvalidArgument(what + ": extent " + std::to_string(shape[dim]) +
                           " is not divisible by the world size");
  }
  shape[dim] /= world;
  return shape;
}

// Each rank has its own A's scales, in the layout of cuBLASLt, PyTorch and DeepGEMM.
Status AddScales(const std::string& scales, DType dtype, const Shape& a, const Shape& b, OpRequest& request) {
  if (!IsFloat8(dtype))
    return scales.empty() ? Status::Ok() : InvalidArgument("--scales is for products of fp8");
  Shape of_a = {1}, of_b = {1};
  Shape strides_a, strides_b;
  if (scales == "row_wise") {
    of_a = a;
    of_a.back() = 1;
    of_b = {1, b[1]};
  } else if (scales == "block_wise") {
    const auto blocks = [](int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; };
    constexpr int64_t kPitchMultiple = 4;  // cuBLASLt's, of B's
    of_a = a;
    of_a.back() = blocks(a.back());
    of_b = {blocks(b[0]), blocks(b[1])};
    if (a.size() == 2) strides_a = {1, a[0]};
    strides_b = {1, (of_b[0] + kPitchMultiple - 1) / kPitchMultiple * kPitchMultiple};
  } else if (!scales.empty() && scales != "tensor_wise") {
    return InvalidArgument("--scales must be one of " + Listed(ScaleNames()));
  }
  request.operands.push_back(MakeOperand(Role::kScaleA, DType::kF32, of_a, false));
  request.operands.back().spec.strides = strides_a;
  request.operands.push_back(MakeOperand(Role::kScaleB, DType::kF32, of_b, false));
  request.operands.back().spec.strides = strides_b;
  return Status::Ok();
}

// The operands of an operation with a matmul: A, B, C, scales and chunk signals.
Status AddMatmul(const ExplainOptions& options, const Shape& a, DType dtype, OpRequest& request) {
  if (options.b_shape.empty())
    return InvalidArgument(options.op + " needs --b, the shape of B, as in 8192x3584");
  TANDEM_ASSIGN_OR_RETURN(Shape b, ParseShape(options.b_shape));
  // Gathered along its last dimension, A has parts of K.
  const bool gathers = request.op == Op::kAllGatherMatmul;
  const bool along_k = gathers && request.dim == static_cast<int>(a.size()) - 1;
  const int64_t k = a.empty() ? 0 : a.back() * (along_k ? options.world : 1);
  if (b.size() != 2 || a.size() < 2 || k != b[0]) {
    return InvalidArgument("B must be KxN where K is " + std::to_string(k) + ", from A's last extent");
  }
  Shape c = a;
  c.back() = b[1];
  if (gathers && !along_k) c[static_cast<size_t>(request.dim)] *= options.world;
  if (request.op == Op::kMatmulReduceScatter) {
    TANDEM_ASSIGN_OR_RETURN(c, Divided(c, request.dim, options.world, "C"));
  }
  DType out = IsFloat8(dtype) ? DType::kBf16 : dtype;
  request.operands.push_back(MakeOperand(Role::kA, dtype, a, options.symmetric));
  request.operands.push_back(MakeOperand(Role::kB, dtype, b, false));
  if (!options.b_rows) request.operands.back().spec.strides = {1, b[0]};
  request.operands.push_back(MakeOperand(Role::kC, out, c, options.symmetric));
  TANDEM_RETURN_IF_ERROR(AddScales(options.scales, dtype, a, b, request));
  if (request.op == Op::kAsyncInputMatmul) {
    request.operands.push_back(MakeOperand(Role::kChunkSignals, DType::kI32, {options.world}, false));
  }
  return Status::Ok();
}

// A residual and a norm behind the sum, where a rounding was asked for.
Status AddNorm(const std::string& rounding, OpRequest& request) {
  if (rounding.empty()) return Status::Ok();
  const auto found = ValueOf<Rounding>(rounding);
  if (!found) return InvalidArgument("--rounding is one of " + ListedNames<Rounding>() + ", not " + rounding);
  request.rounding = *found;
  const auto sum = std::find_if(request.operands.begin(), request.operands.end(),
                                [](const Operand& each) { return IsOutput(each.role); });
  if (sum == request.operands.end() || sum->spec.shape.empty())
    return InvalidArgument("--rounding is for sums: " + std::string(OpName(request.op)) + " has no norm");
  const TensorSpec spec = sum->spec;
  request.operands.push_back(MakeOperand(Role::kNormWeight, spec.dtype, {spec.shape.back()}, false));
  request.operands.push_back(MakeOperand(Role::kResidual, spec.dtype, spec.shape, false));
  request.operands.push_back(MakeOperand(Role::kResidualOutput, spec.dtype, spec.shape, false));
  return Status::Ok();
}

Result<OpRequest> MakeRequest(const ExplainOptions& options, int rank) {
  OpRequest request;
  TANDEM_ASSIGN_OR_RETURN(request.op, ReadOp(options.op));
  TANDEM_ASSIGN_OR_RETURN(request.algorithm, ReadAlgorithm(options.algorithm));
  TANDEM_ASSIGN_OR_RETURN(DType dtype, ReadDType(options.dtype));
  Shape shape = {1};
  if (request.op != Op::kBarrier && request.op != Op::kEmpty) {
    if (options.shape.empty()) {
      return InvalidArgument(options.op + " needs --shape, one rank's input, as in --shape 4096x8192");
    }
    TANDEM_ASSIGN_OR_RETURN(shape, ParseShape(options.shape));
  }
  int rank_of_shape = static_cast<int>(shape.size());
  int dim = options.dim < 0 ? options.dim + rank_of_shape : options.dim;
  if (dim < 0 || dim >= rank_of_shape) return OutOfRange("--dim must name one of the shape's dimensions");
  request.dim = dim;
  request.root = options.root;
  request.steps = options.steps;
  request.lanes = options.lanes;
  request.wire = options.exact ? WireType::kF32 : WireType::kOutput;
  request.fast_accumulation = !options.slow_accumulation;
  auto add = [&](Role role, const Shape& of) {
    request.operands.push_back(MakeOperand(role, dtype, of, options.symmetric));
  };
  switch (request.op) {
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kReduce:
    case Op::kAllToAll:
      add(Role::kInput, shape);
      add(Role::kOutput, shape);
      break;
    case Op::kAllGather: {
      add(Role::kInput, shape);
      Shape out = shape;
      out[dim] *= options.world;
      add(Role::kOutput, out);
      break;
    }
    case Op::kReduceScatter: {
      TANDEM_ASSIGN_OR_RETURN(Shape out, Divided(shape, dim, options.world, "the input"));
      add(Role::kInput, shape);
      add(Role::kOutput, out);
      break;
    }
    case Op::kAllGatherMatmul:
    case Op::kMatmulReduceScatter:
    case Op::kMatmulAllReduce:
    case Op::kAsyncInputMatmul: TANDEM_RETURN_IF_ERROR(AddMatmul(options, shape, dtype, request)); break;
    case Op::kSendReceive: {  // each rank to the next one, round the ring
      add(Role::kInput, shape);
      add(Role::kOutput, shape);
      request.transfers.push_back({true, (rank + 1) % options.world, 0});
      request.transfers.push_back({false, (rank + options.world - 1) % options.world, 1});
      break;
    }
    case Op::kBarrier:
    case Op::kEmpty: break;
  }
  const auto determinism = ValueOf<Determinism>(options.determinism);
  if (!determinism)
    return InvalidArgument("--determinism is one of " + ListedNames<Determinism>() + ", not " +
                           options.determinism);
  request.determinism = *determinism;
  TANDEM_RETURN_IF_ERROR(AddNorm(options.rounding, request));
  request.max_rows = options.max_rows;
  return AtBound(request, options.world);
}

// A family's algorithms by rows.
std::string RowsText(const plan::RowTable& rows) {
  Table table({">rows", "algorithm", ">predicted at the end", "why"});
  int64_t first = 0;
  for (const plan::RowRange& range : rows.ranges) {
    const std::string numbers =
        std::to_string(first) + (first == range.last ? "" : " - " + std::to_string(range.last));
    table.Add(
        {numbers, std::string(AlgorithmName(range.algorithm)), Micros(range.predicted_us), range.reason});
    first = range.last + rows.unit;
  }
  return table.Text();
}

nlohmann::ordered_json RowsJson(const plan::RowTable& rows) {
  nlohmann::ordered_json json{
      {"max_rows", rows.max_rows}, {"unit", rows.unit}, {"ranges", nlohmann::ordered_json::array()}};
  for (const plan::RowRange& range : rows.ranges) {
    json["ranges"].push_back({{"last", range.last},
                              {"algorithm", std::string(AlgorithmName(range.algorithm))},
                              {"collective", std::string(AlgorithmName(range.collective))},
                              {"reason", range.reason},
                              {"predicted_us", range.predicted_us}});
  }
  return json;
}

}  // namespace

Result<Shape> ParseShape(const std::string& text) {
  Shape shape;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t extent = 0;
    auto [next, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 0)
      return InvalidArgument("'" + text + "' is no shape such as 4096x8192");
    shape.push_back(extent);
    if (next == end) break;
    if (*next != 'x' && *next != ',') return InvalidArgument("'" + text + "' is no shape such as 4096x8192");
    at = next + 1;
  }
  TANDEM_RETURN_IF_ERROR(ElementCount(shape).status());
  return shape;
}

Result<std::vector<OpRequest>> MakeRequests(const ExplainOptions& options) {
  if (options.world < 1 || options.world > plan::kMaxWorldSize) {
    return OutOfRange("--world must be 1 to " + std::to_string(plan::kMaxWorldSize));
  }
  std::vector<OpRequest> requests;
  for (int rank = 0; rank < options.world; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(OpRequest request, MakeRequest(options, rank));
    requests.push_back(std::move(request));
  }
  return requests;
}

Result<Explanation> Explain(const ExplainOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<OpRequest> requests, MakeRequests(options));
  plan::GroupContext group;
  TANDEM_ASSIGN_OR_RETURN(group.placement, plan::ParsePlacement(options.placement));
  if (options.topology_file.empty()) {
    group.topology = EmulatedTopology(options.world);
  } else {
    TANDEM_ASSIGN_OR_RETURN(Topology node, LoadTopology(options.topology_file));
    if (node.size() < options.world) {
      return InvalidArgument("the topology has " + std::to_string(node.size()) + " GPUs, fewer than --world");
    }
    std::vector<int> members(options.world);
    std::iota(members.begin(), members.end(), 0);
    group.topology = Subset(node, members);
  }
  Explanation explanation;
  explanation.topology_class = std::string(TopologyClassName(Classify(group.topology)));
  explanation.prediction_model = plan::PredictionModel(group.topology, options.topology_file.empty());
  TANDEM_ASSIGN_OR_RETURN(explanation.plan, plan::MakePlan(requests, group));
  TANDEM_ASSIGN_OR_RETURN(plan::VerifyContext context, plan::ContextOf(requests));
  TANDEM_RETURN_IF_ERROR(plan::VerifyPrograms(explanation.plan.programs, context).WithContext("verifier"));
  return explanation;
}

std::string ExplanationText(const Explanation& explanation, const ExplainOptions& options) {
  const plan::OperationPlan& plan = explanation.plan;
  std::string text = plan.summary + "\n";
  auto line = [&](const std::string& name, const std::string& value) {
    if (!value.empty())
      text += "  " + name + std::string(name.size() < 14 ? 14 - name.size() : 1, ' ') + value + "\n";
  };
  line("group", std::to_string(options.world) + " ranks, " + explanation.topology_class);
  line("algorithm", std::string(AlgorithmName(plan.algorithm)) + (plan.fused ? "" : " (not fused)"));
  line("why", plan.reason);
  line("placement", std::string(tandem::plan::PlacementName(plan.placement)) + ": " + plan.placement_reason);
  if (plan.steps != 0) line("steps x lanes", std::to_string(plan.steps) + " x " + std::to_string(plan.lanes));
  line("scales", plan.scale_mode);
  line("wire type", plan.wire_type);
  line("reduction", plan.reduction_order);
  if (plan.roundings != 0) line("roundings", std::to_string(plan.roundings));
  line("deterministic", plan.deterministic ? "yes" : "no");
  line("determinism", std::string(NameOf(plan.determinism)));
  line("rounding", plan.rounding);
  line("norm", plan.norm);
  line("workspace", Bytes(plan.workspace_bytes) + " a half" +
                        (plan.bulk_bytes != 0 ? ", " + Bytes(plan.bulk_bytes) + " bulk" : ""));
  line("moved", Bytes(plan.bytes_moved) + " a rank");
  line("predicted", PredictedText(plan.predicted_us, explanation.prediction_model));
  for (const std::string& warning : plan.warnings) line("warning", warning);
  const bool ordered = plan.determinism == Determinism::kBatch && !plan.reduction_order.empty();
  line("verified",
       std::string("no deadlock, no race, in bounds, closed") + (ordered ? ", sums in one order" : ""));
  if (plan.rows.max_rows > 0) text += "\n" + RowsText(plan.rows);
  if (!plan.refused.empty()) {
    Table table({"not chosen", ">predicted", "why not"});
    for (const auto& refused : plan.refused) {
      table.Add(
          {std::string(AlgorithmName(refused.algorithm)), Micros(refused.predicted_us), refused.reason});
    }
    text += "\n" + table.Text();
  }
  for (const auto& program : plan.programs) {
    if (options.program != -2 && options.program != program.rank) continue;
    text += "\nprogram of rank " + std::to_string(program.rank) + "\n" + plan::ListProgram(program);
  }
  return text;
}

std::string ExplanationJson(const Explanation& explanation, const ExplainOptions& options) {
  const plan::OperationPlan& plan = explanation.plan;
  nlohmann::ordered_json json{{"op", std::string(OpName(plan.op))},
                              {"summary", plan.summary},
                              {"world_size", options.world},
                              {"topology_class", explanation.topology_class},
                              {"algorithm", std::string(AlgorithmName(plan.algorithm))},
                              {"reason", plan.reason},
                              {"placement", std::string(tandem::plan::PlacementName(plan.placement))},
                              {"placement_reason", plan.placement_reason},
                              {"fused", plan.fused},
                              {"steps", plan.steps},
                              {"lanes", plan.lanes},
                              {"scale_mode", plan.scale_mode},
                              {"wire_type", plan.wire_type},
                              {"reduction_order", plan.reduction_order},
                              {"roundings", plan.roundings},
                              {"deterministic", plan.deterministic},
                              {"determinism", std::string(NameOf(plan.determinism))},
                              {"rounding", plan.rounding},
                              {"norm", plan.norm},
                              {"workspace_bytes", plan.workspace_bytes},
                              {"bulk_bytes", plan.bulk_bytes},
                              {"bytes_moved", plan.bytes_moved},
                              {"gathered_a_bytes", plan.gathered_a_bytes},
                              {"predicted_us", plan.predicted_us},
                              {"prediction_model", explanation.prediction_model},
                              {"warnings", plan.warnings},
                              {"verified", true},
                              {"refused", nlohmann::ordered_json::array()}};
  for (const auto& refused : plan.refused) {
    json["refused"].push_back({{"algorithm", std::string(AlgorithmName(refused.algorithm))},
                               {"reason", refused.reason},
                               {"predicted_us", refused.predicted_us}});
  }
  if (plan.rows.max_rows > 0) json["rows"] = RowsJson(plan.rows);
  if (options.program != -1) {
    json["programs"] = nlohmann::ordered_json::array();
    for (const auto& program : plan.programs) {
      if (options.program != -2 && options.program != program.rank) continue;
      json["programs"].push_back({{"rank", program.rank}, {"listing", plan::ListProgram(program)}});
    }
  }
  return json.dump(2) + "\n";
}

}  // namespace tandem::ctl
