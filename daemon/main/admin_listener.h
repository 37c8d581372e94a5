// File: admin_listener.h
//
// `AdminListener`: the administrators' socket. tandemd accepts its connections itself and hands them to the
// gRPC server: gRPC does not say whose process is at the other end, and every administrative call is logged
// with it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem::daemon {

class AdminListener {
 public:
  // Listens at `path`, whose file only its owner may use (0600), and gives each connection to `server`, which
  // has been started and outlives this.
  static Result<std::unique_ptr<AdminListener>> Start(const std::string& path, grpc::Server* server);
  // Accepts nobody any more, and removes the socket's file. Connections go on until the server ends them.
  ~AdminListener();
  AdminListener(const AdminListener&) = delete;
  AdminListener& operator=(const AdminListener&) = delete;

  // The process at the other end of a connection, as it was when it connected: "uid=0 pid=7 command="tandemctl
  // drain"". `peer` is what grpc::ServerContext::peer() returns. Empty for any other connection. Thread-safe.
  std::string CallerOf(const std::string& peer) const;

 private:
  AdminListener(std::string path, UniqueFd socket, grpc::Server* server);
  void Serve();

  const std::string path_;
  const UniqueFd socket_;
  grpc::Server* const server_;
  mutable std::mutex mutex_;
  std::map<std::string, std::string> callers_;  // by the connection's name; under mutex_
  std::thread thread_;
};

}  // namespace tandem::daemon
