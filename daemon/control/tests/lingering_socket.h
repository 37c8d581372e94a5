// File: lingering_socket.h
//
// `LingeringSocket`: a descriptor that takes long to close: a TCP socket with unsent data whose peer does not
// read.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <vector>

#include "common/unique_fd.h"

namespace tandem::daemon {

struct LingeringSocket {
  // The last one to close `end` waits for `time`.
  explicit LingeringSocket(std::chrono::seconds time) {
    const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener.get(), name, bytes), 0);
    EXPECT_EQ(::listen(listener.get(), 1), 0);
    EXPECT_EQ(::getsockname(listener.get(), name, &bytes), 0);
    end = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(end.get(), name, bytes), 0);
    peer = UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::vector<char> data(1 << 20);
    while (::send(end.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
    Linger(time);
  }
  ~LingeringSocket() { Linger(std::chrono::seconds(0)); }  // what is left of it does not hold up the test
  LingeringSocket(LingeringSocket&&) = default;

  void Linger(std::chrono::seconds time) {
    if (!end.valid()) return;
    const linger lingers{.l_onoff = 1, .l_linger = static_cast<int>(time.count())};
    EXPECT_EQ(::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &lingers, sizeof(lingers)), 0);
  }

  UniqueFd end, peer;
};

}  // namespace tandem::daemon
