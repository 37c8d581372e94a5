// File: tuning_file.h
//
// A tuning table as TOML (docs/algorithms.md shows one). A file is taken whole or not at all: a table that is
// half read would choose by what is left of it.
#pragma once

#include <string>
#include <string_view>

#include "daemon/planner/tuning/tuning_table.h"
#include "tandem/status.h"

namespace tandem::daemon {

// The format of the file. A file of another format is refused; entries keep the version of the Tandem that
// measured them.
inline constexpr int kTuningFormat = 1;
// Bytes; what is larger is neither read nor written.
inline constexpr size_t kMaxTuningFile = size_t{1} << 20;
// Clients' own times fill so much at most; the rest is kept for operators.
inline constexpr size_t kMaxTuningOfClients = kMaxTuningFile / 4 * 3;

std::string WriteTuning(const plan::TuningTable& table);
// `file` names it in errors and in the entries' source. INVALID_ARGUMENT "file: …" for anything else: no
// TOML, another format, an unknown or missing key, a wrong type. Also for an entry that CheckTuningEntry
// refuses, and for two entries of one shape.
Result<plan::TuningTable> ParseTuning(std::string_view text, const std::string& file);

// NOT_FOUND when there is none.
Result<plan::TuningTable> LoadTuning(const std::string& path);
// Replaces the file (ReplaceFile). RESOURCE_EXHAUSTED above `most` bytes, else UNAVAILABLE.
Status SaveTuning(const std::string& path, const plan::TuningTable& table, size_t most = kMaxTuningFile);

}  // namespace tandem::daemon
