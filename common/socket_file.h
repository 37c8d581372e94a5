// File: socket_file.h
//
// `SocketFile`: a listening Unix socket and its file. The file can be removed or replaced by others; then
// nobody reaches the socket, without a notice. `IsThere` finds out.
#pragma once

#include <sys/types.h>

#include <string>

#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

struct SocketFileOptions {
  std::string path;
  int type = 0;       // SOCK_STREAM or SOCK_SEQPACKET
  unsigned mode = 0;  // of the file, once its group is set; before, only the owner may use it
  std::string group;  // a name or a gid; empty: the process's own
};

class SocketFile {
 public:
  // Listens, without blocking in accept. A stale socket's file at the path is replaced, a live one never:
  // ALREADY_EXISTS. A group that does not exist is no error: see `group_missing`.
  static Result<SocketFile> Listen(const SocketFileOptions& options);
  SocketFile() = default;
  SocketFile(SocketFile&& other) = default;
  SocketFile& operator=(SocketFile&& other) = default;
  // Closes the socket; the file stays.
  ~SocketFile() = default;

  int fd() const { return socket_.get(); }
  // Whether the path still leads to this socket.
  bool IsThere() const;
  // Removes the file, if it is this socket's.
  void Unlink();
  // Why the options' group has not been given the file; OK if it has.
  const Status& group_missing() const { return group_missing_; }

 private:
  std::string path_;
  UniqueFd socket_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  Status group_missing_;
};

// Removes a stale socket at `path`. ALREADY_EXISTS if somebody answers there, or if the file is no socket.
Status RemoveStaleSocket(const std::string& path);

// Gives the socket at `path` to `group` (a name or a gid; "" leaves the group) and sets the mode. NOT_FOUND
// if there is no such group: the mode is set nevertheless, and the group stays this process's.
Status ShareSocket(const std::string& path, const std::string& group, unsigned mode);

}  // namespace tandem
