#include "common/replace_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "common/unique_fd.h"

namespace tandem {
namespace {

Status WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return SystemError("write", errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
  // Before the rename: a machine that stops must not leave an empty file under the old name.
  return ::fsync(fd) == 0 ? Status::Ok() : SystemError("fsync", errno);
}

}  // namespace

Status ReplaceFile(const std::string& path, std::string_view text) {
  std::error_code error;
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::filesystem::create_directories(directory, error);  // if that fails, so does the next step
  const std::string fresh = path + ".new";
  {
    UniqueFd file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.valid())
      return Unavailable("cannot write " + fresh + ": " + SystemError("open", errno).message());
    if (Status written = WriteAll(file.get(), text); !written.ok())
      return Unavailable(fresh + ": " + written.message());
  }
  std::filesystem::rename(fresh, path, error);
  if (error) return Unavailable("cannot replace " + path + ": " + error.message());
  // The name too must outlive a stop; a file system that cannot do that for a directory has done what it can.
  UniqueFd folder(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.valid()) (void)::fsync(folder.get());
  return Status::Ok();
}

}  // namespace tandem
