#include "daemon/main/embedded.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

namespace tandem::daemon {
namespace {

// A starter may have put these files there (client/python/src/tandem/_embedded.py).
constexpr const char* kStartersFiles[] = {"alive", "tandemd.log"};

bool IsStartersFile(const std::string& name) {
  for (const char* known : kStartersFiles) {
    if (name == known) return true;
  }
  return false;
}

}  // namespace

bool JobWatch::IsOver(SessionCounts sessions, Clock::time_point now) {
  if (sessions.now > 0 || sessions.so_far != seen_) since_ = now;
  seen_ = sessions.so_far;
  return now - since_ >= (seen_ > 0 ? kNoSessionWait : kFirstSessionWait);
}

Status PrepareEmbeddedDirectory(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return SystemError("make the directory " + directory, errno);
  struct stat found;
  if (::lstat(directory.c_str(), &found) != 0) return SystemError("look at " + directory, errno);
  if (!S_ISDIR(found.st_mode)) return FailedPrecondition(directory + " is no directory");
  if (found.st_uid != ::geteuid())
    return FailedPrecondition(directory + " is of uid " + std::to_string(found.st_uid));
  if ((found.st_mode & 077) != 0) return FailedPrecondition(directory + " is open to other users");
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!IsStartersFile(name)) return FailedPrecondition(directory + " is not empty: it has " + name);
  }
  return error ? SystemError("list " + directory, error.value()) : Status::Ok();
}

Status RemoveEmbeddedDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::remove_all(directory, error);
  return error ? SystemError("remove " + directory, error.value()) : Status::Ok();
}

}  // namespace tandem::daemon
