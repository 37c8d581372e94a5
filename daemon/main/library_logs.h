// File: library_logs.h
//
// Lines that libraries write: they go to the daemon's log and have its form. Clients can cause many of them,
// so they are bounded as lines about users are.
#pragma once

namespace tandem::daemon {

// From now on lines of gRPC and of libprotobuf are the log's. Call it before they are used.
void TakeLibraryLogs();

}  // namespace tandem::daemon
