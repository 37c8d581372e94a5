#include "common/mps_endpoint.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "common/unique_fd.h"

namespace tandem {
namespace {

// The control daemon's file is a socket (a pipe with old drivers) that outlives it: only its answering says
// that it runs.
bool SomebodyListens(const std::string& path, mode_t mode) {
  if (S_ISFIFO(mode)) return UniqueFd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)).valid();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!S_ISSOCK(mode) || path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  for (int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.valid()) return false;
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
      return true;
    if (errno == EAGAIN) return true;  // its backlog is full
    if (errno != EPROTOTYPE)
      return false;  // nobody, or no right to speak to it: the driver would fare no better
  }
  return false;
}

}  // namespace

std::string MpsPipeDirectory() {
  const char* directory = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return directory != nullptr && *directory != '\0' ? directory : "/tmp/nvidia-mps";
}

MpsEndpoint ProbeMps(const std::string& directory) {
  MpsEndpoint endpoint;
  endpoint.directory = directory;
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return endpoint;
  endpoint.device = status.st_dev;
  endpoint.inode = status.st_ino;
  const std::string control = directory + "/control";
  endpoint.answers = ::stat(control.c_str(), &status) == 0 && SomebodyListens(control, status.st_mode);
  return endpoint;
}

bool ShareMpsServer(const MpsEndpoint& a, const MpsEndpoint& b) {
  return a.answers && b.answers && a.device == b.device && a.inode == b.inode;
}

}  // namespace tandem
