// File: command_line.h
//
// tandemd's command line: --config, --check-config [--strict], --print-config, --print-default-config,
// --embedded, --version, --help, and one flag for each configuration key (--emulated-gpus 8, --quotas-plans 100), which
// goes over the files.
#pragma once

#include <string>

#include "daemon/config/config.h"
#include "tandem/status.h"

namespace tandem {

// Read when --config is not given; it may be absent then, with or without a config.d beside it.
inline constexpr char kDefaultConfigPath[] = "/etc/tandem/tandemd.toml";

struct DaemonCommandLine {
  enum class Action {
    kRun,    // start the daemon with `config`
    kPrint,  // write `output` to stdout and end with status 0
  };
  Action action = Action::kRun;
  Config config;
  std::string config_path;  // the file that was read, or whose config.d; "" if none
  // --check-config: the caller checks what the configuration names too, then prints `output`.
  bool check = false;
  bool strict = false;  // --strict: the caller checks what the start needs, without starting anything
  // --embedded: the directory of a tandemd that one job has started; "": another tandemd.
  std::string embedded_directory = {};
  std::string output;  // help, version, printed configuration, "configuration is valid"
};

// Reads `argv` (argv[0] is the program's name), the files, and checks the outcome; --check-config and
// --print-config fail where the daemon would refuse to start. An error is one sentence for stderr; the exit
// status for it is 2.
Result<DaemonCommandLine> ParseCommandLine(int argc, const char* const* argv,
                                           const std::string& default_config_path = kDefaultConfigPath);

}  // namespace tandem
