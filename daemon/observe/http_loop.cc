#include "daemon/observe/http_loop.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <iterator>

#include "common/descriptor_reserve.h"

namespace tandem::daemon {
namespace {

// Events of epoll that no connection has; all others have the id of one.
constexpr uint64_t kListening = UINT64_MAX, kWake = UINT64_MAX - 1;
// Connections that are taken in one turn: those that are there come first.
constexpr int kAcceptedAtOnce = 16;
constexpr std::chrono::milliseconds kPause{100};

const char* Phrase(int code) {
  switch (code) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    default: return "Service Unavailable";
  }
}

// The address that connections are counted by. One that owns an IPv6 network owns its 2^64 addresses.
std::string PeerOf(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& peer = reinterpret_cast<const sockaddr_in&>(address).sin_addr;
    return {reinterpret_cast<const char*>(&peer), sizeof peer};
  }
  if (address.ss_family != AF_INET6) return "";
  const in6_addr& peer = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  const auto* bytes = reinterpret_cast<const char*>(&peer);
  return IN6_IS_ADDR_V4MAPPED(&peer) ? std::string(bytes + 12, 4) : std::string(bytes, 8);
}

std::string ErrorText(int code, const std::string& why, std::vector<std::string> headers = {}) {
  return HttpAnswerText(code, "text/plain; charset=utf-8", why + "\n", headers, false);
}

}  // namespace

std::string HttpAnswerText(int code, const std::string& type, const std::string& body,
                           const std::vector<std::string>& headers, bool head_only) {
  std::string text = "HTTP/1.1 " + std::to_string(code) + " " + Phrase(code) + "\r\nContent-Type: " + type +
                     "\r\nContent-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n";
  for (const std::string& line : headers) text += line + "\r\n";
  text += "\r\n";
  if (!head_only) text += body;
  return text;
}

Result<std::unique_ptr<HttpLoop>> HttpLoop::Create(UniqueFd listening, HttpLimits limits, Ask ask) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return SystemError("epoll_create1", errno);
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return SystemError("eventfd", errno);
  for (const auto& [fd, id] : {std::pair(listening.get(), kListening), std::pair(wake.get(), kWake)}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) return SystemError("epoll_ctl", errno);
  }
  return std::unique_ptr<HttpLoop>(
      new HttpLoop(std::move(listening), std::move(epoll), std::move(wake), limits, std::move(ask)));
}

HttpLoop::HttpLoop(UniqueFd listening, UniqueFd epoll, UniqueFd wake, HttpLimits limits, Ask ask)
    : listening_(std::move(listening)),
      epoll_(std::move(epoll)),
      wake_(std::move(wake)),
      limits_(limits),
      ask_(std::move(ask)),
      password_limit_(limits.passwords) {}

void HttpLoop::Run() {
  // TLS writes with write(), which raises SIGPIPE in the thread that writes.
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  std::array<epoll_event, 64> events{};
  while (!stops_) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMs());
    bool accepts = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[static_cast<size_t>(i)].data.u64;
      if (id == kListening) {
        accepts = true;
      } else if (id == kWake) {
        uint64_t value;
        [[maybe_unused]] const ssize_t bytes = ::read(wake_.get(), &value, sizeof value);
      } else if (const auto found = connections_.find(id); found != connections_.end()) {
        Connection& connection = found->second;
        // A peer that has gone both ways takes no answer.
        const bool gone = (events[static_cast<size_t>(i)].events & (EPOLLERR | EPOLLHUP)) != 0;
        if (gone || !Step(id, connection)) connections_.erase(found);
      }
    }
    TakeAnswers();
    CloseLate();
    if (accepts) Accept();
    ListenAgain(false);
  }
  connections_.clear();
}

void HttpLoop::Wake() const {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
}

void HttpLoop::Stop() {
  stops_ = true;
  Wake();
}

void HttpLoop::Answer(uint64_t id, std::string text) {
  {
    MutexLock lock(mutex_);
    answers_.emplace_back(id, std::move(text));
  }
  Wake();
}

void HttpLoop::SetSecurity(std::shared_ptr<const HttpSecurity> security) {
  MutexLock lock(mutex_);
  security_ = std::move(security);
}

void HttpLoop::TakeAnswers() {
  std::vector<std::pair<uint64_t, std::string>> answers;
  {
    MutexLock lock(mutex_);
    answers.swap(answers_);
  }
  for (auto& [id, text] : answers) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    Begin(found->second, std::move(text));
    if (!Step(id, found->second)) connections_.erase(found);
  }
}

int HttpLoop::WaitMs() const {
  std::optional<Clock::time_point> next = paused_until_;
  for (const auto& [id, connection] : connections_) {
    if (connection.state == State::kAsked) continue;
    if (!next.has_value() || connection.deadline < *next) next = connection.deadline;
  }
  if (!next.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

void HttpLoop::CloseLate() {
  const auto now = Clock::now();
  std::erase_if(connections_, [&](const auto& each) {
    return each.second.state != State::kAsked && each.second.deadline <= now;
  });
}

void HttpLoop::ListenAgain(bool pause) {
  const auto now = Clock::now();
  if (!pause && (!paused_until_.has_value() || now < *paused_until_)) return;
  epoll_event event{.events = pause ? 0U : static_cast<uint32_t>(EPOLLIN), .data = {.u64 = kListening}};
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listening_.get(), &event);
  paused_until_ = pause ? std::optional(now + kPause) : std::nullopt;
}

size_t HttpLoop::CountOf(const std::string& peer) const {
  return static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(),
                                           [&](const auto& each) { return each.second.peer == peer; }));
}

bool HttpLoop::DropOne(const std::optional<std::string>& peer) {
  // Connections that have their answer go first, then those without a head, then those that read slowly.
  for (const State state : {State::kEnding, State::kHead, State::kAnswer}) {
    const auto found = std::find_if(connections_.begin(), connections_.end(), [&](const auto& each) {
      return each.second.state == state && (!peer.has_value() || each.second.peer == *peer);
    });
    if (found == connections_.end()) continue;
    connections_.erase(found);
    return true;
  }
  return false;
}

bool HttpLoop::MakeRoom(const std::string& peer) {
  if (CountOf(peer) >= limits_.per_peer && !DropOne(peer)) return false;
  return connections_.size() < limits_.connections || DropOne(std::nullopt);
}

void HttpLoop::Accept() {
  std::shared_ptr<const HttpSecurity> security;
  {
    MutexLock lock(mutex_);
    security = security_;
  }
  for (int taken = 0; taken < kAcceptedAtOnce; ++taken) {
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    UniqueFd socket(::accept4(listening_.get(), reinterpret_cast<sockaddr*>(&address), &length,
                              SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EAGAIN) return;
      // No descriptors or no memory: an old connection gives up its own, else the loop comes back later.
      if (!DropOne(std::nullopt)) ListenAgain(true);
      return;
    }
    const std::string peer = PeerOf(address);
    if (!LeavesReserve(socket.get(), DescriptorUse::kClient) && !DropOne(std::nullopt)) continue;
    if (!MakeRoom(peer)) continue;
    const uint64_t id = ++last_id_;
    auto [at, fresh] = connections_.emplace(id, Connection{.stream = HttpStream(std::move(socket), security),
                                                           .peer = peer,
                                                           .deadline = Clock::now() + limits_.head_time});
    epoll_event event{.events = 0, .data = {.u64 = id}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, at->second.stream.fd(), &event) != 0 ||
        !Step(id, at->second)) {
      connections_.erase(at);
    }
  }
}

bool HttpLoop::Watch(uint64_t id, Connection& connection) {
  uint32_t events = 0;
  if (connection.state != State::kAsked) events = connection.stream.waits_to_write() ? EPOLLOUT : EPOLLIN;
  if (events == connection.watched) return true;
  epoll_event event{.events = events, .data = {.u64 = id}};
  connection.watched = events;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.stream.fd(), &event) == 0;
}

bool HttpLoop::Step(uint64_t id, Connection& connection) {
  if (connection.state == State::kHead && !ReadHead(id, connection)) return false;
  if (connection.state == State::kAnswer && !WriteAnswer(connection)) return false;
  if (connection.state == State::kEnding && !AwaitEnd(connection)) return false;
  return Watch(id, connection);
}

void HttpLoop::Begin(Connection& connection, std::string text) {
  connection.state = State::kAnswer;
  connection.deadline = Clock::now() + limits_.answer_time;
  connection.text = std::move(text);
  connection.written = 0;
}

bool HttpLoop::ReadHead(uint64_t id, Connection& connection) {
  std::array<char, 2048> buffer;
  for (;;) {
    const long count = connection.stream.Read(buffer.data(), buffer.size());
    if (count < 0) return false;
    if (count == 0) return true;
    connection.text.append(buffer.data(), static_cast<size_t>(count));
    Result<std::optional<HttpHead>> head = ParseHttpHead(connection.text);
    if (!head.ok()) {
      Begin(connection,
            ErrorText(head.status().code() == Code::kResourceExhausted ? 431 : 400, head.status().message()));
      return true;
    }
    if (!head->has_value()) continue;
    HttpHead& request = **head;
    connection.text.clear();
    if (std::optional<std::string> refusal = RefusalOf(connection, request); refusal.has_value()) {
      Begin(connection, std::move(*refusal));
    } else {
      connection.state = State::kAsked;
      ask_(id, std::move(request));
    }
    return true;
  }
}

std::optional<std::string> HttpLoop::RefusalOf(const Connection& connection, const HttpHead& request) {
  const HttpSecurity& security = connection.stream.security();
  const auto now = Clock::now();
  // A browser asks without a password first, which is no guess.
  const bool guesses = security.has_password() && !request.authorization.empty();
  if (guesses) {
    const auto wait = std::chrono::ceil<std::chrono::seconds>(password_limit_.WaitOf(connection.peer, now));
    if (wait.count() > 0)
      return ErrorText(429, "too many wrong passwords from this address",
                       {"Retry-After: " + std::to_string(wait.count())});
  }
  if (!security.Allows(request.authorization)) {
    if (guesses) password_limit_.NoteWrong(connection.peer, now);
    return ErrorText(401, "a name and a password are needed",
                     {"WWW-Authenticate: Basic realm=\"Tandem\", charset=\"UTF-8\""});
  }
  if (request.method != "GET" && request.method != "HEAD")
    return ErrorText(405, "GET or HEAD", {"Allow: GET, HEAD"});
  return std::nullopt;
}

bool HttpLoop::WriteAnswer(Connection& connection) {
  while (connection.written < connection.text.size()) {
    const long count = connection.stream.Write(connection.text.data() + connection.written,
                                               connection.text.size() - connection.written);
    if (count < 0) return false;
    if (count == 0) return true;
    connection.written += static_cast<size_t>(count);
  }
  connection.text = std::string();
  connection.stream.EndWriting();
  connection.state = State::kEnding;
  connection.deadline = Clock::now() + limits_.ending_time;
  return true;
}

bool HttpLoop::AwaitEnd(Connection& connection) {
  std::array<char, 2048> buffer;
  for (int times = 0; times < 64; ++times) {
    const long count = connection.stream.Read(buffer.data(), buffer.size());
    if (count < 0) return false;
    if (count == 0) break;
  }
  return true;
}

}  // namespace tandem::daemon
