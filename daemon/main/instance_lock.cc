#include "daemon/main/instance_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

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

bool IsLockThere(const UniqueFd& lock, const std::string& directory) {
  struct stat own, there;
  return ::fstat(lock.get(), &own) == 0 && ::lstat((directory + "/lock").c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
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

}  // namespace tandem::daemon
