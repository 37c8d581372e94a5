// File: peer_listener.h
//
// `PeerListener`: a Unix socket of a gRPC server. tandemd accepts its connections itself and hands them to
// the server, because gRPC does not say whose process is at the other end. Operators' calls are logged with
// it, and what a caller may see depends on it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "common/unique_fd.h"
#include "daemon/admin/viewer.h"
#include "tandem/status.h"

namespace tandem::daemon {

class PeerListener {
 public:
  // Listens at `path`, whose file only its owner may use (0600), and gives each connection to `server`, which
  // has been started and outlives this.
  static Result<std::unique_ptr<PeerListener>> Start(const std::string& path, grpc::Server* server);
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // Accepts nobody any more, and removes the socket's file. Connections go on until the server ends them.
  // Called by the destructor, too. Not thread-safe.
  void Close();

  // `peer` is what grpc::ServerContext::peer() returns. None for any other connection. Thread-safe.
  std::optional<Caller> CallerOf(const std::string& peer) const;

 private:
  PeerListener(std::string path, UniqueFd socket, grpc::Server* server);
  void Serve();

  const std::string path_;
  const UniqueFd socket_;
  grpc::Server* const server_;
  mutable std::mutex mutex_;
  std::map<std::string, std::optional<Caller>> callers_;  // by the connection's name; under mutex_
  std::thread thread_;
};

// The process at the other end of a Unix socket. None if the kernel does not tell.
std::optional<Caller> IdentifyCaller(int connection);

// For the log: "uid=0 pid=7 command="tandemctl drain"".
std::string CallerText(const Caller& caller);

}  // namespace tandem::daemon
