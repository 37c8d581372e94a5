#include "tests/integration/driver/commands.h"

namespace tandem::driver {
namespace {

Result<Role> ParseRole(const std::string& name) {
  for (int i = 1; i <= 11; ++i) {
    if (RoleName(static_cast<Role>(i)) == name) return static_cast<Role>(i);
  }
  return InvalidArgument("unknown role " + name);
}

}  // namespace

Result<OpRequest> ParseRequest(const json& object) {
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
  request.steps = object.value("steps", 0);
  request.lanes = object.value("lanes", 0);
  request.low_contention = object.value("low_contention", false);
  request.reduce_op = object.value("reduce_op", "sum") == "avg" ? ReduceOp::kAvg : ReduceOp::kSum;
  request.wire = object.value("wire", "output") == "f32" ? WireType::kF32 : WireType::kOutput;
  std::string on_unfused = object.value("on_unfused", "allow");
  request.on_unfused = on_unfused == "error"  ? OnUnfused::kError
                       : on_unfused == "warn" ? OnUnfused::kWarn
                                              : OnUnfused::kAllow;
  return request;
}

}  // namespace tandem::driver
