// File: http_loop.h
//
// `HttpLoop`: all connections of one HTTP server, on one thread that never waits for any of them. A
// connection costs a descriptor and at most some KiB until the request's head is complete. Only then is an
// answer asked for, which may take any time. So connections that are idle or slow hold nobody up, and their
// number is bounded, in all and by peer.
//
// A connection's states:
//   kHead    until the head has come, TLS's handshake before it; limits.head_time at most
//   kAsked   until the answer is there
//   kAnswer  until the answer is written; limits.answer_time at most
//   kEnding  until the peer has closed: a close before that may cost the peer the answer; limits.ending_time
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "common/unique_fd.h"
#include "daemon/observe/http_head.h"
#include "daemon/observe/http_password_limit.h"
#include "daemon/observe/http_security.h"
#include "daemon/observe/http_stream.h"
#include "tandem/status.h"

namespace tandem::daemon {

struct HttpLimits {
  size_t connections = 256;
  size_t per_peer = 192;  // connections from one address; all users of a node share its loopback address
  std::chrono::milliseconds head_time{3000};
  std::chrono::milliseconds answer_time{10000};
  std::chrono::milliseconds ending_time{1000};
  HttpPasswordLimits passwords = {};
};

// The whole of an answer as it goes over the wire, but for a body that `head_only` (HEAD) leaves out.
std::string HttpAnswerText(int code, const std::string& type, const std::string& body,
                           const std::vector<std::string>& headers, bool head_only);

class HttpLoop {
 public:
  // Called on the loop's thread with a request that has passed all checks. Somebody calls Answer with `id`
  // later, on any thread.
  using Ask = std::function<void(uint64_t id, HttpHead head)>;

  // Takes a socket that listens and does not block.
  static Result<std::unique_ptr<HttpLoop>> Create(UniqueFd listening, HttpLimits limits, Ask ask);
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  // Serves until Stop.
  void Run();
  // --- from any thread ---
  void Stop();
  // The answer of a connection that asked; one that has gone since takes none.
  void Answer(uint64_t id, std::string text);
  // For connections from now on.
  void SetSecurity(std::shared_ptr<const HttpSecurity> security);

 private:
  using Clock = std::chrono::steady_clock;
  enum class State : uint8_t { kHead, kAsked, kAnswer, kEnding };
  struct Connection {
    HttpStream stream;
    std::string peer;
    State state = State::kHead;
    Clock::time_point deadline;
    uint32_t watched = 0;   // events of epoll
    std::string text = {};  // the head so far; then the answer
    size_t written = 0;     // of the answer
  };
  using Connections = std::map<uint64_t, Connection>;  // ids grow: the oldest is first

  HttpLoop(UniqueFd listening, UniqueFd epoll, UniqueFd wake, HttpLimits limits, Ask ask);
  void Accept();
  // Makes room for one more connection of `peer`; false if there is none.
  bool MakeRoom(const std::string& peer);
  // Closes the connection that is missed least, of `peer` or, without one, of all; false if every one is
  // asked.
  bool DropOne(const std::optional<std::string>& peer);
  size_t CountOf(const std::string& peer) const;
  // Each moves a connection on as far as it goes; false: close it.
  bool Step(uint64_t id, Connection& connection);
  bool ReadHead(uint64_t id, Connection& connection);
  // The answer to a request that is not passed on; none: it may be asked.
  std::optional<std::string> RefusalOf(const Connection& connection, const HttpHead& request);
  bool WriteAnswer(Connection& connection);
  static bool AwaitEnd(Connection& connection);
  void Begin(Connection& connection, std::string text);
  bool Watch(uint64_t id, Connection& connection);
  void TakeAnswers();
  void CloseLate();
  int WaitMs() const;
  void ListenAgain(bool now);
  void Wake() const;

  const UniqueFd listening_, epoll_, wake_;
  const HttpLimits limits_;
  const Ask ask_;
  std::atomic<bool> stops_{false};
  Connections connections_;  // the loop's thread only, as all below but what mutex_ guards
  uint64_t last_id_ = 0;
  HttpPasswordLimit password_limit_;
  std::optional<Clock::time_point> paused_until_;  // no connection is taken: the process has no descriptors
  Mutex mutex_;
  std::vector<std::pair<uint64_t, std::string>> answers_ TANDEM_GUARDED_BY(mutex_);
  std::shared_ptr<const HttpSecurity> security_ TANDEM_GUARDED_BY(mutex_) =
      std::make_shared<const HttpSecurity>();
};

}  // namespace tandem::daemon
