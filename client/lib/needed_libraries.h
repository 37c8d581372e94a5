// File: needed_libraries.h
//
// The libraries that a library is linked to, before it is loaded.
#pragma once

#include <string>
#include <vector>

#include "tandem/status.h"

namespace tandem::client {

// The names under which the dynamic loader will look for the libraries that the file at `path` needs, in
// their order (its DT_NEEDED entries). NOT_FOUND: it cannot be read. INVALID_ARGUMENT: it is no 64-bit ELF
// library of this machine's byte order. Thread-safe.
Result<std::vector<std::string>> NeededLibraries(const std::string& path);

}  // namespace tandem::client
