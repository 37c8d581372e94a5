// File: log.h
//
// The library's lines for a log: what sessions, groups and plans do, and what gRPC and libprotobuf have to say.
// Without a callback the library writes nothing; failures are in statuses all the same.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "tandem/client.h"

namespace tandem {

enum class ClientLogLevel : uint8_t {
  kDebug = 0,    // also gRPC's own steps, many lines a call
  kInfo = 1,     // sessions, groups, plans and the reasons of their choice
  kWarning = 2,  // events, a plan that does less than was asked, errors of gRPC and libprotobuf
  kError = 3,    // a session that is over
};

// Sets the process's callback for lines of `least` and above, in place of an earlier one; null: none. Once
// this returns, the earlier callback is not called any more, and has returned.
//
// The callback is called from any thread, several at a time. It must not block, nor call this library. The
// text has no newline at its end, and belongs to the library.
//
// Lines of gRPC and libprotobuf come here, or go nowhere. Two cases differ. With GRPC_VERBOSITY in the
// environment and no callback gRPC writes to standard error. Where the program shares its own gRPC with this
// library, that gRPC's lines are the program's.
//
// FAILED_PRECONDITION: called by the callback.
TANDEM_API Status SetLogCallback(std::function<void(ClientLogLevel, std::string_view text)> callback,
                                 ClientLogLevel least = ClientLogLevel::kInfo);

}  // namespace tandem
