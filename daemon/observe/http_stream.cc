#include "daemon/observe/http_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

namespace tandem::daemon {
namespace {

int TlsSize(size_t size) {
  return static_cast<int>(std::min(size, static_cast<size_t>(std::numeric_limits<int>::max())));
}

}  // namespace

HttpStream::HttpStream(UniqueFd socket, std::shared_ptr<const HttpSecurity> security)
    : security_(std::move(security)), socket_(std::move(socket)) {
  if (!security_->has_tls()) return;
  ERR_clear_error();
  tls_ = std::shared_ptr<SSL>(SSL_new(security_->tls()), &SSL_free);
  failed_ = tls_ == nullptr || SSL_set_fd(tls_.get(), socket_.get()) != 1;
  if (!failed_) SSL_set_accept_state(tls_.get());
}

long HttpStream::Outcome(int result) {
  if (result > 0) return result;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_WRITE: waits_to_write_ = true; return 0;
    case SSL_ERROR_WANT_READ: return 0;
    default: failed_ = true; return -1;  // OpenSSL allows no further call
  }
}

long HttpStream::Read(char* data, size_t size) {
  waits_to_write_ = false;
  if (failed_) return -1;
  if (tls_ != nullptr) {
    ERR_clear_error();
    return Outcome(SSL_read(tls_.get(), data, TlsSize(size)));
  }
  const ssize_t count = ::recv(socket_.get(), data, size, 0);
  if (count > 0) return count;
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return -1;
}

long HttpStream::Write(const char* data, size_t size) {
  waits_to_write_ = false;
  if (failed_) return -1;
  if (tls_ != nullptr) {
    ERR_clear_error();
    return Outcome(SSL_write(tls_.get(), data, TlsSize(size)));
  }
  const ssize_t count = ::send(socket_.get(), data, size, MSG_NOSIGNAL);
  if (count >= 0) return count;
  if (errno != EAGAIN && errno != EINTR) return -1;
  waits_to_write_ = true;
  return 0;
}

void HttpStream::EndWriting() {
  ERR_clear_error();
  if (tls_ != nullptr && !failed_) (void)SSL_shutdown(tls_.get());
  tls_.reset();
  failed_ = false;
  (void)::shutdown(socket_.get(), SHUT_WR);
}

}  // namespace tandem::daemon
