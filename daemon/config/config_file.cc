#include "daemon/config/config_file.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "common/toml/toml_parse.h"
#include "common/toml/toml_text.h"
#include "daemon/config/allow_rules.h"
#include "daemon/config/config_keys.h"

namespace tandem {
namespace {

std::string Where(std::string_view file, const toml::source_region& source) {
  return std::string(file) + ":" + std::to_string(source.begin.line);
}

Status UnknownKey(const std::string& where, const std::string& name) {
  std::string message = where + ": unknown key '" + name + "'";
  if (std::string_view nearest = config::NearestKey(name); !nearest.empty()) {
    message += "; did you mean '" + std::string(nearest) + "'?";
  }
  return InvalidArgument(message);
}

bool IsTableName(std::string_view name) {
  auto keys = config::Keys();
  return std::any_of(keys.begin(), keys.end(), [name](const config::KeySpec& key) {
    const auto has_table = [name](std::string_view key_name) {
      return key_name.size() > name.size() && key_name.starts_with(name) && key_name[name.size()] == '.';
    };
    return has_table(key.name) || has_table(key.old_name);
  });
}

Status ApplyNode(const std::string& name, const toml::node& node, std::string_view file, Config& config) {
  std::string where = Where(file, node.source());
  const config::KeySpec* key = config::FindKey(name);
  if (key == nullptr) return UnknownKey(where, name);
  config::KeyValue value;
  if (const auto* text = node.as_string()) {
    value = text->get();
  } else if (const auto* number = node.as_integer()) {
    value = number->get();
  } else if (const auto* boolean = node.as_boolean()) {
    value = boolean->get();
  } else {
    return InvalidArgument(where + ": " + name + " must be a string, an integer or a boolean");
  }
  Status status = config::SetKey(*key, value, config);
  if (!status.ok()) return status.WithContext(where);
  if (name == key->old_name) config.old_names.push_back(where + ": " + config::OldNameNote(name, key->name));
  return status;
}

Status ParseFile(const std::string& path, Config& config) {
  TANDEM_ASSIGN_OR_RETURN(std::string text, ReadTextFile(path));
  return ParseConfigText(text, path, config);
}

// The *.toml files of `directory` in the order of names; none if there is no such directory.
Result<std::vector<std::string>> DropIns(const std::string& directory) {
  std::vector<std::string> paths;
  std::unique_ptr<DIR, int (*)(DIR*)> dir(opendir(directory.c_str()), &closedir);
  if (dir == nullptr) {
    if (errno == ENOENT) return paths;
    return SystemError("opendir " + directory, errno);
  }
  while (const dirent* entry = readdir(dir.get())) {
    std::string_view name = entry->d_name;
    if (name.front() == '.' || !name.ends_with(".toml")) continue;
    paths.push_back(directory + "/" + std::string(name));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

Status ParseConfigText(std::string_view text, std::string_view file, Config& config) {
  TANDEM_ASSIGN_OR_RETURN(toml::table root, ParseToml(text, file));
  Config changed = config;
  for (const auto& [name, node] : root) {
    if (name.str() == "allow") {
      TANDEM_ASSIGN_OR_RETURN(changed.allow, config::ParseAllow(node, file));
      continue;
    }
    const toml::table* table = node.as_table();
    if (table == nullptr) {
      TANDEM_RETURN_IF_ERROR(ApplyNode(std::string(name.str()), node, file, changed));
      continue;
    }
    if (!IsTableName(name.str())) {
      // Name a key of the unknown table: its leaf may be what the nearest known key is found by.
      std::string shown(name.str());
      if (!table->empty()) shown += "." + std::string(table->begin()->first.str());
      return UnknownKey(Where(file, node.source()), shown);
    }
    for (const auto& [leaf, value] : *table) {
      TANDEM_RETURN_IF_ERROR(
          ApplyNode(std::string(name.str()) + "." + std::string(leaf.str()), value, file, changed));
    }
  }
  config = std::move(changed);
  return Status::Ok();
}

Status LoadConfigOver(const std::string& path, Config& config) {
  TANDEM_RETURN_IF_ERROR(ParseFile(path, config));
  return LoadDropInsOver(path, config).status();
}

Result<bool> LoadDropInsOver(const std::string& path, Config& config) {
  size_t slash = path.rfind('/');
  std::string directory = slash == std::string::npos ? "." : path.substr(0, slash == 0 ? 1 : slash);
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> drop_ins, DropIns(directory + "/config.d"));
  for (const std::string& drop_in : drop_ins) TANDEM_RETURN_IF_ERROR(ParseFile(drop_in, config));
  return !drop_ins.empty();
}

Result<Config> LoadConfig(const std::string& path) {
  Config config;
  TANDEM_RETURN_IF_ERROR(LoadConfigOver(path, config));
  Status valid = ValidateConfig(config);
  if (!valid.ok()) return valid.WithContext(path);
  return config;
}

}  // namespace tandem
