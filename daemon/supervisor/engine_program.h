// File: engine_program.h
//
// `EngineProgram`: the tandem-engine that one tandemd starts for as long as it runs. The file is held open:
// an upgrade of the package replaces it, and an engine that restarts afterwards is of the same build still.
#pragma once

#include <chrono>
#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

class EngineProgram {
 public:
  EngineProgram() = default;
  // NOT_FOUND or PERMISSION_DENIED name the program.
  static Result<EngineProgram> Open(const std::string& path);

  const std::string& path() const { return path_; }
  // Executes the file that was opened, whatever lies at path() now, while this object lives. path() itself
  // where /proc does not lead to the file.
  std::string Executable() const;
  // The build that the program prints for --version: "0.1.0+1a2b3c4d5e6f". UNAVAILABLE if it prints none
  // within `deadline`.
  Result<std::string> Build(std::chrono::milliseconds deadline) const;

 private:
  std::string path_;
  UniqueFd file_;
};

// Whether a tandemd of build `own` may start engines of build `engine`. FAILED_PRECONDITION for another
// version. Builds of one version may differ by their commits.
Status CheckEngineBuild(const std::string& engine, const std::string& own);

}  // namespace tandem::daemon
