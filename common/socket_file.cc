#include "common/socket_file.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "common/unix_group.h"

namespace tandem {

Status RemoveStaleSocket(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) {
    return errno == ENOENT ? Status::Ok() : SystemError("stat " + path, errno);
  }
  if (!S_ISSOCK(status.st_mode)) return AlreadyExists(path + " exists and is no socket");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument("the socket path " + path + " is too long");
  path.copy(address.sun_path, path.size());
  for (int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    UniqueFd probe(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!probe.valid()) return SystemError("socket", errno);
    // EAGAIN: a listener with a full backlog, alive all the same.
    if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 ||
        errno == EAGAIN) {
      return AlreadyExists("another process answers at " + path);
    }
  }
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return SystemError("remove " + path, errno);
  return Status::Ok();
}

Status ShareSocket(const std::string& path, const std::string& group, unsigned mode) {
  Status outcome;
  if (!group.empty()) {
    Result<gid_t> gid = FindGroup(group);
    if (!gid.ok()) {
      outcome = gid.status();
    } else if (::chown(path.c_str(), static_cast<uid_t>(-1), *gid) != 0) {
      outcome = SystemError("give " + path + " to group " + group, errno);
    }
  }
  if (::chmod(path.c_str(), mode) != 0) return SystemError("chmod " + path, errno);
  return outcome;
}

Result<SocketFile> SocketFile::Listen(const SocketFileOptions& options) {
  const std::string& path = options.path;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return InvalidArgument("the socket path " + path + " is too long");
  TANDEM_RETURN_IF_ERROR(RemoveStaleSocket(path));
  path.copy(address.sun_path, path.size());
  SocketFile file;
  file.path_ = path;
  file.socket_ = UniqueFd(::socket(AF_UNIX, options.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file.socket_.valid()) return SystemError("socket", errno);
  const mode_t before = ::umask(0177);
  const int bound = ::bind(file.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  const int error = errno;
  ::umask(before);
  if (bound != 0) return SystemError("bind " + path, error);
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0) return SystemError("stat " + path, errno);
  file.device_ = status.st_dev;
  file.inode_ = status.st_ino;
  if (::listen(file.fd(), SOMAXCONN) != 0) return SystemError("listen " + path, errno);
  const Status shared = ShareSocket(path, options.group, options.mode);
  if (shared.code() == Code::kNotFound) {
    file.group_missing_ = shared;
  } else {
    TANDEM_RETURN_IF_ERROR(shared);
  }
  return file;
}

bool SocketFile::IsThere() const {
  struct stat status;
  return ::lstat(path_.c_str(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
}

void SocketFile::Unlink() {
  if (socket_.valid() && IsThere()) ::unlink(path_.c_str());
}

}  // namespace tandem
