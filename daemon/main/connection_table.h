// File: connection_table.h
//
// `ConnectionTable`: the open connections of one socket, whose they are, and which of them must go. A
// connection belongs to a session once a call over it has carried that session's token. All others are
// strangers. Each session has few connections, each user few strangers. So no user's connections use up what
// others need. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "daemon/admin/viewer.h"

namespace tandem::daemon {

struct ConnectionLimits {
  size_t per_session = 4;
  size_t strangers_per_uid = 128;  // as many as processes of one user that may connect at the same moment
  size_t strangers = 256;
};

// The process at the other end of a connection.
struct ConnectionPeer {
  std::optional<Caller> caller = std::nullopt;  // none: the kernel names no process
  std::string owner = {};                       // OwnerOf its cgroup; empty: not known
};

class ConnectionTable {
 public:
  explicit ConnectionTable(ConnectionLimits limits) : limits_(limits) {}

  // Takes up a connection, which has no session yet. Returns the connection that must go for it: of the user,
  // and there of the owner, with most strangers, the one that is there longest. None in most cases.
  std::optional<uint64_t> Add(uint64_t id, ConnectionPeer peer);
  // A call over `id` has carried the token of `session`. Returns the session's oldest connection if it has
  // one too many.
  std::optional<uint64_t> Own(uint64_t id, uint64_t session);
  void Remove(uint64_t id);
  // Connections of all other sessions become strangers. Returns those that are too many.
  std::vector<uint64_t> KeepSessions(const std::set<uint64_t>& living);

  // Null if there is no such connection. Until the next change.
  const ConnectionPeer* Find(uint64_t id) const;
  size_t size() const { return connections_.size(); }
  // Any connection belongs to a session.
  bool has_sessions() const { return !of_session_.empty(); }

 private:
  struct Connection {
    ConnectionPeer peer;
    uint64_t session = 0;  // 0: none
  };
  static uint32_t UidOf(const ConnectionPeer& peer);
  // Takes `id` out of the set that it is in.
  void TakeOut(uint64_t id, const Connection& connection);
  // The stranger that goes if there are too many, of `uid` or in all.
  std::optional<uint64_t> Surplus(uint32_t uid) const;
  uint64_t OldestOf(uint32_t uid) const;

  const ConnectionLimits limits_;
  std::map<uint64_t, Connection> connections_;        // ids grow: the oldest is first
  std::map<uint32_t, std::set<uint64_t>> strangers_;  // by uid
  std::map<uint64_t, std::set<uint64_t>> of_session_;
  size_t stranger_count_ = 0;
};

}  // namespace tandem::daemon
