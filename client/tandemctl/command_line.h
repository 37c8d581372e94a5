// File: command_line.h
//
// tandemctl's commands and flags.
#pragma once

#include <functional>
#include <string>

#include "client/tandemctl/commands.h"
#include "client/tandemctl/connection.h"
#include "client/tandemctl/explain.h"
#include "client/tandemctl/tune_options.h"
#include "client/tandemctl/tune_setup.h"
#include "tandem/status.h"

namespace CLI {
class App;
}  // namespace CLI

namespace tandem::ctl {

// The values of flags and arguments, and the command to run.
struct CommandLine {
  std::string runtime_dir = "/run/tandem";
  std::string admin_dir;  // empty: the runtime directory with "-admin" appended
  double timeout_seconds = 5;
  CommandOptions options;
  ExplainOptions explain;
  TuneLine tune_line;
  std::string tune_file;
  TuneOptions tune;
  std::string tuning_id;
  bool all = false;
  std::string shell;
  std::function<Status()> run;  // set by parsing

  Connection Connect() const;
};

// Adds everything to `app`, which `line` outlives, and which outlives `line.run`.
void AddCommands(CLI::App& app, CommandLine& line);

}  // namespace tandem::ctl
