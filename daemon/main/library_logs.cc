#include "daemon/main/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "common/log_share.h"

namespace tandem::daemon {
namespace {

// The libraries' errors are broken messages or connections of one client.
void TakeGrpc(gpr_log_func_args* line) {
  const log::Level level =
      line->severity == GPR_LOG_SEVERITY_ERROR ? log::Level::kWarning : log::Level::kDebug;
  log::WriteOf("library=grpc", level, std::string("library=grpc ") + line->message);
}

void TakeProtobuf(google::protobuf::LogLevel severity, const char*, int, const std::string& message) {
  const log::Level level =
      severity == google::protobuf::LOGLEVEL_INFO ? log::Level::kDebug : log::Level::kWarning;
  log::WriteOf("library=protobuf", level, "library=protobuf " + message);
}

}  // namespace

void TakeLibraryLogs() {
  gpr_set_log_function(&TakeGrpc);
  google::protobuf::SetLogHandler(&TakeProtobuf);
}

}  // namespace tandem::daemon
