#include "client/ranks/request_json.h"

#include <string>
#include <vector>

#include "common/op_tables.h"

namespace tandem {
namespace {

using nlohmann::json;

// The value that a key names; absent: `otherwise`.
template <typename Enum>
Result<Enum> Named(const json& object, const char* key, Enum otherwise) {
  const std::string name = object.value(key, std::string(NameOf(otherwise)));
  if (const auto value = ValueOf<Enum>(name)) return *value;
  return InvalidArgument("unknown " + std::string(key) + " " + name);
}

}  // namespace

Result<OpRequest> RequestFromJson(const json& object) {
  OpRequest request;
  TANDEM_ASSIGN_OR_RETURN(request.op, ParseOp(object.value("op", "")));
  TANDEM_ASSIGN_OR_RETURN(request.algorithm, ParseAlgorithm(object.value("algorithm", "auto")));
  for (const json& entry : object.value("operands", json::array())) {
    Operand operand;
    TANDEM_ASSIGN_OR_RETURN(operand.role, Named(entry, "role", Role{}));
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
  request.max_rows = object.value("max_rows", int64_t{0});
  request.steps = object.value("steps", 0);
  request.lanes = object.value("lanes", 0);
  request.fast_accumulation = object.value("fast_accumulation", true);
  request.low_contention = object.value("low_contention", false);
  TANDEM_ASSIGN_OR_RETURN(request.reduce_op, Named(object, "reduce_op", ReduceOp::kSum));
  TANDEM_ASSIGN_OR_RETURN(request.wire, Named(object, "wire", WireType::kOutput));
  request.restartable = object.value("restartable", false);
  request.autotune = object.value("autotune", false);
  TANDEM_ASSIGN_OR_RETURN(request.placement, Named(object, "placement", PlanPlacement::kAuto));
  TANDEM_ASSIGN_OR_RETURN(request.on_unfused, Named(object, "on_unfused", OnUnfused::kWarn));
  TANDEM_ASSIGN_OR_RETURN(request.determinism, Named(object, "determinism", Determinism::kOff));
  TANDEM_ASSIGN_OR_RETURN(request.rounding, Named(object, "rounding", Rounding::kOnce));
  return request;
}

json RequestToJson(const OpRequest& request) {
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
          {"max_rows", request.max_rows},
          {"steps", request.steps},
          {"lanes", request.lanes},
          {"fast_accumulation", request.fast_accumulation},
          {"low_contention", request.low_contention},
          {"restartable", request.restartable},
          {"reduce_op", NameOf(request.reduce_op)},
          {"wire", NameOf(request.wire)},
          {"autotune", request.autotune},
          {"placement", NameOf(request.placement)},
          {"determinism", NameOf(request.determinism)},
          {"rounding", NameOf(request.rounding)},
          {"on_unfused", NameOf(request.on_unfused)}};
}

}  // namespace tandem
