#include "daemon/control/base/foreign_fds.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <condition_variable>
#include <deque>
#include <system_error>
#include <thread>

#include "common/mutex.h"

namespace tandem::daemon {
namespace {

// As many closes may last for ever before others have to wait; far fewer than the tasks that the unit allows
// for.
constexpr int kMaxThreads = 256;

// Memory has no owner that could hold its close up, and a little of it is freed at once: a flood of such
// descriptors does not pile up.
bool ClosesAtOnce(int fd) {
  struct stat status {};
  return ::fcntl(fd, F_GET_SEALS) >= 0 && ::fstat(fd, &status) == 0 && status.st_size <= 1 << 20;
}

// Threads that close descriptors. Made when none is idle, since any may be held up; one stays.
class Closer {
 public:
  void Add(UniqueFd fd) {
    if (ClosesAtOnce(fd.get())) return;
    MutexLock lock(mutex_);
    ++under_way_;
    waiting_.push_back(std::move(fd));
    if (idle_ >= static_cast<int>(waiting_.size())) {
      changed_.notify_one();
      return;
    }
    if (threads_ == kMaxThreads) return;
    try {
      std::thread([this] { Run(); }).detach();
      ++threads_;
    } catch (const std::system_error&) {  // no thread to be had now: the next one, or one that comes back,
                                          // takes it
    }
  }

  size_t under_way() {
    MutexLock lock(mutex_);
    return under_way_;
  }

 private:
  void Run() {
    MutexLock lock(mutex_);
    for (;;) {
      if (waiting_.empty() && idle_ > 0) break;
      ++idle_;
      changed_.wait(lock.fused(), [this]() TANDEM_REQUIRES(mutex_) { return !waiting_.empty(); });
      --idle_;
      UniqueFd fd = std::move(waiting_.front());
      waiting_.pop_front();
      lock.Unlock();
      // A socket is reset, not drained, whatever its owner has asked for.
      const linger reset{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      fd.Reset();
      lock.Lock();
      --under_way_;
    }
    --threads_;
  }

  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<UniqueFd> waiting_ TANDEM_GUARDED_BY(mutex_);
  int threads_ TANDEM_GUARDED_BY(mutex_) = 0;
  int idle_ TANDEM_GUARDED_BY(mutex_) = 0;
  size_t under_way_ TANDEM_GUARDED_BY(mutex_) = 0;
};

// Never destroyed: its threads may be held up until the process has gone.
Closer& TheCloser() {
  static Closer* const closer = new Closer;
  return *closer;
}

}  // namespace

void CloseElsewhere(std::vector<UniqueFd> fds) {
  for (UniqueFd& fd : fds) {
    if (fd.valid()) TheCloser().Add(std::move(fd));
  }
}

size_t ClosesUnderWay() { return TheCloser().under_way(); }

SharedFd ShareForeign(UniqueFd fd) {
  return SharedFd(new UniqueFd(std::move(fd)), [](const UniqueFd* last) {
    auto* owned = const_cast<UniqueFd*>(last);
    TheCloser().Add(std::move(*owned));
    delete owned;
  });
}

Status CheckForeignMemory(int fd) {
  int type = 0;
  socklen_t bytes = sizeof(type);
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &bytes) == 0)
    return InvalidArgument("it is a socket, not memory");
  struct statfs info {};
  if (::fstatfs(fd, &info) == 0 && info.f_type == FUSE_SUPER_MAGIC) {
    return InvalidArgument("it is a file of a user-space file system, not memory");
  }
  return Status::Ok();
}

}  // namespace tandem::daemon
