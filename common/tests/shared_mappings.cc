// One address for each shared file of this process, however often it is mapped.
//
// The engines and clients of a node map the same memory, each at another address. TSan goes by
// addresses: it would see neither a race between two of them nor the atomic words that order what they do.
// Linked with --wrap=mmap and
// --wrap=munmap, this gives every mapping of a file the first one's address, so that it sees both.
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <mutex>
#include <vector>

extern "C" {
void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t bytes);
}

namespace {

struct SharedFile {
  dev_t device;
  ino_t inode;
  std::byte* base;
  size_t bytes;
  int users;
};

std::mutex mutex;

std::vector<SharedFile>& Files() {
  static auto* files = new std::vector<SharedFile>;  // mappings may outlive every other static object
  return *files;
}

}  // namespace

extern "C" void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
  struct stat file {};
  if (address != nullptr || flags != MAP_SHARED || fd < 0 || ::fstat(fd, &file) != 0) {
    return __real_mmap(address, bytes, protection, flags, fd, offset);
  }
  size_t size = static_cast<size_t>(file.st_size), begin = static_cast<size_t>(offset);
  std::lock_guard lock(mutex);
  for (SharedFile& known : Files()) {
    if (known.device != file.st_dev || known.inode != file.st_ino) continue;
    if (begin > known.bytes || bytes > known.bytes - begin) break;
    ++known.users;
    return known.base + begin;
  }
  if (begin <= size && bytes <= size - begin) {
    void* base = __real_mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base != MAP_FAILED) {
      Files().push_back({file.st_dev, file.st_ino, static_cast<std::byte*>(base), size, 1});
      return Files().back().base + begin;
    }
  }
  return __real_mmap(address, bytes, protection, flags, fd, offset);
}

extern "C" int __wrap_munmap(void* address, size_t bytes) {
  std::lock_guard lock(mutex);
  auto* begin = static_cast<std::byte*>(address);
  auto& files = Files();
  for (auto it = files.begin(); it != files.end(); ++it) {
    if (begin < it->base || begin >= it->base + it->bytes) continue;
    if (--it->users > 0) return 0;
    SharedFile ended = *it;
    files.erase(it);
    return __real_munmap(ended.base, ended.bytes);
  }
  return __real_munmap(address, bytes);
}
