// File: peer_listener.h
//
// `PeerListener`: a Unix socket of a gRPC server. tandemd accepts its connections itself and hands them to
// the server, because gRPC does not say whose process is at the other end. Operators' calls are logged with
// it, what a caller may see depends on it, and each user may have so many connections only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "common/descriptor_reserve.h"
#include "common/rate_limiter.h"
#include "common/socket_file.h"
#include "common/unique_fd.h"
#include "daemon/admin/viewer.h"
#include "daemon/main/connection_table.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct PeerListenerOptions {
  std::string path;
  std::string group;     // ShareSocket's
  unsigned mode = 0600;  // of the socket's file
  // Whether connections are bounded. Those of operators are not: only they may open the socket's file.
  bool bounded = false;
  ConnectionLimits limits = {};
  // New connections of one owner (cgroup), and of one uid; more are closed at once.
  RateLimiter::Limit owner_rate = {.per_second = 100, .burst = 256};
  RateLimiter::Limit uid_rate = {.per_second = 200, .burst = 512};
  DescriptorUse use = DescriptorUse::kOperator;
  // The sessions that there are; empty: connections stay those of their sessions.
  std::function<std::set<uint64_t>()> sessions = nullptr;
};

class PeerListener {
 public:
  // Listens at the path. `server` has been started and outlives this.
  // `group_missing` is NOT_FOUND if the options' group does not exist: then only tandemd's own may connect.
  static Result<std::unique_ptr<PeerListener>> Start(PeerListenerOptions options, grpc::Server* server,
                                                     Status* group_missing = nullptr);
  ~PeerListener();
  PeerListener(const PeerListener&) = delete;
  PeerListener& operator=(const PeerListener&) = delete;

  // Accepts connections from now on, and gives them to the server. Call it once.
  void Begin();
  // Accepts nobody any more, and removes the socket's file. Connections go on until the server ends them.
  // Called by the destructor, too. Not thread-safe.
  void Close();

  // `peer` is what grpc::ServerContext::peer() returns. None for any other connection. Thread-safe.
  std::optional<Caller> CallerOf(const std::string& peer) const;
  // A call over this connection has carried the token of `session`. Thread-safe.
  void Authenticated(const std::string& peer, uint64_t session);
  // Makes the socket's file again if somebody has removed or replaced it; true if so. Not thread-safe, but
  // beside everything else.
  Result<bool> Mend();
  // Open ones. Thread-safe.
  size_t connections() const;

 private:
  // One connection: gRPC's descriptor, which gRPC closes, and one of the same socket that this keeps. By it
  // the connection can be ended, whatever becomes of gRPC's number.
  struct Connection {
    int number = -1;     // gRPC's descriptor
    uint64_t inode = 0;  // the socket's
    UniqueFd own;
  };

  PeerListener(PeerListenerOptions options, grpc::Server* server, SocketFile file, UniqueFd epoll,
               UniqueFd wake);
  void Serve();
  // Takes one connection that waits. Returns false if none does, or none can be taken now.
  bool Accept();
  // Gives a connection to gRPC, or closes one that is too many.
  void Admit(UniqueFd socket);
  void TakeUp(int number, uint64_t inode, UniqueFd own, ConnectionPeer peer);
  // Whether gRPC has closed its descriptor.
  static bool Closed(const Connection& connection);
  void Forget(uint64_t id);
  void End(uint64_t id, const char* why);
  // Takes up what has changed since: sessions that have ended, descriptors that gRPC has closed.
  void Sweep();
  // The connection's id by gRPC's name for it. With mutex_ held.
  std::optional<uint64_t> IdOf(const std::string& peer) const;

  const PeerListenerOptions options_;
  grpc::Server* const server_;
  const UniqueFd epoll_, wake_;
  std::atomic<bool> closing_ = false;
  RateLimiter by_owner_, by_uid_;  // the thread's
  mutable std::mutex mutex_;
  SocketFile file_;  // under mutex_, as is the rest
  ConnectionTable table_;
  std::map<uint64_t, Connection> connections_;
  std::map<std::string, uint64_t> ids_;  // by gRPC's name
  uint64_t next_id_ = 1;
  std::thread thread_;
};

// The process at the other end of a Unix socket. None if the kernel names no process.
std::optional<Caller> IdentifyCaller(int connection);

// For the log: "uid=0 pid=7 command="tandemctl drain"".
std::string CallerText(const Caller& caller);

}  // namespace tandem::daemon
