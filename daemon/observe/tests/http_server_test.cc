#include "daemon/observe/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// From `own`, one of the loopback's addresses.
UniqueFd Connect(int port, const char* own = "127.0.0.1") {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::inet_pton(AF_INET, own, &address.sin_addr), 1);
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  timeval limit{60, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  return socket;
}

UniqueFd Send(int port, const std::string& request, const char* from = "127.0.0.1") {
  UniqueFd socket = Connect(port, from);
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  return socket;
}

// Reads what has come. A stop of the process interrupts a socket with a limit.
ssize_t Receive(const UniqueFd& socket, char* buffer, size_t bytes) {
  ssize_t length;
  do length = ::recv(socket.get(), buffer, bytes, 0);
  while (length < 0 && errno == EINTR);
  return length;
}

std::string ReadAll(const UniqueFd& socket) {
  std::string answer;
  std::array<char, 4096> buffer;
  ssize_t length;
  while ((length = Receive(socket, buffer.data(), buffer.size())) > 0)
    answer.append(buffer.data(), static_cast<size_t>(length));
  return answer;
}

std::string Ask(int port, const std::string& request, const char* from = "127.0.0.1") {
  return ReadAll(Send(port, request, from));
}

std::string Get(int port, const std::string& path) {
  return Ask(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

Result<std::unique_ptr<HttpServer>> StartOne(const std::string& listen) {
  return HttpServer::Start(listen,
                           {{"/livez", [](const std::string&) { return HttpAnswer{.body = "live\n"}; }}});
}

TEST(HttpServerTest, ServesItsPathsOnly) {
  auto server = StartOne("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const int port = (*server)->port();
  ASSERT_GT(port, 0);
  EXPECT_THAT(Get(port, "/livez"), testing::AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\r\n\r\nlive\n")));
  EXPECT_THAT(Get(port, "/livez?verbose"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(
      Ask(port, "HEAD /livez HTTP/1.1\r\nHost: x\r\n\r\n"),
      testing::AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Length: 5"), Not(HasSubstr("live\n"))));
  EXPECT_THAT(Get(port, "/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get(port, "/livez/more"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Ask(port, "POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
}

TEST(HttpServerTest, RoutesGetTheHostAndSetHeaders) {
  auto server = HttpServer::Start(
      "127.0.0.1:0",
      {{"/", [](const std::string& host) {
          return HttpAnswer{.code = 403, .body = "<" + host + ">", .headers = {"X-One: 1", "X-Two: 2"}};
        }}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_THAT(Get((*server)->port(), "/"),
              testing::AllOf(StartsWith("HTTP/1.1 403 Forbidden\r\n"),
                             HasSubstr("\r\nX-One: 1\r\nX-Two: 2\r\n"), HasSubstr("\r\n\r\n<x>")));
  EXPECT_THAT(Ask((*server)->port(), "GET / HTTP/1.0\r\n\r\n"), HasSubstr("\r\n\r\n<>"));
  EXPECT_THAT(Get((*server)->port(), "/livez"), StartsWith("HTTP/1.1 404"));
}

TEST(HttpServerTest, IdleConnectionsDoNotHoldScrapesUp) {
  const std::chrono::minutes head_time{1};
  auto server = HttpServer::Start(
      "127.0.0.1:0", {{"/livez", [](const std::string&) { return HttpAnswer{.body = "live\n"}; }}},
      {.head_time = head_time});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  std::vector<UniqueFd> idle;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < 300; ++i) {
    idle.push_back(Connect((*server)->port()));
    // Every other one has begun to ask, and goes on too slowly.
    if (i % 2 == 0) {
      EXPECT_EQ(::send(idle.back().get(), "GET /met", 8, MSG_NOSIGNAL), 8);
    }
  }
  for (int i = 0; i < 3; ++i) EXPECT_THAT(Get((*server)->port(), "/livez"), StartsWith("HTTP/1.1 200"));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, head_time)
      << "a scrape has waited for an idle one's end";
}

TEST(HttpServerTest, IdleAndSlowConnectionsAreClosed) {
  auto server = StartOne("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const UniqueFd idle = Connect((*server)->port()), slow = Connect((*server)->port());
  std::atomic<bool> closed{false};
  std::thread writer([&] {  // a byte at a time
    while (!closed && ::send(slow.get(), "G", 1, MSG_NOSIGNAL) == 1)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  std::array<char, 256> buffer;
  for (const UniqueFd* socket : {&idle, &slow}) {
    ssize_t length;
    while ((length = Receive(*socket, buffer.data(), buffer.size())) > 0) {
    }
    // A close over unread bytes is a reset. A socket that stays open gives EAGAIN after Connect's time.
    EXPECT_TRUE(length == 0 || errno == ECONNRESET) << errno;
  }
  closed = true;
  writer.join();
}

// Whether the peer has closed, now or within the time of Connect.
bool IsClosed(const UniqueFd& socket) {
  char byte;
  return Receive(socket, &byte, 1) == 0;
}

bool IsOpen(const UniqueFd& socket) {
  char byte;
  return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

Result<std::unique_ptr<HttpServer>> StartWithLimits(size_t connections, size_t per_peer) {
  const std::chrono::hours none{1};
  return HttpServer::Start("127.0.0.1:0", {{"/", [](const std::string&) { return HttpAnswer{}; }}},
                           {.connections = connections,
                            .per_peer = per_peer,
                            .head_time = none,
                            .answer_time = none,
                            .ending_time = none});
}

TEST(HttpServerTest, TheOldestConnectionWithoutAHeadGoesFirst) {
  for (const auto& [connections, per_peer] : {std::pair(4, 100), std::pair(100, 4)}) {
    auto server = StartWithLimits(static_cast<size_t>(connections), static_cast<size_t>(per_peer));
    ASSERT_TRUE(server.ok()) << server.status().ToString();
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 5; ++i) idle.push_back(Connect((*server)->port()));
    EXPECT_TRUE(IsClosed(idle[0]));
    for (size_t i = 1; i < 5; ++i) EXPECT_TRUE(IsOpen(idle[i])) << i;
    EXPECT_THAT(Get((*server)->port(), "/"), StartsWith("HTTP/1.1 200"));
    EXPECT_TRUE(IsClosed(idle[1]));
    EXPECT_TRUE(IsOpen(idle[4]));
  }
}

TEST(HttpServerTest, AnotherAddressKeepsItsConnections) {
  auto server = StartWithLimits(100, 4);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const UniqueFd other = Connect((*server)->port(), "127.0.0.2");
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 8; ++i) idle.push_back(Connect((*server)->port()));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(IsClosed(idle[i])) << i;
  EXPECT_TRUE(IsOpen(other));
}

TEST(HttpServerTest, AnAnswerThatIsAwaitedIsNotDropped) {
  std::promise<void> may_answer;
  const std::shared_future<void> answers = may_answer.get_future().share();
  auto server = HttpServer::Start("127.0.0.1:0",
                                  {{"/",
                                    [answers](const std::string&) {
                                      answers.wait();
                                      return HttpAnswer{.body = "late"};
                                    }}},
                                  {.connections = 2, .head_time = std::chrono::hours(1)});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const UniqueFd first = Send((*server)->port(), "GET / HTTP/1.1\r\n\r\n");
  const UniqueFd second = Send((*server)->port(), "GET / HTTP/1.1\r\n\r\n");
  // Both others wait for their answers, so there is no room for a third.
  EXPECT_TRUE(IsClosed(Connect((*server)->port())));
  may_answer.set_value();
  EXPECT_THAT(ReadAll(first), HasSubstr("late"));
  EXPECT_THAT(ReadAll(second), HasSubstr("late"));
}

TEST(HttpServerTest, WrongPasswordsOfAnAddressAreLimited) {
  std::string directory = testing::TempDir() + "/passwords.XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  const std::string path = directory + "/password";
  std::ofstream(path) << "p";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  auto security = HttpSecurity::Load({.user = "u", .password = path});
  std::filesystem::remove_all(directory);
  ASSERT_TRUE(security.ok()) << security.status().ToString();
  auto server = HttpServer::Start("127.0.0.1:0", {{"/", [](const std::string&) { return HttpAnswer{}; }}},
                                  {.passwords = {.burst = 3, .interval = std::chrono::hours(1)}}, *security);
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const auto get = [&](const std::string& credentials, const char* from = "127.0.0.1") {
    const std::string field = credentials.empty() ? "" : "Authorization: Basic " + credentials + "\r\n";
    return Ask((*server)->port(), "GET / HTTP/1.1\r\n" + field + "\r\n", from);
  };
  const std::string right = "dTpw" /* u:p */, wrong = "dTpx" /* u:q */;
  for (int i = 0; i < 10; ++i) EXPECT_THAT(get(""), StartsWith("HTTP/1.1 401")) << "no guess";
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(get(right), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(get(wrong), StartsWith("HTTP/1.1 401"));
  }
  // The right password is refused as well: otherwise the answer would tell it from the wrong ones.
  for (const std::string& any : {wrong, right})
    EXPECT_THAT(get(any), testing::AllOf(StartsWith("HTTP/1.1 429"), HasSubstr("\r\nRetry-After: ")));
  EXPECT_THAT(get(right, "127.0.0.2"), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServerTest, AHalfClosedConnectionGetsItsAnswer) {
  auto server = StartOne("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const UniqueFd socket = Send((*server)->port(), "GET /livez HTTP/1.1\r\n\r\n");
  ASSERT_EQ(::shutdown(socket.get(), SHUT_WR), 0);
  EXPECT_THAT(ReadAll(socket), HasSubstr("live"));
}

TEST(HttpServerTest, WhatIsNoRequestIsRefused) {
  auto server = StartOne("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_THAT(Ask((*server)->port(), "hello\r\n\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(Ask((*server)->port(), std::string(kMaxHttpHead, 'x')), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask((*server)->port(), "DELETE /livez HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
}

TEST(HttpServerTest, ALongAnswerArrivesWhole) {
  const std::string body(16 << 20, 'x');
  auto server =
      HttpServer::Start("127.0.0.1:0", {{"/", [&](const std::string&) { return HttpAnswer{.body = body}; }}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const std::string answer = Get((*server)->port(), "/");
  EXPECT_EQ(answer.size() - answer.find("\r\n\r\n") - 4, body.size());
}

TEST(HttpServerTest, AThrowingRouteIsAnAnswer) {
  auto server = HttpServer::Start(
      "127.0.0.1:0", {{"/", [](const std::string&) -> HttpAnswer { throw std::runtime_error("a cause"); }}});
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  EXPECT_THAT(Get((*server)->port(), "/"), testing::AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("a cause")));
}

TEST(HttpServerTest, ATakenPortIsAnErrorThatNamesIt) {
  auto server = StartOne("127.0.0.1:0");
  ASSERT_TRUE(server.ok()) << server.status().ToString();
  const std::string taken = "127.0.0.1:" + std::to_string((*server)->port());
  auto second = StartOne(taken);
  EXPECT_EQ(second.status().code(), Code::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(taken));
}

}  // namespace
}  // namespace tandem::daemon
