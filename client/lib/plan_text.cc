// The explanation of a plan as text.
#include <cstdio>

#include "common/op_tables.h"
#include "tandem/client.h"

namespace tandem {
namespace {

std::string Microseconds(double us) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f us", us);
  return text;
}

std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < std::size(kUnits); ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace

std::string Explain(const PlanInfo& info) try {
  std::string text = "plan " + std::to_string(info.plan_id) + " '" + info.key + "': " + info.summary + "\n";
  const auto line = [&text](const std::string& name, const std::string& value) {
    if (!value.empty()) text += "  " + name + ": " + value + "\n";
  };
  line("algorithm", std::string(AlgorithmName(info.algorithm)) + (info.fused ? "" : ", unfused"));
  line("reason", info.reason);
  for (const std::string& warning : info.warnings) line("warning", warning);
  if (info.predicted_us > 0) line("predicted", Microseconds(info.predicted_us));
  if (info.steps > 0)
    line("steps", std::to_string(info.steps) + " on " + std::to_string(info.lanes) + " lanes");
  line("placement", info.placement);
  line("scales", info.scale_mode);
  line("partial sums", info.wire_type + (info.reduction_order.empty() ? "" : ", " + info.reduction_order));
  line("numerics", std::to_string(info.roundings) + " roundings, " +
                       (info.deterministic ? "deterministic" : "not deterministic"));
  line("determinism", std::string(NameOf(info.determinism)));
  line("rounding", info.rounding);
  line("norm", info.norm);
  line("workspace",
       Bytes(info.workspace_bytes) + " a half; the group's plans share " + Bytes(info.group_workspace_bytes));
  line("moved", Bytes(info.bytes_moved) + " a launch");
  int64_t first = 0;
  for (const PlanInfo::RowRange& range : info.rows) {
    line("rows " + std::to_string(first) + " to " + std::to_string(range.last),
         std::string(AlgorithmName(range.algorithm)) + ", " + Microseconds(range.predicted_us) + ": " +
             range.reason);
    first = range.last + info.row_unit;
  }
  for (const PlanInfo::Refused& other : info.refused) {
    line("not " + std::string(AlgorithmName(other.algorithm)),
         other.reason + (other.predicted_us > 0 ? " (" + Microseconds(other.predicted_us) + ")" : ""));
  }
  return text;
} catch (...) {
  return {};
}

}  // namespace tandem
