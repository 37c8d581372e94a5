// File: lease_server.h
//
// `LeaseServer`: the lease sockets. One thread waits for all of them: it takes the peer's credentials and
// pidfd, attaches sessions, files descriptors that clients send, and reports a session as lost when its
// process dies (pidfd) or its socket ends. Sessions that were taken over from an earlier tandemd have some
// time to come back. Sends never block: a client that does not read fills a bounded backlog and disturbs
// nobody else.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/rate_limiter.h"
#include "common/socket_file.h"
#include "common/unique_fd.h"
#include "daemon/control/control.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct LeaseServerOptions {
  std::string path;
  unsigned mode = 0660;
  std::string group = {};  // of the socket's file: a name or a gid; empty: the process's own
  // New connections of one owner (cgroup) and uid, and of one uid in all. More are refused.
  RateLimiter::Limit owner_rate = {.per_second = 100, .burst = 256};
  RateLimiter::Limit uid_rate = {.per_second = 200, .burst = 512};
  // Called for each connection that is refused by these. From the server's thread.
  std::function<void(uint32_t uid)> on_refused = nullptr;
  // Connections that have not attached yet; beyond, the oldest of who has most goes.
  size_t max_unattached = 256;
  std::chrono::milliseconds attach_deadline{5000};
  size_t max_backlog = 256;                    // messages that a client has not read
  std::chrono::milliseconds restart_grace{0};  // for sessions of an earlier tandemd to come back
};

class LeaseServer final : public LeasePort {
 public:
  // Listens and starts the thread. ALREADY_EXISTS if a live daemon answers at the path. `control` outlives
  // this.
  static Result<std::unique_ptr<LeaseServer>> Start(LeaseServerOptions options, Control& control);
  // Closes all leases (without ending their sessions) and removes the socket's file.
  ~LeaseServer() override;

  Status Send(uint64_t session_id, uint64_t transfer_id, const std::vector<SharedFd>& fds) override;
  void Close(uint64_t session_id, const Status& why) override;

  // The descriptor, for its owner and group to be set.
  const std::string& path() const { return options_.path; }
  // Open connections, attached or not.
  size_t connections();
  // Makes the socket's file again if somebody has removed or replaced it; true if so. Not thread-safe, but
  // beside everything else.
  Result<bool> Mend();

 private:
  struct Packet {
    std::string body;
    std::vector<SharedFd> fds;
  };
  // One client. `backlog` is guarded by mutex_; the rest is the thread's own, but for the socket's sends.
  struct Connection {
    uint64_t id = 0;
    UniqueFd socket;
    UniqueFd pidfd;
    PeerIdentity peer;
    uint64_t session_id = 0;  // 0: not attached
    bool awaited = false;     // stands for the lease of a session that has not come back; has no socket
    Waiter::Clock::time_point since = Waiter::Clock::now();
    std::deque<Packet> backlog;

    Connection() = default;
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;
    // The peer hears of the end now; what it has sent and nobody has read, descriptors too, ends with the
    // socket, elsewhere.
    ~Connection();
  };

  using Connections = std::map<uint64_t, std::shared_ptr<Connection>>;

  LeaseServer(LeaseServerOptions options, Control& control, SocketFile file, UniqueFd epoll, UniqueFd wake);
  void Run();
  void Accept();
  // One connection of the queue; false if none waits.
  bool AcceptOne();
  // OK if the peer has not made too many connections of late. `owner`: none before it is known.
  Status CheckRate(uint32_t uid, const std::optional<std::string>& owner);
  void Readable(uint64_t connection_id);
  Status Handle(Connection& connection, const std::string& body, ForeignFds fds);
  // Gives the connection the session of `reply`, and answers.
  Status Attach(Connection& connection, v1::AttachReply reply);
  // The session waits for a restored process, and the connection ends.
  Status LetGo(Connection& connection, const v1::CheckpointRequest& request);
  // Takes a connection out of all tables but by_session_. With mutex_ held.
  std::shared_ptr<Connection> Forget(Connections::iterator found);
  // Watches the process of a session that has not come back. Before the thread starts.
  void Await(uint64_t session_id, const PeerIdentity& peer);
  void Flush(uint64_t connection_id);
  Status SendLocked(Connection& connection, Packet packet);
  void Refuse(Connection& connection, const Status& why);
  // `closed`: the client has closed its end. Then a session whose process lives on has left; else it is lost.
  void Drop(uint64_t connection_id, const std::string& why, bool closed = false);
  void DropLate();
  int Timeout();
  void MakeRoom();
  std::shared_ptr<Connection> Find(uint64_t connection_id);
  void Watch(int fd, uint64_t tag, uint32_t events, bool add);

  const LeaseServerOptions options_;
  Control& control_;
  UniqueFd epoll_, wake_;
  RateLimiter by_owner_, by_uid_;  // the thread's
  std::mutex mutex_;
  SocketFile file_;
  Connections connections_;
  std::map<uint64_t, uint64_t> by_session_;
  uint64_t next_connection_ = 1;
  size_t awaited_ = 0;
  bool stopping_ = false;
  bool orphans_possible_ = false;
  std::thread thread_;
};

}  // namespace tandem::daemon
