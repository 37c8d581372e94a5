// File: config_file.h
//
// Reads tandemd's configuration from TOML. Unknown keys, wrong types and values out of range are errors that
// name the file, the line, the key and what would be right.
#pragma once

#include <string>
#include <string_view>

#include "daemon/config/config.h"
#include "tandem/status.h"

namespace tandem {

// Sets in `config` the keys that `text` (TOML; `file` is its name in errors) has. On an error `config` is
// unchanged. INVALID_ARGUMENT and OUT_OF_RANGE messages start with "file:line: ". Does not call
// ValidateConfig: a later file may still change a key.
Status ParseConfigText(std::string_view text, std::string_view file, Config& config);

// Defaults, then the file at `path`, then each *.toml in the directory config.d beside it in the order of
// names. An absent config.d is fine; an absent file is NOT_FOUND. Ends with ValidateConfig.
Result<Config> LoadConfig(const std::string& path);

// The same without ValidateConfig, over `config`; for a caller that has more to lay over it.
Status LoadConfigOver(const std::string& path, Config& config);

// Only the files in config.d beside `path`, which itself need not exist. True if there was any.
Result<bool> LoadDropInsOver(const std::string& path, Config& config);

}  // namespace tandem
