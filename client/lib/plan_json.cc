#include "client/lib/plan_json.h"

#include <nlohmann/json.hpp>

#include "common/op_tables.h"

namespace tandem::client {

std::string PlanJson(const PlanInfo& info) {
  using nlohmann::json;
  json refused = json::array();
  for (const PlanInfo::Refused& other : info.refused) {
    refused.push_back({{"algorithm", AlgorithmName(other.algorithm)},
                       {"reason", other.reason},
                       {"predicted_us", other.predicted_us}});
  }
  json rows = json::array();
  for (const PlanInfo::RowRange& range : info.rows) {
    rows.push_back({{"last", range.last},
                    {"algorithm", AlgorithmName(range.algorithm)},
                    {"reason", range.reason},
                    {"predicted_us", range.predicted_us}});
  }
  json object = {{"plan_id", info.plan_id},
                 {"key", info.key},
                 {"op", OpName(info.op)},
                 {"algorithm", AlgorithmName(info.algorithm)},
                 {"reason", info.reason},
                 {"refused", std::move(refused)},
                 {"fused", info.fused},
                 {"steps", info.steps},
                 {"lanes", info.lanes},
                 {"summary", info.summary},
                 {"scale_mode", info.scale_mode},
                 {"wire_type", info.wire_type},
                 {"reduction_order", info.reduction_order},
                 {"placement", info.placement},
                 {"placed", NameOf(info.placed)},
                 {"roundings", info.roundings},
                 {"deterministic", info.deterministic},
                 {"determinism", NameOf(info.determinism)},
                 {"rounding", info.rounding},
                 {"norm", info.norm},
                 {"workspace_bytes", info.workspace_bytes},
                 {"bulk_bytes", info.bulk_bytes},
                 {"bytes_moved", info.bytes_moved},
                 {"gathered_a_bytes", info.gathered_a_bytes},
                 {"group_workspace_bytes", info.group_workspace_bytes},
                 {"unshared_workspace_bytes", info.unshared_workspace_bytes},
                 {"predicted_us", info.predicted_us},
                 {"warnings", info.warnings},
                 {"slot_bytes", info.slot_bytes},
                 {"max_rows", info.max_rows},
                 {"row_unit", info.row_unit},
                 {"rows", std::move(rows)}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace tandem::client
