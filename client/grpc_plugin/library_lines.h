// File: library_lines.h
//
// Lines of gRPC and of libprotobuf go to the library's log.
#pragma once

#include "client/lib/base/control_api.h"

namespace tandem::client {

// From the first call on. Null: this gRPC is the program's, and its lines are, too. Thread-safe.
void TakeLibraryLines(PluginLog* log);

}  // namespace tandem::client
