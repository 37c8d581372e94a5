// File: http_stream.h
//
// `HttpStream`: bytes to and from one connection that never blocks, with TLS or without. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>

#include "common/unique_fd.h"
#include "daemon/observe/http_security.h"

struct ssl_st;

namespace tandem::daemon {

class HttpStream {
 public:
  // Takes a connected socket that does not block. The handshake is a part of the first reads.
  HttpStream(UniqueFd socket, std::shared_ptr<const HttpSecurity> security);

  // Bytes moved; 0: none now; -1: the connection has ended, or what came is no TLS.
  long Read(char* data, size_t size);
  long Write(const char* data, size_t size);
  // Whether the last call that moved nothing waits until the socket takes bytes. TLS may write in a read.
  bool waits_to_write() const { return waits_to_write_; }
  // Reports the end of the answer to the peer. Reads only find the connection's end from now on.
  void EndWriting();

  int fd() const { return socket_.get(); }
  const HttpSecurity& security() const { return *security_; }

 private:
  long Outcome(int result);

  std::shared_ptr<const HttpSecurity> security_;
  UniqueFd socket_;
  std::shared_ptr<ssl_st> tls_;  // null: plain
  bool failed_ = false, waits_to_write_ = false;
};

}  // namespace tandem::daemon
