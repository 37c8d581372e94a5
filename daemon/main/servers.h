// File: servers.h
//
// tandemd's gRPC servers: one on the clients' socket (the clients' service, read-only administration, health)
// and one on the administrators' socket (everything, and reflection).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "daemon/admin/admin_service.h"
#include "daemon/config/config.h"
#include "daemon/control/control.h"
#include "daemon/main/socket_watch.h"
#include "daemon/observe/health.h"
#include "tandem/status.h"

namespace tandem::daemon {

class Servers {
 public:
  // Replaces stale sockets, listens, and sets the sockets' owners and modes before anybody may connect.
  // `sources` and `control` outlive this. Call once in a process: reflection is switched on for it.
  static Result<std::unique_ptr<Servers>> Start(const Config& config, Control& control,
                                                const AdminSources& sources);
  // Stops at once: calls in progress are cancelled.
  ~Servers();

  // Sets the answers of both sockets' health services. The services "" (the whole server), "readiness" and
  // "tandem.v1.Tandem" are SERVING while the node is ready, "liveness" while tandemd is live. Thread-safe.
  void SetHealth(const Health& health);
  // The process that a call on the administrators' socket comes from, for the log (CallerText). Thread-safe.
  std::string CallerOf(const std::string& peer) const;
  // Makes the sockets' files again that somebody has removed. Not thread-safe.
  std::vector<FileRepair> Mend();
  // Makes one call over each socket; UNAVAILABLE names the one that does not answer in 10 s.
  Status DialSelf() const;

 private:
  struct Parts;
  explicit Servers(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem::daemon
