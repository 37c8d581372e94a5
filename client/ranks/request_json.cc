#include "client/ranks/request_json.h"

#include <string>
#include <vector>

namespace tandem {
namespace {

using nlohmann::json;

Result<Role> ParseRole(const std::string& name) {
  for (int i = 1; i <= static_cast<int>(Role::kResidualOutput); ++i) {
    if (RoleName(static_cast<Role>(i)) == name) return static_cast<Role>(i);
  }
  return InvalidArgument("unknown role " + name);
}

}  // namespace

Result<OpRequest> RequestFromJson(const json& object) {
  OpRequest request;
  TANDEM_ASSIGN_OR_RETURN(request.op, ParseOp(object.value("op", "")));
  TANDEM_ASSIGN_OR_RETURN(request.algorithm, ParseAlgorithm(object.value("algorithm", "auto")));
  for (const json& entry : object.value("operands", json::array())) {
    Operand operand;
    TANDEM_ASSIGN_OR_RETURN(operand.role, ParseRole(entry.value("role", "")));
    TANDEM_ASSIGN_OR_RETURN(operand.spec.dtype, ParseDType(entry.value("dtype", "f32")));
    operand.spec.shape = entry.value("shape", std::vector<int64_t>{});
    operand.spec.strides = entry.value("strides", std::vector<int64_t>{});
    operand.symmetric = entry.value("symmetric", false);
    operand.alias_of = entry.value("alias_of", -1);
    request.operands.push_back(operand);
  }
  for (const json& entry : object.value("transfers", json::array())) {
    request.transfers.push_back({entry.value("send", true), entry.value("peer", 0), entry.value("slot", 0)});
  }
  request.chunk_pivot = object.value("chunk_pivot", 0);
  request.dim = object.value("dim", 0);
  request.root = object.value("root", 0);
  request.norm_epsilon = object.value("norm_epsilon", 0.0f);
  request.steps = object.value("steps", 0);
  request.lanes = object.value("lanes", 0);
  request.fast_accumulation = object.value("fast_accumulation", true);
  request.low_contention = object.value("low_contention", false);
  request.reduce_op = object.value("reduce_op", "sum") == "avg" ? ReduceOp::kAvg : ReduceOp::kSum;
  request.wire = object.value("wire", "output") == "f32" ? WireType::kF32 : WireType::kOutput;
  request.restartable = object.value("restartable", false);
  request.autotune = object.value("autotune", false);
  const std::string placement = object.value("placement", "auto");
  request.placement = placement == "client"   ? PlanPlacement::kClient
                      : placement == "engine" ? PlanPlacement::kEngine
                                              : PlanPlacement::kAuto;
  std::string on_unfused = object.value("on_unfused", "warn");
  request.on_unfused = on_unfused == "error"   ? OnUnfused::kError
                       : on_unfused == "allow" ? OnUnfused::kAllow
                                               : OnUnfused::kWarn;
  return request;
}

json RequestToJson(const OpRequest& request) {
  static constexpr const char* kOnUnfused[] = {"allow", "warn", "error"};
  static constexpr const char* kPlacements[] = {"auto", "engine", "client"};
  json operands = json::array();
  for (const Operand& operand : request.operands) {
    operands.push_back({{"role", RoleName(operand.role)},
                        {"dtype", DTypeName(operand.spec.dtype)},
                        {"shape", operand.spec.shape},
                        {"strides", operand.spec.strides},
                        {"symmetric", operand.symmetric},
                        {"alias_of", operand.alias_of}});
  }
  json transfers = json::array();
  for (const Transfer& transfer : request.transfers) {
    transfers.push_back({{"send", transfer.send}, {"peer", transfer.peer}, {"slot", transfer.slot}});
  }
  return {{"op", OpName(request.op)},
          {"algorithm", AlgorithmName(request.algorithm)},
          {"operands", operands},
          {"transfers", transfers},
          {"chunk_pivot", request.chunk_pivot},
          {"dim", request.dim},
          {"root", request.root},
          {"norm_epsilon", request.norm_epsilon},
          {"steps", request.steps},
          {"lanes", request.lanes},
          {"fast_accumulation", request.fast_accumulation},
          {"low_contention", request.low_contention},
          {"restartable", request.restartable},
          {"reduce_op", request.reduce_op == ReduceOp::kAvg ? "avg" : "sum"},
          {"wire", request.wire == WireType::kF32 ? "f32" : "output"},
          {"autotune", request.autotune},
          {"placement", kPlacements[static_cast<size_t>(request.placement)]},
          {"on_unfused", kOnUnfused[static_cast<size_t>(request.on_unfused)]}};
}

}  // namespace tandem
