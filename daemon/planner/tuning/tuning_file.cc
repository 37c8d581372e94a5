#include "daemon/planner/tuning/tuning_file.h"

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <optional>
#include <utility>

#include "common/replace_file.h"
#include "common/toml/toml_parse.h"
#include "common/toml/toml_text.h"

namespace tandem::daemon {
namespace {

using plan::TuningCandidate;
using plan::TuningEntry;
using plan::TuningTable;

std::string Microseconds(double us) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.3f", us);
  return text;
}

std::string CandidateText(const TuningCandidate& candidate) {
  std::string text = "  { algorithm = " + QuoteToml(AlgorithmName(candidate.algorithm));
  if (candidate.steps != 0) text += ", steps = " + std::to_string(candidate.steps);
  if (candidate.lanes != 0) text += ", lanes = " + std::to_string(candidate.lanes);
  if (candidate.samples == 0) return text + ", refused = " + QuoteToml(candidate.refused) + " },\n";
  return text + ", median_us = " + Microseconds(candidate.median_us) +
         ", p10_us = " + Microseconds(candidate.p10_us) + ", p90_us = " + Microseconds(candidate.p90_us) +
         ", samples = " + std::to_string(candidate.samples) + " },\n";
}

// One table of the file: what is asked for by name is ticked off, so that what is left over is unknown.
class Fields {
 public:
  Fields(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  template <typename T>
  Status Read(std::string_view name, T* value, bool required = true) {
    ++known_;
    const toml::node* node = table_.get(name);
    if (node == nullptr) {
      --known_;
      return required ? BadField(std::string(name) + " is missing") : Status::Ok();
    }
    if constexpr (std::is_same_v<T, double>) {
      const std::optional<double> number = node->value<double>();  // whole numbers too
      if (!number || !(node->is_floating_point() || node->is_integer()))
        return BadField(std::string(name) + " is no number");
      *value = *number;
    } else if constexpr (std::is_same_v<T, int>) {
      const std::optional<int64_t> number = node->value_exact<int64_t>();
      if (!number || *number < 0 || *number > 1 << 30)
        return BadField(std::string(name) + " is no integer in its range");
      *value = static_cast<int>(*number);
    } else {
      const std::optional<std::string> text = node->value_exact<std::string>();
      if (!text) return BadField(std::string(name) + " is no string");
      *value = *text;
    }
    return Status::Ok();
  }
  Result<const toml::array*> Array(std::string_view name) {
    ++known_;
    const toml::node* node = table_.get(name);
    if (node == nullptr || node->as_array() == nullptr) return BadField(std::string(name) + " is no array");
    return node->as_array();
  }
  // All that the table has was asked for.
  Status End() const { return known_ == table_.size() ? Status::Ok() : BadField("a key that is not known"); }
  Status BadField(const std::string& what) const { return InvalidArgument(where_ + ": " + what); }

 private:
  const toml::table& table_;
  std::string where_;
  size_t known_ = 0;
};

Result<TuningCandidate> ReadCandidate(const toml::node& node, const std::string& where) {
  if (node.as_table() == nullptr) return InvalidArgument(where + ": a candidate is no table");
  Fields fields(*node.as_table(), where);
  TuningCandidate candidate;
  std::string algorithm;
  TANDEM_RETURN_IF_ERROR(fields.Read("algorithm", &algorithm));
  Result<Algorithm> parsed = ParseAlgorithm(algorithm);
  if (!parsed.ok()) return fields.BadField(parsed.status().message());
  candidate.algorithm = *parsed;
  TANDEM_RETURN_IF_ERROR(fields.Read("steps", &candidate.steps, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("lanes", &candidate.lanes, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("refused", &candidate.refused, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("samples", &candidate.samples, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("median_us", &candidate.median_us, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("p10_us", &candidate.p10_us, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("p90_us", &candidate.p90_us, false));
  TANDEM_RETURN_IF_ERROR(fields.End());
  return candidate;
}

Result<TuningEntry> ReadEntry(const toml::table& table, const std::string& where) {
  Fields fields(table, where);
  TuningEntry entry;
  std::string op;
  TANDEM_RETURN_IF_ERROR(fields.Read("gpu", &entry.key.gpu));
  TANDEM_RETURN_IF_ERROR(fields.Read("topology_class", &entry.key.topology_class));
  TANDEM_RETURN_IF_ERROR(fields.Read("world_size", &entry.key.world_size));
  TANDEM_RETURN_IF_ERROR(fields.Read("op", &op));
  Result<Op> parsed = ParseOp(op);
  if (!parsed.ok()) return fields.BadField(parsed.status().message());
  entry.key.op = *parsed;
  TANDEM_RETURN_IF_ERROR(fields.Read("types", &entry.key.types));
  TANDEM_RETURN_IF_ERROR(fields.Read("scales", &entry.key.scales, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("traits", &entry.key.traits, false));
  TANDEM_RETURN_IF_ERROR(fields.Read("measured_at", &entry.measured_at));
  TANDEM_RETURN_IF_ERROR(fields.Read("tandem", &entry.version));
  TANDEM_ASSIGN_OR_RETURN(const toml::array* shape, fields.Array("shape"));
  for (const toml::node& extent : *shape) {
    const std::optional<int64_t> value = extent.value_exact<int64_t>();
    if (!value) return fields.BadField("shape has an extent that is no integer");
    entry.shape.push_back(*value);
  }
  TANDEM_ASSIGN_OR_RETURN(const toml::array* candidates, fields.Array("candidates"));
  if (candidates->size() > plan::kMaxTuningCandidates) return fields.BadField("too many candidates");
  for (const toml::node& node : *candidates) {
    TANDEM_ASSIGN_OR_RETURN(TuningCandidate candidate, ReadCandidate(node, where));
    entry.candidates.push_back(std::move(candidate));
  }
  TANDEM_RETURN_IF_ERROR(fields.End());
  TANDEM_RETURN_IF_ERROR(plan::CheckTuningEntry(&entry).WithContext(where));
  return entry;
}

}  // namespace

std::string WriteTuning(const TuningTable& table) {
  std::string text =
      "# Measured times of algorithms: docs/algorithms.md. Written by tandemd; `tandemctl tuning` shows it.\n"
      "format = " +
      std::to_string(kTuningFormat) + "\n";
  for (const TuningEntry* entry : table.Entries()) {
    const plan::TuningKey& key = entry->key;
    text += "\n[[entry]]\ngpu = " + QuoteToml(key.gpu) +
            "\ntopology_class = " + QuoteToml(key.topology_class) +
            "\nworld_size = " + std::to_string(key.world_size) + "\nop = " + QuoteToml(OpName(key.op)) +
            "\ntypes = " + QuoteToml(key.types) + "\n";
    if (!key.scales.empty()) text += "scales = " + QuoteToml(key.scales) + "\n";
    if (!key.traits.empty()) text += "traits = " + QuoteToml(key.traits) + "\n";
    text += "shape = [";
    for (size_t i = 0; i < entry->shape.size(); ++i)
      text += (i == 0 ? "" : ", ") + std::to_string(entry->shape[i]);
    text += "]\nmeasured_at = " + QuoteToml(entry->measured_at) + "\ntandem = " + QuoteToml(entry->version) +
            "\ncandidates = [\n";
    for (const TuningCandidate& candidate : entry->candidates) text += CandidateText(candidate);
    text += "]\n";
  }
  return text;
}

Result<TuningTable> ParseTuning(std::string_view text, const std::string& file) {
  if (text.size() > kMaxTuningFile) return InvalidArgument(file + ": larger than 1 MiB");
  TANDEM_ASSIGN_OR_RETURN(const toml::table root, ParseToml(text, file));
  Fields fields(root, file);
  int format = 0;
  TANDEM_RETURN_IF_ERROR(fields.Read("format", &format));
  if (format != kTuningFormat) {
    return fields.BadField("format " + std::to_string(format) + "; this tandemd reads format " +
                           std::to_string(kTuningFormat));
  }
  TuningTable table;
  if (root.contains("entry")) {
    TANDEM_ASSIGN_OR_RETURN(const toml::array* entries, fields.Array("entry"));
    for (size_t i = 0; i < entries->size(); ++i) {
      const toml::table* node = entries->get(i)->as_table();
      const std::string where = file + ": entry " + std::to_string(i + 1);
      if (node == nullptr) return InvalidArgument(where + ": no table");
      TANDEM_ASSIGN_OR_RETURN(TuningEntry entry, ReadEntry(*node, where));
      entry.source = file;
      const size_t before = table.size();
      table.Put(std::move(entry));
      if (table.size() == before) return InvalidArgument(where + ": the same as an earlier one");
    }
  }
  TANDEM_RETURN_IF_ERROR(fields.End());
  return table;
}

Result<TuningTable> LoadTuning(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParseTuning(text, path);
}

Status SaveTuning(const std::string& path, const TuningTable& table, size_t most) {
  const std::string text = WriteTuning(table);
  if (text.size() > most) {
    return Status(Code::kResourceExhausted,
                  path + " would be larger than " + std::to_string(most >> 10) +
                      " KiB: forget what is not needed (tandemctl tuning forget)",
                  {.reason = "TUNING_FULL",
                   .who = {},
                   .field = {},
                   .limit = static_cast<int64_t>(most),
                   .usage = static_cast<int64_t>(text.size())});
  }
  return ReplaceFile(path, text);
}

}  // namespace tandem::daemon
