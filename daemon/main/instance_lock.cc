#include "daemon/main/instance_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "common/unix_group.h"

namespace tandem::daemon {

Result<UniqueFd> LockRuntimeDirectory(const std::string& directory) {
  std::error_code error;
  bool made = std::filesystem::create_directories(directory, error);
  if (error) return SystemError("make the runtime directory " + directory, error.value());
  if (made) ::chmod(directory.c_str(), 0755);
  std::string path = directory + "/lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock.valid()) return SystemError("open " + path, errno);
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    ssize_t length = ::pread(lock.get(), pid, sizeof(pid) - 1, 0);
    std::string owner = length > 0 ? " (pid " + std::string(pid, pid + length) + ")" : "";
    return AlreadyExists("another tandemd" + owner + " runs in " + directory);
  }
  std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    return SystemError("write " + path, errno);
  }
  return lock;
}

Status CheckAdminDirectory(const std::string& directory, const std::string& clients) {
  std::error_code error;
  const auto inner = std::filesystem::weakly_canonical(directory, error);
  const auto outer = error ? std::filesystem::path() : std::filesystem::weakly_canonical(clients, error);
  if (error) return SystemError("resolve " + directory + " and " + clients, error.value());
  for (auto parent = inner;; parent = parent.parent_path()) {
    // By name, and by what is there: a bind mount gives one directory two names.
    const bool same =
        parent == outer || (std::filesystem::exists(parent, error) && std::filesystem::exists(outer, error) &&
                            std::filesystem::equivalent(parent, outer, error));
    if (same) {
      return FailedPrecondition("admin_dir = \"" + directory + "\" is runtime_dir = \"" + clients +
                                "\" or lies below it, which containers mount: set another admin_dir");
    }
    if (parent == parent.parent_path()) return Status::Ok();
  }
}

Result<bool> PrepareAdminDirectory(const std::string& directory, const std::string& clients) {
  TANDEM_RETURN_IF_ERROR(CheckAdminDirectory(directory, clients));
  std::error_code error;
  const bool made = std::filesystem::create_directories(directory, error);
  if (error) return SystemError("make the administrators' directory " + directory, error.value());
  if (made && ::chmod(directory.c_str(), 0700) != 0) return SystemError("chmod " + directory, errno);
  return made;
}

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

}  // namespace tandem::daemon
