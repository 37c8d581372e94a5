#include "common/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tandem {

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), pid_(other.pid_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    pid_ = other.pid_;
  }
  return *this;
}

Mapping::~Mapping() { Unmap(); }

void Mapping::Unmap() {
  if (data_ != nullptr && pid_ == ::getpid()) ::munmap(data_, size_);
}

Result<Mapping> Mapping::Map(int fd, size_t offset, size_t bytes, bool writable) {
  if (bytes == 0) return InvalidArgument("a mapping of 0 bytes");
  int protection = PROT_READ | (writable ? PROT_WRITE : 0);
  void* data = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (data == MAP_FAILED) return SystemError("mmap", errno);
  // A forked child must not share the hand-over pages with its parent.
  ::madvise(data, bytes, MADV_DONTFORK);
  Mapping mapping;
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = bytes;
  mapping.pid_ = ::getpid();
  return mapping;
}

Status Mapping::Vacate() {
  void* const at =
      ::mmap(data_, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  return at == MAP_FAILED ? SystemError("mmap", errno) : Status::Ok();
}

Status Mapping::Refill(int fd) {
  void* const at = ::mmap(data_, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (at == MAP_FAILED) return SystemError("mmap", errno);
  ::madvise(data_, size_, MADV_DONTFORK);
  return Status::Ok();
}

Result<UniqueFd> CreateSealedMemfd(const std::string& name, size_t bytes) {
  UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return SystemError("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) return SystemError("ftruncate", errno);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return SystemError("fcntl(F_ADD_SEALS)", errno);
  }
  return fd;
}

Status CheckForeignMemfd(int fd, size_t bytes) {
  int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) return InvalidArgument("the descriptor is not a memfd");
  if ((seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("the memfd lacks F_SEAL_SHRINK: its owner could cut it under a mapping");
  }
  // Memory of huge pages is refused: its owner can free a page and use it up elsewhere, and a process that
  // touches the place then dies.
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return SystemError("fstatfs", errno);
  if (info.f_type == HUGETLBFS_MAGIC)
    return InvalidArgument("the memfd is of huge pages: its owner could take them away");
  TANDEM_ASSIGN_OR_RETURN(size_t size, FileSize(fd));
  if (size < bytes) {
    return InvalidArgument("the memfd has " + std::to_string(size) + " bytes, the tensor needs " +
                           std::to_string(bytes));
  }
  return Status::Ok();
}

Result<size_t> FileSize(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return SystemError("fstat", errno);
  return static_cast<size_t>(status.st_size);
}

}  // namespace tandem
