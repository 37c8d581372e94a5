// File: status.h
//
// `Status` and `Result<T>`: the outcome of every function of Tandem that can fail. The codes are gRPC's
// canonical codes, with the same meaning in the daemon, on the wire and in the client. No exception crosses a
// module. A Status is a plain value: one object is for one thread at a time.
//
// Example:
//   Result<UniqueFd> fd = Open(path);
//   if (!fd.ok()) return fd.status();
//   Use(*fd);
#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem {

// Canonical codes; values equal those of grpc::StatusCode.
enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  // The request is wrong in any state: correct the call. `field` names the wrong field.
  kInvalidArgument = 3,
  // Somebody did not come in time. `ranks` names the missing ranks: look for the cause there.
  kDeadlineExceeded = 4,
  // No such id, or the id of another session.
  kNotFound = 5,
  kAlreadyExists = 6,
  // The peer's credentials do not allow the call: ask the operator.
  kPermissionDenied = 7,
  // A quota or the machine's memory is used up: free something, or ask the operator. See `limit` and `usage`.
  kResourceExhausted = 8,
  // The state forbids the call: the message names the state.
  kFailedPrecondition = 9,
  // An engine's end cut a launch off: restore the operands in place and retry, on all ranks.
  kAborted = 10,
  // An offset or a rank is beyond its bounds: correct the call.
  kOutOfRange = 11,
  kUnimplemented = 12,
  // A defect of Tandem: report it.
  kInternal = 13,
  // A rank, the group or the daemon is gone: join or connect again.
  kUnavailable = 14,
  kDataLoss = 15,
  // The session is gone, or its token is forged: connect again.
  kUnauthenticated = 16,
};

// The code's canonical name, for example "INVALID_ARGUMENT".
std::string_view CodeName(Code code);

// The cause of a failure for programs, beside the message for people. Every field may be empty.
struct StatusDetail {
  std::string reason = {};  // stable, upper case: "QUOTA_SESSIONS", "SESSION_LOST", "FIELD_MISMATCH"
  std::string who = {};     // the ranks, session or GPU that caused it, as text: "ranks 1, 3"
  std::string field = {};   // the wrong field of the request
  long long limit = 0;
  long long usage = 0;
  std::vector<uint32_t> ranks = {};  // the ranks that caused it, ascending; empty: no rank, or not known
  int64_t pid = 0;                   // the process that caused it; 0: none, or not known
  int32_t gpu = -1;  // the GPU that caused it, by its position in the node's topology; -1: none
  // Of a launch that failed: whether its kernels may have written operands on some rank. Unset: not known, or
  // not a launch.
  std::optional<bool> started = {};
  bool operator==(const StatusDetail&) const = default;
};

// The outcome of an operation: OK, or a code with a message for people and a detail for programs.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  Status(Code code, std::string message, StatusDetail detail)
      : code_(code), message_(std::move(message)), detail_(std::move(detail)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  const StatusDetail& detail() const { return detail_; }

  // The same status with `prefix` and ": " before its message; OK stays OK.
  Status WithContext(std::string_view prefix) const;
  // The same status with another detail.
  Status WithDetail(StatusDetail detail) const;
  // The same status with another `started` in its detail; OK stays OK.
  Status WithStarted(std::optional<bool> started) const;
  // "CODE_NAME: message", or "OK".
  std::string ToString() const;

  bool operator==(const Status&) const = default;

 private:
  Code code_ = Code::kOk;
  std::string message_;
  StatusDetail detail_;
};

// Shorthands: InvalidArgument("rows must be positive").
Status InvalidArgument(std::string message);
Status DeadlineExceeded(std::string message);
Status NotFound(std::string message);
Status AlreadyExists(std::string message);
Status PermissionDenied(std::string message);
Status ResourceExhausted(std::string message);
Status FailedPrecondition(std::string message);
Status Aborted(std::string message);
Status OutOfRange(std::string message);
Status Unimplemented(std::string message);
Status Internal(std::string message);
Status Unavailable(std::string message);
Status Unauthenticated(std::string message);
// The status of a failed system call: "call: strerror(error)", with the code that fits `error`.
// FD_LIMIT names the limit of descriptors, and whose it is.
Status SystemError(std::string_view call, int error);

namespace internal {

// Prints `status` to stderr and ends the process: the value of a failed result was taken.
[[noreturn]] void AbortWithoutValue(const Status& status);

}  // namespace internal

// A value, or the status that says why there is none. To take the value of a failed result is a defect of the
// caller: the process prints the status and aborts, in release builds too.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor): reads as a return
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return Checked(*this); }
  const T& value() const& { return Checked(*this); }
  T&& value() && { return std::move(Checked(*this)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  template <typename Self>
  static auto& Checked(Self& self) {
    if (!self.ok()) [[unlikely]]
      internal::AbortWithoutValue(self.status_);
    return *self.value_;
  }

  std::optional<T> value_;
  Status status_;
};

// Returns from the calling function when `expression` is a status that is not OK.
#define TANDEM_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                            \
    if (::tandem::Status tandem_status = (expression); !tandem_status.ok()) return tandem_status; \
  } while (false)

#define TANDEM_CONCAT_INNER(a, b) a##b
#define TANDEM_CONCAT(a, b) TANDEM_CONCAT_INNER(a, b)

// Sets `target` to the result's value, or returns the result's status from the calling function:
// `TANDEM_ASSIGN_OR_RETURN(auto fd, Open(path));`. A line may hold several.
#define TANDEM_ASSIGN_OR_RETURN(target, expression) \
  TANDEM_ASSIGN_OR_RETURN_INNER(TANDEM_CONCAT(tandem_result_, __COUNTER__), target, expression)
#define TANDEM_ASSIGN_OR_RETURN_INNER(result, target, expression) \
  auto result = (expression);                                     \
  if (!result.ok()) return result.status();                       \
  target = std::move(result).value()

}  // namespace tandem
