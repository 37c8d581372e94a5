// File: fd_socket.h
//
// Unix sockets of type SOCK_SEQPACKET that carry one message and up to `kMaxFdsPerMessage` descriptors at a
// time: the lease socket between client and tandemd, and the socketpair between tandemd and an engine. Bodies
// over `kInlineBytes` travel in a sealed memfd of their own, so that a message has no size limit but the
// receiver's.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

inline constexpr size_t kMaxFdsPerMessage = 64;
inline constexpr size_t kInlineBytes = 32 * 1024;

struct FdMessage {
  std::string body;
  std::vector<UniqueFd> fds;
};

// Sends one message. `fds` are duplicated by the kernel; the caller keeps its own. Thread-safe: one call is
// one packet. `wait` false: RESOURCE_EXHAUSTED at once if the peer's buffer is full. UNAVAILABLE if the peer
// is gone.
Status SendMessage(int socket, const std::string& body, const std::vector<int>& fds = {}, bool wait = true);

// Receives one message. Blocks unless the socket is non-blocking, then UNAVAILABLE with reason "WOULD_BLOCK".
// End of file is UNAVAILABLE with reason "EOF". A truncated body or descriptor list, or a body over
// `max_bytes`, is INVALID_ARGUMENT. Descriptors that came with it are closed, or moved to `refused` if that
// is given: closing the last reference of an untrusted peer's descriptor may take long.
Result<FdMessage> ReceiveMessage(int socket, size_t max_bytes = 64 * 1024 * 1024,
                                 std::vector<UniqueFd>* refused = nullptr);

// A connected pair of SOCK_SEQPACKET sockets, close-on-exec.
Result<std::pair<UniqueFd, UniqueFd>> SeqpacketPair();

// Listens at `path`, replacing a stale socket there but never a live one (ALREADY_EXISTS if somebody
// answers). `mode` is applied before the first client can connect. INVALID_ARGUMENT if the path does not fit
// in sockaddr_un.
Result<UniqueFd> ListenSeqpacket(const std::string& path, unsigned mode);

// PERMISSION_DENIED, reason NO_PERMISSION: a connection to `path` failed with `error`, EACCES or EPERM.
Status NoPermission(const std::string& path, int error);
// NoPermission if this process may not connect to the socket at `path`; OK if it may, or if nothing is there.
Status CheckMayConnect(const std::string& path);

// Connects to a listener at `path`; UNAVAILABLE names the path if nobody listens. NoPermission.
Result<UniqueFd> ConnectSeqpacket(const std::string& path);

}  // namespace tandem
