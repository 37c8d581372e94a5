#include "daemon/config/allow_rules.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "common/toml/toml_text.h"
#include "daemon/config/config_keys.h"

namespace tandem::config {
namespace {

Status BadRule(std::string_view file, const toml::node& node, const std::string& text) {
  return InvalidArgument(std::string(file) + ":" + std::to_string(node.source().begin.line) + ": " + text);
}

Result<int64_t> ParseId(std::string_view name, const toml::node& node, std::string_view file) {
  const auto* number = node.as_integer();
  if (number == nullptr || number->get() < 0 || number->get() > std::numeric_limits<uint32_t>::max())
    return BadRule(file, node, "allow." + std::string(name) + " must be a number from 0 to 4294967295");
  return number->get();
}

Result<std::vector<std::string>> ParseGpus(const toml::node& node, std::string_view file) {
  const Status wrong =
      BadRule(file, node, "allow.gpus must be a list of indexes and UUIDs, for example [0, 1]");
  const toml::array* list = node.as_array();
  if (list == nullptr) return wrong;
  std::vector<std::string> gpus;
  for (const toml::node& gpu : *list) {
    if (const auto* index = gpu.as_integer(); index != nullptr && index->get() >= 0) {
      gpus.push_back(std::to_string(index->get()));
    } else if (const auto* uuid = gpu.as_string(); uuid != nullptr && !uuid->get().empty()) {
      gpus.push_back(uuid->get());
    } else {
      return wrong;
    }
  }
  return gpus;
}

constexpr std::string_view kTable = "quotas.";
constexpr std::string_view kOfNode = "sessions";

Result<std::map<std::string, int64_t>> ParseQuotas(const toml::node& node, std::string_view file) {
  const toml::table* table = node.as_table();
  if (table == nullptr)
    return BadRule(file, node, "allow.quotas must be a table of quotas, for example { plans = 100 }");
  std::map<std::string, int64_t> quotas;
  for (const auto& [key, value] : *table) {
    const std::string name(key.str());
    const KeySpec* spec = FindKey(std::string(kTable) + name);
    if (spec == nullptr || name == kOfNode) {
      std::string names;
      for (const KeySpec& each : Keys()) {
        if (!each.name.starts_with(kTable) || each.name.substr(kTable.size()) == kOfNode) continue;
        names += (names.empty() ? "" : ", ") + std::string(each.name.substr(kTable.size()));
      }
      return BadRule(file, value, "unknown key 'allow.quotas." + name + "'; there are " + names);
    }
    KeyValue given;
    if (const auto* number = value.as_integer()) {
      given = number->get();
    } else if (const auto* text = value.as_string()) {
      given = text->get();
    } else {
      return BadRule(file, value, "allow.quotas." + name + " must be a number");
    }
    Config config;
    if (const Status set = SetKey(*spec, given, config); !set.ok())
      return Status(set.code(), BadRule(file, value, "allow." + set.message()).message());
    quotas[name] = *std::get<int64_t*>(spec->field(config));
  }
  return quotas;
}

Result<AllowConfig> ParseRule(const toml::table& table, std::string_view file) {
  AllowConfig rule;
  for (const auto& [key, node] : table) {
    const std::string_view name = key.str();
    if (name == "uid") {
      TANDEM_ASSIGN_OR_RETURN(rule.uid, ParseId(name, node, file));
    } else if (name == "gid") {
      TANDEM_ASSIGN_OR_RETURN(rule.gid, ParseId(name, node, file));
    } else if (name == "gpus") {
      TANDEM_ASSIGN_OR_RETURN(rule.gpus, ParseGpus(node, file));
    } else if (name == "quotas") {
      TANDEM_ASSIGN_OR_RETURN(rule.quotas, ParseQuotas(node, file));
    } else if (name == "cgroup") {
      const auto* path = node.as_string();
      if (path == nullptr || !path->get().starts_with('/'))
        return BadRule(file, node, "allow.cgroup must be a path that begins with /");
      rule.cgroup = path->get();
    } else {
      return BadRule(
          file, node,
          "unknown key 'allow." + std::string(name) + "'; there are uid, gid, cgroup, gpus, quotas");
    }
  }
  return rule;
}

}  // namespace

Result<std::vector<AllowConfig>> ParseAllow(const toml::node& node, std::string_view file) {
  const toml::array* tables = node.as_array();
  if (tables == nullptr) return BadRule(file, node, "allow must be tables [[allow]]");
  std::vector<AllowConfig> rules;
  for (const toml::node& each : *tables) {
    const toml::table* table = each.as_table();
    if (table == nullptr) return BadRule(file, node, "allow must be tables [[allow]]");
    TANDEM_ASSIGN_OR_RETURN(AllowConfig rule, ParseRule(*table, file));
    rules.push_back(std::move(rule));
  }
  return rules;
}

QuotaConfig QuotasOf(const AllowConfig& rule, const QuotaConfig& quotas) {
  Config config;
  config.quotas = quotas;
  for (const auto& [name, value] : rule.quotas)
    *std::get<int64_t*>(FindKey(std::string(kTable) + name)->field(config)) = value;
  return config.quotas;
}

std::string PrintAllow(const std::vector<AllowConfig>& rules) {
  std::string text;
  for (const AllowConfig& rule : rules) {
    text += "\n[[allow]]\n";
    if (rule.uid.has_value()) text += "uid = " + std::to_string(*rule.uid) + "\n";
    if (rule.gid.has_value()) text += "gid = " + std::to_string(*rule.gid) + "\n";
    if (!rule.cgroup.empty()) text += "cgroup = " + QuoteToml(rule.cgroup) + "\n";
    if (rule.gpus.has_value()) {
      text += "gpus = [";
      for (const std::string& gpu : *rule.gpus) {
        const bool is_index = gpu.find_first_not_of("0123456789") == std::string::npos;
        text += (text.back() == '[' ? "" : ", ") + (is_index ? gpu : QuoteToml(gpu));
      }
      text += "]\n";
    }
    if (rule.quotas.empty()) continue;
    Config shown;
    shown.quotas = QuotasOf(rule, shown.quotas);
    text += "quotas = {";
    for (const auto& [name, value] : rule.quotas) {
      const KeySpec& spec = *FindKey(std::string(kTable) + name);
      text += (text.back() == '{' ? " " : ", ") + name + " = " + PrintValue(spec, shown);
    }
    text += " }\n";
  }
  return text;
}

}  // namespace tandem::config
