#include "common/fd_socket.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/shared_memory.h"

namespace tandem {
namespace {

// As many as the kernel lets a packet carry. It would close the rest, on our thread.
constexpr size_t kMaxFdsReceived = 253;

// Precedes every body. `outline` says that the body is in the last descriptor, a sealed memfd.
struct Header {
  uint32_t magic;
  uint32_t outline;
  uint64_t body_bytes;
};
constexpr uint32_t kMagic = 0x544e444d;  // "TNDM"

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("socket path must have 1 to " + std::to_string(sizeof(address.sun_path) - 1) +
                           " bytes: '" + path + "'");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

Result<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SystemError("socket", errno);
  return fd;
}

Result<UniqueFd> OutlineBody(const std::string& body) {
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, CreateSealedMemfd("tandem-message", body.size()));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, body.size(), true));
  std::memcpy(mapping.data(), body.data(), body.size());
  return fd;
}

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

Status SendMessage(int socket, const std::string& body, const std::vector<int>& fds, bool wait) {
  std::vector<int> all = fds;
  UniqueFd outline;
  if (body.size() > kInlineBytes) {
    TANDEM_ASSIGN_OR_RETURN(outline, OutlineBody(body));
    all.push_back(outline.get());
  }
  if (all.size() > kMaxFdsPerMessage) {
    return InvalidArgument("a message carries at most " + std::to_string(kMaxFdsPerMessage) + " descriptors");
  }
  Header header{kMagic, outline.valid() ? 1u : 0u, body.size()};
  std::array<iovec, 2> parts{
      {{&header, sizeof(header)}, {const_cast<char*>(body.data()), outline.valid() ? 0 : body.size()}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFdsPerMessage * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  if (!all.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(all.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(all.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), all.data(), all.size() * sizeof(int));
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | (wait ? 0 : MSG_DONTWAIT)) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return ResourceExhausted("the peer does not read its messages");
    return SystemError("sendmsg", errno);
  }
  return Status::Ok();
}

namespace {

// The body of a packet of `received` bytes, `body` what came behind its header; takes the outline's
// descriptor off `fds`.
Result<std::string> BodyOf(const Header& header, size_t received, std::string body, size_t max_bytes,
                           std::vector<UniqueFd>* fds) {
  if (received < sizeof(header) || header.magic != kMagic || header.outline > 1) {
    return InvalidArgument("malformed message header");
  }
  const size_t inline_bytes = received - sizeof(header);
  if (header.body_bytes > max_bytes) return InvalidArgument("message body too large");
  if (header.outline == 0) {
    if (inline_bytes != header.body_bytes) return InvalidArgument("message length does not match its header");
    body.resize(inline_bytes);
    return body;
  }
  if (fds->empty() || inline_bytes != 0 || header.body_bytes == 0)
    return InvalidArgument("message without its body");
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fds->back().get(), header.body_bytes));
  const UniqueFd outline = std::move(fds->back());  // memory, which closes at once
  fds->pop_back();
  // Not by a mapping: what its owner takes out of the memory meanwhile reads as zeros, and does no harm.
  body.resize(header.body_bytes);
  for (size_t done = 0; done < body.size();) {
    const ssize_t n =
        ::pread(outline.get(), body.data() + done, body.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return InvalidArgument("the message's body cannot be read");
    done += static_cast<size_t>(n);
  }
  return body;
}

}  // namespace

Result<FdMessage> ReceiveMessage(int socket, size_t max_bytes, std::vector<UniqueFd>* refused) {
  Header header{};
  std::string body(kInlineBytes, '\0');
  std::array<iovec, 2> parts{{{&header, sizeof(header)}, {body.data(), body.size()}}};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxFdsReceived * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t received;
  do {
    received = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return Unavailable("no message is waiting").WithDetail({.reason = "WOULD_BLOCK", .who = {}, .field = {}});
  }
  if (received < 0) return SystemError("recvmsg", errno);
  std::vector<UniqueFd> fds = TakeFds(message);
  if (received == 0)
    return Unavailable("the peer closed").WithDetail({.reason = "EOF", .who = {}, .field = {}});
  Result<std::string> whole = InvalidArgument("truncated message");
  // The buffer takes as many as a packet has: the kernel leaves some out where this process may not have
  // more.
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    whole = SystemError("a message came without all its descriptors", EMFILE);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0 && fds.size() <= kMaxFdsPerMessage) {
    whole = BodyOf(header, static_cast<size_t>(received), std::move(body), max_bytes, &fds);
  }
  if (!whole.ok()) {
    if (refused != nullptr) *refused = std::move(fds);
    return whole.status();
  }
  return FdMessage{std::move(*whole), std::move(fds)};
}

Result<std::pair<UniqueFd, UniqueFd>> SeqpacketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return SystemError("socketpair", errno);
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

Result<UniqueFd> ListenSeqpacket(const std::string& path, unsigned mode) {
  TANDEM_ASSIGN_OR_RETURN(sockaddr_un address, Address(path));
  if (::access(path.c_str(), F_OK) == 0) {
    Result<UniqueFd> live = ConnectSeqpacket(path);
    if (live.ok()) return AlreadyExists("another daemon answers at " + path);
    ::unlink(path.c_str());
  }
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  // fchmod before bind sets the rights that the file is born with: no moment in which anybody may connect.
  ::fchmod(fd.get(), mode);
  mode_t old_mask = ::umask(~mode & 0777);
  int rc = ::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  int bind_error = errno;
  ::umask(old_mask);
  if (rc != 0) return SystemError("bind " + path, bind_error);
  ::chmod(path.c_str(), mode);
  if (::listen(fd.get(), 128) != 0) return SystemError("listen " + path, errno);
  return fd;
}

Status NoPermission(const std::string& path, int error) {
  return PermissionDenied("no permission to connect to " + path + ": " + std::strerror(error) +
                          "; look at its group and at those of its directories")
      .WithDetail({.reason = "NO_PERMISSION"});
}

Status CheckMayConnect(const std::string& path) {
  if (::faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) == 0) return Status::Ok();
  const int error = errno;
  return error == EACCES || error == EPERM ? NoPermission(path, error) : Status::Ok();
}

Result<UniqueFd> ConnectSeqpacket(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(sockaddr_un address, Address(path));
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    if (error == EACCES || error == EPERM) return NoPermission(path, error);
    return Unavailable("no daemon answers at " + path + ": " + std::strerror(error));
  }
  return fd;
}

}  // namespace tandem
