#include "daemon/observe/http_head.h"

#include <gtest/gtest.h>

#include <string>

namespace tandem::daemon {
namespace {

HttpHead Parse(const std::string& text) {
  const Result<std::optional<HttpHead>> head = ParseHttpHead(text);
  EXPECT_TRUE(head.ok()) << text << ": " << head.status().ToString();
  EXPECT_TRUE(head.ok() && head->has_value()) << text;
  return head.ok() ? head->value_or(HttpHead()) : HttpHead();
}

Code Refused(const std::string& text) { return ParseHttpHead(text).status().code(); }

TEST(HttpHeadTest, ReadsWhatIsAsked) {
  const HttpHead head = Parse(
      "GET /metrics?x=/y HTTP/1.1\r\nUser-Agent: a: b\r\nhOsT: \tnode:9464 \r\n"
      "AUTHORIZATION: Basic dTpw\r\nX-Empty:\r\n\r\nbody");
  EXPECT_EQ(head.method, "GET");
  EXPECT_EQ(head.path, "/metrics");
  EXPECT_EQ(head.host, "node:9464");
  EXPECT_EQ(head.authorization, "Basic dTpw");
  EXPECT_EQ(Parse("HEAD / HTTP/1.0\r\n\r\n").host, "");
}

TEST(HttpHeadTest, ATargetWithAHostNamesTheHost) {
  const HttpHead head = Parse("GET http://one:1/livez HTTP/1.1\r\nHost: two:2\r\n\r\n");
  EXPECT_EQ(head.host, "one:1");
  EXPECT_EQ(head.path, "/livez");
  EXPECT_EQ(Parse("GET https://one HTTP/1.1\r\n\r\n").path, "/");
}

TEST(HttpHeadTest, EveryBeginningWaitsForTheRest) {
  const std::string text = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  for (size_t length = 0; length < text.size(); ++length) {
    const auto head = ParseHttpHead(text.substr(0, length));
    EXPECT_TRUE(head.ok() && !head->has_value()) << length;
  }
}

TEST(HttpHeadTest, WhatNoClientMeansIsRefused) {
  for (const char* line :
       {"", "GET", "GET /", "GET / HTTP/2.0", "GET  / HTTP/1.1", "GET / x HTTP/1.1", " GET / HTTP/1.1",
        "G(T / HTTP/1.1", "GET / HTTP/1.1\r\nno field", "GET / HTTP/1.1\r\n folded: x",
        "GET / HTTP/1.1\r\na b: x", "GET / HTTP/1.1\r\n: x", "GET / HTTP/1.1\r\nHost: a\r\nHost: b",
        "GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b", "GET / HTTP/1.1\r\nHost: a\nX: b",
        "GET /\x01 HTTP/1.1"}) {
    EXPECT_EQ(Refused(line + std::string("\r\n\r\n")), Code::kInvalidArgument) << line;
  }
  EXPECT_EQ(Refused("GET / HTTP/1.1\r\nHost: a" + std::string(1, 0) + "\r\n\r\n"), Code::kInvalidArgument);
}

TEST(HttpHeadTest, ALongHeadIsRefused) {
  const std::string begin = "GET / HTTP/1.1\r\nX: ";
  EXPECT_EQ(Refused(begin + std::string(kMaxHttpHead, 'x')), Code::kResourceExhausted);
  Parse(begin + std::string(kMaxHttpHead - begin.size() - 4, 'x') + "\r\n\r\n");
  EXPECT_EQ(Refused(begin + std::string(kMaxHttpHead - begin.size() - 3, 'x') + "\r\n\r\n"),
            Code::kResourceExhausted);
}

TEST(HttpHeadTest, DecodesUserAndPassword) {
  EXPECT_EQ(BasicCredentials("Basic dTpw"), "u:p");
  EXPECT_EQ(BasicCredentials("bAsIc  dTpw "), "u:p");
  EXPECT_EQ(BasicCredentials("Basic dXNlcjpwYXNz"), "user:pass");
  EXPECT_EQ(BasicCredentials("Basic dTpwYQ=="), "u:pa");
  EXPECT_EQ(BasicCredentials("Basic dTpwYXM="), "u:pas");
  EXPECT_EQ(BasicCredentials("Basic dTo="), "u:");
  for (const char* bad : {"", "Basic", "Basic ", "dTpw", "Bearer dTpw", "Basic dTp", "Basic d*pw",
                          "Basic ====", "Basic dXVw", "Basic dT pw"}) {
    EXPECT_EQ(BasicCredentials(bad), "") << bad;
  }
}

}  // namespace
}  // namespace tandem::daemon
