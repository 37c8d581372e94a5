#include "client/tests/interposed.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

thread_local tandem::Allowance threads, mappings, descriptors;

// The function and the argument of a new thread.
struct ThreadStart {
  void* (*start)(void*);
  void* argument;
};

void* RunInBackground(void* data) {
  const ThreadStart run = *static_cast<ThreadStart*>(data);
  std::free(data);
  tandem::BackgroundAllocations::JoinBackground();
  return run.start(run.argument);
}

}  // namespace

extern "C" {
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                   void* argument) {
  if (!threads.Spend()) return EAGAIN;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  auto* run = static_cast<ThreadStart*>(std::malloc(sizeof(ThreadStart)));
  if (run == nullptr) return EAGAIN;
  *run = {start, argument};
  const int failed = real(thread, attributes, &RunInBackground, run);
  if (failed != 0) std::free(run);
  return failed;
}
void* mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) noexcept {
  if (fd >= 0 && !mappings.Spend()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(::syscall(SYS_mmap, address, bytes, protection, flags, fd, offset));
}
int memfd_create(const char* name, unsigned flags) noexcept {
  if (!descriptors.Spend()) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}
int eventfd(unsigned count, int flags) noexcept {
  if (!descriptors.Spend()) {
    errno = EMFILE;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_eventfd2, count, flags));
}
}

namespace tandem {

Allowance& Threads() { return threads; }
Allowance& Mappings() { return mappings; }
Allowance& Descriptors() { return descriptors; }

}  // namespace tandem
