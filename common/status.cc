#include "tandem/status.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace tandem {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "OK";
    case Code::kCancelled: return "CANCELLED";
    case Code::kUnknown: return "UNKNOWN";
    case Code::kInvalidArgument: return "INVALID_ARGUMENT";
    case Code::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case Code::kNotFound: return "NOT_FOUND";
    case Code::kAlreadyExists: return "ALREADY_EXISTS";
    case Code::kPermissionDenied: return "PERMISSION_DENIED";
    case Code::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case Code::kFailedPrecondition: return "FAILED_PRECONDITION";
    case Code::kAborted: return "ABORTED";
    case Code::kOutOfRange: return "OUT_OF_RANGE";
    case Code::kUnimplemented: return "UNIMPLEMENTED";
    case Code::kInternal: return "INTERNAL";
    case Code::kUnavailable: return "UNAVAILABLE";
    case Code::kDataLoss: return "DATA_LOSS";
    case Code::kUnauthenticated: return "UNAUTHENTICATED";
  }
  return "UNKNOWN";
}

Status Status::WithContext(std::string_view prefix) const {
  if (ok()) return *this;
  return {code_, std::string(prefix) + ": " + message_, detail_};
}

Status Status::WithDetail(StatusDetail detail) const { return {code_, message_, std::move(detail)}; }

Status Status::WithStarted(std::optional<bool> started) const {
  Status status = *this;
  if (!ok()) status.detail_.started = started;
  return status;
}

namespace internal {

void AbortWithoutValue(const Status& status) {
  const std::string_view code = CodeName(status.code());
  std::fprintf(stderr, "tandem: the value of a failed result was taken: %.*s: %s\n", int(code.size()),
               code.data(), status.message().c_str());
  std::abort();
}

}  // namespace internal

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(CodeName(code_)) + ": " + message_;
}

Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
Status DeadlineExceeded(std::string message) { return {Code::kDeadlineExceeded, std::move(message)}; }
Status NotFound(std::string message) { return {Code::kNotFound, std::move(message)}; }
Status AlreadyExists(std::string message) { return {Code::kAlreadyExists, std::move(message)}; }
Status PermissionDenied(std::string message) { return {Code::kPermissionDenied, std::move(message)}; }
Status ResourceExhausted(std::string message) { return {Code::kResourceExhausted, std::move(message)}; }
Status FailedPrecondition(std::string message) { return {Code::kFailedPrecondition, std::move(message)}; }
Status Aborted(std::string message) { return {Code::kAborted, std::move(message)}; }
Status OutOfRange(std::string message) { return {Code::kOutOfRange, std::move(message)}; }
Status Unimplemented(std::string message) { return {Code::kUnimplemented, std::move(message)}; }
Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }
Status Unavailable(std::string message) { return {Code::kUnavailable, std::move(message)}; }
Status Unauthenticated(std::string message) { return {Code::kUnauthenticated, std::move(message)}; }

namespace {

// The status of a call for which this process (EMFILE) or the node (ENFILE) has no descriptor left.
Status DescriptorLimit(std::string_view call, int error) {
  StatusDetail detail{.reason = "FD_LIMIT"};
  std::string message = std::string(call) + ": " + std::strerror(error) + ": ";
  if (error == ENFILE) {
    detail.who = "the node";
    return ResourceExhausted(message + "the node has no descriptor left (fs.file-max)")
        .WithDetail(std::move(detail));
  }
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  detail.pid = ::getpid();
  detail.who = "process " + std::to_string(detail.pid) + " (" + program_invocation_short_name + ")";
  detail.limit = static_cast<long long>(limit.rlim_cur);
  message +=
      detail.who + " may have " + std::to_string(detail.limit) + " open at most (ulimit -n, LimitNOFILE)";
  return ResourceExhausted(std::move(message)).WithDetail(std::move(detail));
}

}  // namespace

Status SystemError(std::string_view call, int error) {
  if (error == EMFILE || error == ENFILE) return DescriptorLimit(call, error);
  Code code = Code::kInternal;
  switch (error) {
    case EINVAL:
    case EBADF: code = Code::kInvalidArgument; break;
    case ENOENT:
    case ESRCH: code = Code::kNotFound; break;
    case EEXIST:
    case EADDRINUSE: code = Code::kAlreadyExists; break;
    case EACCES:
    case EPERM: code = Code::kPermissionDenied; break;
    case ENOMEM:
    case ENOSPC:
    case ENOBUFS: code = Code::kResourceExhausted; break;
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case ENOTCONN: code = Code::kUnavailable; break;
    case ETIMEDOUT: code = Code::kDeadlineExceeded; break;
    default: break;
  }
  return {code, std::string(call) + ": " + std::strerror(error)};
}

}  // namespace tandem
