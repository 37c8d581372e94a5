#include "client/grpc_plugin/library_lines.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <cstdlib>
#include <mutex>
#include <string>

#include "common/exceptions.h"

namespace tandem::client {
namespace {

PluginLog* g_log = nullptr;

bool IsVerbose() {
  const char* asked = std::getenv("GRPC_VERBOSITY");
  return asked != nullptr && *asked != '\0';
}

void WriteLine(ClientLogLevel severity, const char* library, const std::string& text) {
  if (static_cast<int>(severity) < g_log->least.load(std::memory_order_relaxed)) return;
  g_log->write(static_cast<int>(severity), (std::string(library) + ": " + text).c_str());
}

// The libraries' errors come as statuses of calls, too.
void TakeGrpc(gpr_log_func_args* line) {
  IgnoreExceptions([line] {
    const bool is_error = line->severity == GPR_LOG_SEVERITY_ERROR;
    WriteLine(is_error ? ClientLogLevel::kWarning : ClientLogLevel::kDebug, "gRPC", line->message);
  });
}

void TakeProtobuf(google::protobuf::LogLevel level, const char*, int, const std::string& message) {
  IgnoreExceptions([&] {
    const bool is_error = level != google::protobuf::LOGLEVEL_INFO;
    WriteLine(is_error ? ClientLogLevel::kWarning : ClientLogLevel::kDebug, "protobuf", message);
  });
}

void Follow(bool nobody, int least) {
  // Null: gRPC's own, to standard error.
  gpr_set_log_function(nobody && IsVerbose() ? nullptr : &TakeGrpc);
  if (IsVerbose()) return;
  gpr_set_log_verbosity(least <= static_cast<int>(ClientLogLevel::kDebug) ? GPR_LOG_SEVERITY_DEBUG
                                                                          : GPR_LOG_SEVERITY_ERROR);
}

}  // namespace

void TakeLibraryLines(PluginLog* log) {
  if (log == nullptr) return;
  static std::once_flag once;
  std::call_once(once, [log] {
    g_log = log;
    google::protobuf::SetLogHandler(&TakeProtobuf);
    log->follow.store(&Follow, std::memory_order_release);  // the core calls it next
  });
}

}  // namespace tandem::client
