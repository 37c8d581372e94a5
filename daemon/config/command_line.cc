#include "daemon/config/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <vector>

#include "common/build/build_version.h"
#include "common/cli/arguments.h"
#include "daemon/config/config_file.h"
#include "daemon/config/config_keys.h"

namespace tandem {
namespace {

std::string ValueName(const config::KeySpec& key) {
  switch (key.type) {
    case config::KeyType::kString: return "TEXT";
    case config::KeyType::kInteger: return std::to_string(key.min) + ".." + std::to_string(key.max);
    case config::KeyType::kBytes: return "BYTES";
    case config::KeyType::kBool: return "[true|false]";
    case config::KeyType::kChoice: {
      std::string choices;
      for (std::string_view choice : key.choices)
        choices += (choices.empty() ? "" : "|") + std::string(choice);
      return choices;
    }
  }
  return "";
}

// One key's flag as it was given.
struct Flag {
  const config::KeySpec* key = nullptr;
  std::string name = {};
  bool is_old = false;  // the key's old name
  CLI::Option* option = nullptr;
  std::string text = {};
};

// "--flag=" of a boolean has no value. Without this check it would be "true", as the bare flag is.
Status CheckBooleans(const std::vector<Flag>& flags, const std::vector<std::string>& reversed) {
  for (size_t i = 1; i < reversed.size(); ++i) {
    if (!reversed[i - 1].empty()) continue;
    for (const Flag& flag : flags) {
      if (flag.key->type == config::KeyType::kBool && flag.name == reversed[i]) {
        return InvalidArgument(flag.name + "= has no value: true or false");
      }
    }
  }
  return Status::Ok();
}

// The files' places of a tandemd that one job has started. No file of the node's is for it.
void SetEmbedded(DaemonCommandLine& line) {
  line.config_path.clear();
  line.config.runtime_dir = line.embedded_directory + "/run";
  line.config.state_dir = line.embedded_directory + "/state";
  line.config.socket_group.clear();
}

// --config's file, or the default one if it is there, and config.d beside it; then the flags.
Status Load(const std::vector<Flag>& flags, bool config_given, DaemonCommandLine& line) {
  if (!line.embedded_directory.empty()) {
    SetEmbedded(line);
  } else if (config_given || access(line.config_path.c_str(), F_OK) == 0) {
    TANDEM_RETURN_IF_ERROR(LoadConfigOver(line.config_path, line.config));
  } else {
    TANDEM_ASSIGN_OR_RETURN(bool any, LoadDropInsOver(line.config_path, line.config));
    if (!any) line.config_path.clear();
  }
  for (const Flag& flag : flags) {
    if (flag.option->count() == 0) continue;
    bool bare = flag.key->type == config::KeyType::kBool && flag.text.empty();
    Status status = config::SetKeyFromText(*flag.key, bare ? "true" : flag.text, line.config);
    if (!status.ok()) return status.WithContext(flag.name);
    if (flag.is_old)
      line.config.old_names.push_back(config::OldNameNote(flag.name, config::FlagName(*flag.key)));
  }
  return ValidateConfig(line.config);
}

}  // namespace

Result<DaemonCommandLine> ParseCommandLine(int argc, const char* const* argv,
                                           const std::string& default_config_path) {
  CLI::App app("tandemd: runs collectives and matmuls in tandem on the GPUs of this node.", "tandemd");
  DaemonCommandLine line;
  bool check = false;
  bool print = false;
  bool print_default = false;
  bool version = false;
  line.config_path = default_config_path;
  CLI::Option* config_option =
      app.add_option("--config", line.config_path,
                     "Configuration file (TOML); config.d/*.toml beside it are read after it")
          ->type_name("FILE");
  app.add_option("--embedded", line.embedded_directory,
                 "Serve one job: keep all files in this private directory, read no configuration file, end "
                 "after the job's last process, and remove the directory")
      ->type_name("DIRECTORY")
      ->excludes(config_option);
  CLI::Option* check_option = app.add_flag("--check-config", check, "Check the configuration and end");
  app.add_flag("--strict", line.strict,
               "With --check-config: check what the start needs too: engine program, backend, directories, "
               "group, metrics address")
      ->needs(check_option);
  app.add_flag("--print-config", print, "Print the configuration in force as TOML and end");
  app.add_flag("--print-default-config", print_default,
               "Print a configuration file of all defaults, commented out, and end");
  app.add_flag("--version", version, "Print the version and end");
  std::vector<Flag> flags;
  flags.reserve(2 * config::Keys().size());  // CLI11 keeps references to the texts
  const auto add = [&](const config::KeySpec& key, const std::string& name, bool is_old) {
    Flag& flag = flags.emplace_back(Flag{.key = &key, .name = name, .is_old = is_old});
    flag.option = app.add_option(name, flag.text,
                                 std::string(key.doc) + " Default: " + config::PrintValue(key, Config()))
                      ->type_name(ValueName(key));
    if (is_old) flag.option->group("");  // not in --help
    if (key.type == config::KeyType::kBool) flag.option->expected(0, 1);
  };
  for (const config::KeySpec& key : config::Keys()) {
    add(key, config::FlagName(key), false);
    if (!key.old_name.empty()) add(key, config::OldFlagName(key), true);
  }
  std::vector<std::string> arguments = cli::Arguments(argc, argv);
  TANDEM_RETURN_IF_ERROR(CheckBooleans(flags, arguments));
  try {  // CLI11 reports by exceptions
    app.parse(arguments);
  } catch (const CLI::CallForHelp&) {
    line.action = DaemonCommandLine::Action::kPrint;
    line.output = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(std::string(error.what()) + " (tandemd --help lists the flags)");
  }
  if (version) {
    line.action = DaemonCommandLine::Action::kPrint;
    line.output = std::string("tandemd ") + BuildVersion() + "\n";
    return line;
  }
  if (print_default) {
    line.action = DaemonCommandLine::Action::kPrint;
    line.output = PrintDefaultConfigFile();
    return line;
  }
  TANDEM_RETURN_IF_ERROR(Load(flags, config_option->count() > 0, line));
  if (print || check) line.action = DaemonCommandLine::Action::kPrint;
  line.check = check;
  if (print) line.output = PrintConfig(line.config);
  if (check && !print) line.output = "configuration is valid\n";
  return line;
}

}  // namespace tandem
