// Segments outlive the process that made them: a holder without CUDA keeps the descriptor while the maker is
// killed, and a new process maps it and finds the contents. This process never uses CUDA itself, as tandemd
// never does.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <functional>
#include <utility>
#include <vector>

#include "common/fd_socket.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem {
namespace {

constexpr size_t kBytes = size_t{32} << 20;
constexpr unsigned char kPattern = 0xA7;

pid_t Child(const std::function<int()>& body) {
  pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  return pid;
}

int ExitOf(pid_t pid) {
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST(CudaPoolTest, ContentsSurviveTheMakersDeath) {
  auto sockets = SeqpacketPair();
  ASSERT_TRUE(sockets.ok()) << sockets.status().ToString();
  pid_t maker = Child([&] {
    auto backend = MakeCudaBackend({});
    if (!backend.ok()) return 2;
    auto fd = (*backend)->AllocateSegment(kBytes);
    if (!fd.ok()) return 3;
    auto segment = (*backend)->MapSegment(fd->get(), kBytes);
    if (!segment.ok()) return 4;
    auto* driver = *cuda::LoadCudaDriver();
    auto address = reinterpret_cast<CUdeviceptr>((*segment)->data());
    if (!driver->MemsetD8Async(address, kPattern, kBytes, nullptr).ok()) return 5;
    if (!driver->StreamSynchronize(nullptr).ok()) return 6;
    if (!SendMessage(sockets->second.get(), "segment", {fd->get()}).ok()) return 7;
    ::pause();
    return 8;
  });
  sockets->second.Reset();  // so that the maker's end is heard
  auto message = ReceiveMessage(sockets->first.get());
  if (!message.ok() || message->fds.size() != 1) {
    FAIL() << "the maker ended with " << ExitOf(maker) << "; " << message.status().ToString();
  }
  const UniqueFd held = std::move(message->fds[0]);
  ::kill(maker, SIGKILL);
  ASSERT_EQ(ExitOf(maker), 1000 + SIGKILL);
  pid_t heir = Child([&] {
    auto backend = MakeCudaBackend({});
    if (!backend.ok()) return 2;
    auto segment = (*backend)->MapSegment(held.get(), kBytes);
    if (!segment.ok()) return 3;
    std::vector<unsigned char> bytes(kBytes);
    auto* driver = *cuda::LoadCudaDriver();
    if (!driver
             ->MemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes.data()),
                           reinterpret_cast<CUdeviceptr>((*segment)->data()), kBytes, nullptr)
             .ok()) {
      return 4;
    }
    if (!driver->StreamSynchronize(nullptr).ok()) return 5;
    for (unsigned char byte : bytes) {
      if (byte != kPattern) return 6;
    }
    return 0;
  });
  EXPECT_EQ(ExitOf(heir), 0);
}

}  // namespace
}  // namespace tandem
