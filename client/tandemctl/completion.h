// File: completion.h
//
// Shell completion, made from the command line's own description, so that the two cannot disagree.
#pragma once

#include <string>

#include "tandem/status.h"

namespace CLI {
class App;
}

namespace tandem::ctl {

// The script for "bash", "zsh" or "fish".
Result<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace tandem::ctl
