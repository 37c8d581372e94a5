// tandemctl: the operators' and the curious' view of tandemd.
//
// Exit status: 0 done, 1 failure, 2 usage, 3 the daemon is not reachable, 4 not found, 5 not permitted, 6
// timed out.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "client/tandemctl/command_line.h"
#include "client/tandemctl/usage_errors.h"
#include "common/cli/arguments.h"

namespace {

void Complain(const std::string& text) { std::fprintf(stderr, "tandemctl: %s\n", text.c_str()); }

// A variable that is empty counts as absent.
void TakeVariable(const char* name, std::string& value) {
  const char* text = std::getenv(name);
  if (text != nullptr && *text != 0) value = text;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace tandem::ctl;
  CLI::App app("tandemctl: shows and steers Tandem's daemon on this node.", "tandemctl");
  CommandLine line;
  TakeVariable("TANDEM_RUNTIME_DIR", line.runtime_dir);
  TakeVariable("TANDEM_ADMIN_DIR", line.admin_dir);
  AddCommands(app, line);
  std::vector<std::string> arguments = tandem::cli::Arguments(argc, argv);
  if (const std::string unknown = UnknownCommand(app, arguments); !unknown.empty()) {
    Complain(unknown);
    return kUsage;
  }
  try {  // CLI11 reports by exceptions
    app.parse(arguments);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    Complain(UsageError(app, error));
    return kUsage;
  }
  if (line.runtime_dir.empty()) {
    Complain("--runtime-dir is empty");
    return kUsage;
  }
  const tandem::Status status = line.run();
  std::fflush(stdout);
  if (!status.ok()) Complain(status.message());
  return ExitCodeOf(status);
}
