// File: replace_file.h
//
// Small files that must never be seen half written.
#pragma once

#include <string>
#include <string_view>

#include "tandem/status.h"

namespace tandem {

// Writes `path` whole, atomically and durably: a reader, and a machine that stops, find the old file or the
// new one. Makes the directory; writes "….new" beside it first. UNAVAILABLE says what went wrong; the old
// file is as before. One writer a path.
Status ReplaceFile(const std::string& path, std::string_view text);

}  // namespace tandem
