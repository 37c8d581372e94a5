#include "daemon/config/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <vector>

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
  CLI::Option* option = nullptr;
  std::string text;
};

// --config's file, or the default one if it is there, and config.d beside it; then the flags.
Status Load(const std::vector<Flag>& flags, bool config_given, CommandLine& line) {
  if (config_given || access(line.config_path.c_str(), F_OK) == 0) {
    TANDEM_RETURN_IF_ERROR(LoadConfigOver(line.config_path, line.config));
  } else {
    TANDEM_ASSIGN_OR_RETURN(bool any, LoadDropInsOver(line.config_path, line.config));
    if (!any) line.config_path.clear();
  }
  for (const Flag& flag : flags) {
    if (flag.option->count() == 0) continue;
    bool bare = flag.key->type == config::KeyType::kBool && flag.text.empty();
    Status status = config::SetKeyFromText(*flag.key, bare ? "true" : flag.text, line.config);
    if (!status.ok()) return status.WithContext(config::FlagName(*flag.key));
  }
  return ValidateConfig(line.config);
}

}  // namespace

Result<CommandLine> ParseCommandLine(int argc, const char* const* argv,
                                     const std::string& default_config_path) {
  CLI::App app("tandemd: runs collectives and matmuls in tandem on the GPUs of this node.", "tandemd");
  CommandLine line;
  bool check = false;
  bool print = false;
  bool print_default = false;
  bool version = false;
  line.config_path = default_config_path;
  CLI::Option* config_option =
      app.add_option("--config", line.config_path,
                     "Configuration file (TOML); config.d/*.toml beside it are read after it")
          ->type_name("FILE");
  app.add_flag("--check-config", check, "Check the configuration and end");
  app.add_flag("--print-config", print, "Print the configuration in force as TOML and end");
  app.add_flag("--print-default-config", print_default,
               "Print a configuration file of all defaults, commented out, and end");
  app.add_flag("--version", version, "Print the version and end");
  std::vector<Flag> flags;
  flags.reserve(config::Keys().size());  // CLI11 keeps references to the texts
  for (const config::KeySpec& key : config::Keys()) {
    Flag& flag = flags.emplace_back();
    flag.key = &key;
    flag.option = app.add_option(config::FlagName(key), flag.text,
                                 std::string(key.doc) + " Default: " + config::PrintValue(key, Config()))
                      ->type_name(ValueName(key));
    if (key.type == config::KeyType::kBool) flag.option->expected(0, 1);
  }
  try {  // CLI11 reports by exceptions
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    line.action = CommandLine::Action::kPrint;
    line.output = app.help();
    return line;
  } catch (const CLI::ParseError& error) {
    return InvalidArgument(std::string(error.what()) + " (tandemd --help lists the flags)");
  }
  if (version) {
    line.action = CommandLine::Action::kPrint;
    line.output = "tandemd " TANDEM_VERSION "\n";
    return line;
  }
  if (print_default) {
    line.action = CommandLine::Action::kPrint;
    line.output = PrintDefaultConfigFile();
    return line;
  }
  TANDEM_RETURN_IF_ERROR(Load(flags, config_option->count() > 0, line));
  if (print || check) line.action = CommandLine::Action::kPrint;
  line.check = check;
  if (print) line.output = PrintConfig(line.config);
  if (check && !print) line.output = "configuration is valid\n";
  return line;
}

}  // namespace tandem
