#include "client/lib/plan_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "common/op_tables.h"

namespace tandem::client {
namespace {

// A number, a truth value or a text. The library's destructors of objects and arrays allocate, and end the
// process where memory is out; those of scalars do not.
template <typename Value>
std::string Scalar(const Value& value) {
  using nlohmann::json;
  return json(value).dump(-1, ' ', false, json::error_handler_t::replace);
}

class Object {
 public:
  template <typename Value>
  Object& Add(const char* name, const Value& value) {
    return AddText(name, Scalar(value));
  }
  // `text`: JSON.
  Object& AddText(const char* name, const std::string& text) {
    text_ += text_.empty() ? "{" : ",";
    text_ += Scalar(name) + ":" + text;
    return *this;
  }
  std::string Text() const { return text_.empty() ? "{}" : text_ + "}"; }

 private:
  std::string text_;
};

// `text_of`: the JSON of an element.
template <typename Element, typename TextOf>
std::string Array(const std::vector<Element>& elements, const TextOf& text_of) {
  std::string text = "[";
  for (const Element& element : elements) text += (text.size() > 1 ? "," : "") + text_of(element);
  return text + "]";
}

std::string TextOf(const PlanInfo::Refused& other) {
  return Object()
      .Add("algorithm", AlgorithmName(other.algorithm))
      .Add("reason", other.reason)
      .Add("predicted_us", other.predicted_us)
      .Text();
}

std::string TextOf(const PlanInfo::RowRange& range) {
  return Object()
      .Add("last", range.last)
      .Add("algorithm", AlgorithmName(range.algorithm))
      .Add("reason", range.reason)
      .Add("predicted_us", range.predicted_us)
      .Text();
}

}  // namespace

std::string PlanJson(const PlanInfo& info) {
  const auto text_of = [](const auto& element) { return TextOf(element); };
  const auto scalar = [](const auto& element) { return Scalar(element); };
  return Object()
      .Add("plan_id", info.plan_id)
      .Add("key", info.key)
      .Add("op", OpName(info.op))
      .Add("algorithm", AlgorithmName(info.algorithm))
      .Add("reason", info.reason)
      .AddText("refused", Array(info.refused, text_of))
      .Add("fused", info.fused)
      .Add("steps", info.steps)
      .Add("lanes", info.lanes)
      .Add("summary", info.summary)
      .Add("scale_mode", info.scale_mode)
      .Add("wire_type", info.wire_type)
      .Add("reduction_order", info.reduction_order)
      .Add("placement", info.placement)
      .Add("placed", NameOf(info.placed))
      .Add("roundings", info.roundings)
      .Add("deterministic", info.deterministic)
      .Add("determinism", NameOf(info.determinism))
      .Add("rounding", info.rounding)
      .Add("norm", info.norm)
      .Add("workspace_bytes", info.workspace_bytes)
      .Add("bulk_bytes", info.bulk_bytes)
      .Add("bytes_moved", info.bytes_moved)
      .Add("gathered_a_bytes", info.gathered_a_bytes)
      .Add("group_workspace_bytes", info.group_workspace_bytes)
      .Add("unshared_workspace_bytes", info.unshared_workspace_bytes)
      .Add("predicted_us", info.predicted_us)
      .AddText("warnings", Array(info.warnings, scalar))
      .AddText("slot_bytes", Array(info.slot_bytes, scalar))
      .Add("max_rows", info.max_rows)
      .Add("row_unit", info.row_unit)
      .AddText("rows", Array(info.rows, text_of))
      .Text();
}

}  // namespace tandem::client
