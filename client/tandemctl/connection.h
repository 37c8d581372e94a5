// File: connection.h
//
// tandemctl's way to the daemon, and its exit codes.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tandem/admin/v1/admin.grpc.pb.h"
#include "tandem/status.h"

namespace tandem::ctl {

// Documented in docs/tandemctl.md; stable.
enum ExitCode : int {
  kDone = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kNotFoundExit = 4,
  kNotPermitted = 5,
  kTimedOut = 6,
};
ExitCode ExitCodeOf(const Status& status);

class Connection {
 public:
  // `admin_dir`: of admin.sock; empty: the runtime directory with "-admin" appended, as tandemd has it.
  Connection(std::string runtime_dir, std::string admin_dir, std::chrono::milliseconds timeout);

  const std::string& runtime_dir() const { return runtime_dir_; }
  const std::string& admin_dir() const { return admin_dir_; }

  // The services, by their sockets. UNAVAILABLE with reason "UNREACHABLE" if nobody listens,
  // PERMISSION_DENIED if this user may not connect.
  Result<std::unique_ptr<admin::v1::Admin::Stub>> Reader() const;
  Result<std::unique_ptr<admin::v1::AdminControl::Stub>> Changer() const;

  // Runs one call, `stub_method(stub, context, request, reply)`, under the time limit plus `extra`.
  template <typename Stub, typename Request, typename Reply>
  Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Reply*),
              const Request& request, Reply* reply, std::chrono::milliseconds extra = {}) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout_ + extra);
    grpc::Status status = (stub.*method)(&context, request, reply);
    if (status.ok()) return Status::Ok();
    return Status(static_cast<Code>(status.error_code()), status.error_message());
  }

  // Asks the service that changes nothing, under the time limit plus `extra`.
  template <typename Request, typename Reply>
  Result<Reply> Ask(grpc::Status (admin::v1::Admin::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                   Reply*),
                    const Request& request = {}, std::chrono::milliseconds extra = {}) const {
    TANDEM_ASSIGN_OR_RETURN(auto stub, Reader());
    Reply reply;
    TANDEM_RETURN_IF_ERROR(Call(*stub, method, request, &reply, extra));
    return reply;
  }

 private:
  std::string runtime_dir_, admin_dir_;
  std::chrono::milliseconds timeout_;
};

}  // namespace tandem::ctl
