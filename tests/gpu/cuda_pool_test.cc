// Segments outlive the process that made them: a holder without CUDA keeps the descriptor while the maker is killed, and a
// new process maps it and finds the contents. This process never uses CUDA itself, as tandemd never does.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <functional>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/driver/cuda_driver.h"

namespace tandem {
namespace {

constexpr size_t kBytes = size_t{32} << 20;
constexpr unsigned char kPattern = 0xA7;

bool SendFd(int socket, int fd) {
  char byte = 1;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  *reinterpret_cast<int*>(CMSG_DATA(header)) = fd;
  return ::sendmsg(socket, &message, 0) == 1;
}

UniqueFd ReceiveFd(int socket) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (::recvmsg(socket, &message, 0) != 1 || CMSG_FIRSTHDR(&message) == nullptr) return UniqueFd();
  return UniqueFd(*reinterpret_cast<int*>(CMSG_DATA(CMSG_FIRSTHDR(&message))));
}

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
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
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
    if (!SendFd(sockets[1], fd->get())) return 7;
    ::pause();
    return 8;
  });
  UniqueFd held = ReceiveFd(sockets[0]);
  if (!held.valid()) {
    ::kill(maker, SIGKILL);
    FAIL() << "the maker ended with " << ExitOf(maker);
  }
  ::kill(maker, SIGKILL);
  ASSERT_EQ(ExitOf(maker), 1000 + SIGKILL);
  pid_t heir = Child([&] {
    auto backend = MakeCudaBackend({});
    if (!backend.ok()) return 2;
    auto segment = (*backend)->MapSegment(held.get(), kBytes);
    if (!segment.ok()) return 3;
    std::vector<unsigned char> bytes(kBytes);
    auto* driver = *cuda::LoadCudaDriver();
    if (!driver->MemcpyAsync(reinterpret_cast<CUdeviceptr>(bytes.data()),
                             reinterpret_cast<CUdeviceptr>((*segment)->data()), kBytes, nullptr).ok()) {
      return 4;
    }
    if (!driver->StreamSynchronize(nullptr).ok()) return 5;
    for (unsigned char byte : bytes) {
      if (byte != kPattern) return 6;
    }
    return 0;
  });
  EXPECT_EQ(ExitOf(heir), 0);
  ::close(sockets[0]);
  ::close(sockets[1]);
}

}  // namespace
}  // namespace tandem
