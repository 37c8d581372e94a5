#include "daemon/observe/http_server.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "common/exceptions.h"
#include "common/mutex.h"
#include "common/unique_fd.h"

namespace tandem::daemon {
namespace {

// Threads that make answers. One that waits for an engine leaves the others.
constexpr int kWorkers = 4;
constexpr int kBacklog = 512;

// The first address that `listen` names, an IPv4 one if there is any.
Result<UniqueFd> Listen(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  if (colon == std::string::npos) return InvalidArgument("no port");
  std::string host = listen.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), listen.substr(colon + 1).c_str(), &hints, &list);
      error != 0) {
    return NotFound(::gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(list, &::freeaddrinfo);
  const addrinfo* found = list;
  while (found != nullptr && found->ai_family != AF_INET) found = found->ai_next;
  if (found == nullptr) found = list;
  UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return SystemError("socket", errno);
  const int on = 1;
  // Connections of a server before this one may still be closing.
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (found->ai_family == AF_INET6)
    (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  if (::bind(socket.get(), found->ai_addr, found->ai_addrlen) != 0) return SystemError("bind", errno);
  if (::listen(socket.get(), kBacklog) != 0) return SystemError("listen", errno);
  return socket;
}

int PortOf(int socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  // Both families have the port at one place.
  return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

struct HttpServer::Parts {
  struct Request {
    uint64_t id;
    HttpHead head;
  };

  Status StartThreads();
  void Work();
  std::string AnswerTo(const HttpHead& head) const;

  int port = 0;
  std::vector<HttpRoute> routes;
  std::unique_ptr<HttpLoop> loop;
  Mutex mutex;
  std::condition_variable changed;
  std::deque<Request> requests TANDEM_GUARDED_BY(mutex);  // no more than connections
  bool stops TANDEM_GUARDED_BY(mutex) = false;
  std::vector<std::thread> threads;
};

std::string HttpServer::Parts::AnswerTo(const HttpHead& head) const {
  const auto route =
      std::find_if(routes.begin(), routes.end(), [&](const auto& each) { return each.path == head.path; });
  HttpAnswer answer{.code = 404, .body = "nothing is here\n"};
  if (route != routes.end()) answer = route->answer(head.host);
  return HttpAnswerText(answer.code, answer.type, answer.body, answer.headers, head.method == "HEAD");
}

void HttpServer::Parts::Work() {
  for (;;) {
    MutexLock lock(mutex);
    while (requests.empty() && !stops) changed.wait(lock.fused());
    if (stops) return;
    const Request request = std::move(requests.front());
    requests.pop_front();
    lock.Unlock();
    std::string text;
    try {
      text = AnswerTo(request.head);
    } catch (...) {
      text = HttpAnswerText(503, "text/plain", StatusOfException().message() + "\n", {}, false);
    }
    loop->Answer(request.id, std::move(text));
    lock.Lock();
  }
}

Status HttpServer::Parts::StartThreads() {
  for (int i = 0; i <= kWorkers; ++i) {
    TANDEM_ASSIGN_OR_RETURN(std::thread thread,
                            StartThread("HTTP", [this, i] { i == 0 ? loop->Run() : Work(); }));
    threads.push_back(std::move(thread));
  }
  return Status::Ok();
}

HttpServer::HttpServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

HttpServer::~HttpServer() {
  parts_->loop->Stop();
  {
    MutexLock lock(parts_->mutex);
    parts_->stops = true;
  }
  parts_->changed.notify_all();
  for (std::thread& thread : parts_->threads) thread.join();
}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& listen,
                                                      std::vector<HttpRoute> routes, HttpLimits limits,
                                                      std::shared_ptr<const HttpSecurity> security) {
  Result<UniqueFd> socket = Listen(listen);
  if (!socket.ok()) return Unavailable("cannot listen at " + listen + ": " + socket.status().message());
  auto parts = std::make_unique<Parts>();
  Parts* own = parts.get();
  parts->port = PortOf(socket->get());
  parts->routes = std::move(routes);
  const auto ask = [own](uint64_t id, HttpHead head) {
    MutexLock lock(own->mutex);
    own->requests.push_back({id, std::move(head)});
    own->changed.notify_one();
  };
  TANDEM_ASSIGN_OR_RETURN(parts->loop, HttpLoop::Create(std::move(*socket), limits, ask));
  parts->loop->SetSecurity(std::move(security));
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(parts)));
  TANDEM_RETURN_IF_ERROR(own->StartThreads());  // the server's end ends those that are there
  return server;
}

int HttpServer::port() const { return parts_->port; }

void HttpServer::SetSecurity(std::shared_ptr<const HttpSecurity> security) {
  parts_->loop->SetSecurity(std::move(security));
}

}  // namespace tandem::daemon
