#include "common/fd_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/shared_memory.h"

namespace tandem {
namespace {

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST(FdSocket, CarriesSmallAndLargeBodiesWithDescriptors) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  auto memfd = CreateSealedMemfd("test", 4096);
  ASSERT_TRUE(memfd.ok());
  for (size_t bytes : {size_t{0}, size_t{5}, kInlineBytes, kInlineBytes + 1, size_t{3000000}}) {
    std::string body(bytes, 'x');
    ASSERT_TRUE(SendMessage(pair->first.get(), body, {memfd->get(), memfd->get()}).ok());
    auto message = ReceiveMessage(pair->second.get());
    ASSERT_TRUE(message.ok()) << message.status().ToString();
    EXPECT_EQ(message->body, body);
    EXPECT_EQ(message->fds.size(), 2u);
  }
}

TEST(FdSocket, RefusesTooManyDescriptorsAndNamesEof) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  std::vector<int> many(kMaxFdsPerMessage + 1, pair->first.get());
  EXPECT_EQ(SendMessage(pair->first.get(), "x", many).code(), Code::kInvalidArgument);
  pair->first.Reset();
  EXPECT_EQ(ReceiveMessage(pair->second.get()).status().detail().reason, "EOF");
}

TEST(FdSocket, ALimitOfDescriptorsIsNamed) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  ASSERT_TRUE(SendMessage(pair->first.get(), "x", std::vector<int>(16, pair->first.get())).ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = ::dup(pair->first.get());
  ::close(next);
  const rlimit few{static_cast<rlim_t>(next) + 4, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const Status status = ReceiveMessage(pair->second.get()).status();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status.ToString();
  EXPECT_EQ(status.detail().reason, "FD_LIMIT");
  EXPECT_EQ(status.detail().limit, next + 4);
  EXPECT_EQ(status.detail().pid, ::getpid());
}

TEST(FdSocket, MalformedMessagesLeakNoDescriptor) {
  auto pair = SeqpacketPair();
  ASSERT_TRUE(pair.ok());
  size_t before = OpenDescriptors();
  for (const char* garbage : {"", "x", "garbage that is longer than a header"}) {
    int fd = pair->first.get();
    char control[CMSG_SPACE(sizeof(int))] = {};
    iovec part{const_cast<char*>(garbage), std::strlen(garbage) + 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
    ASSERT_GT(::sendmsg(pair->first.get(), &message, 0), 0);
    EXPECT_EQ(ReceiveMessage(pair->second.get()).status().code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST(FdSocket, ReplacesAStaleSocketButNeverALiveOne) {
  std::string path = testing::TempDir() + "tandem_fd_socket_test.sock";
  {
    auto first = ListenSeqpacket(path, 0600);
    ASSERT_TRUE(first.ok()) << first.status().ToString();
    EXPECT_EQ(ListenSeqpacket(path, 0600).status().code(), Code::kAlreadyExists);
  }
  auto second = ListenSeqpacket(path, 0660);
  ASSERT_TRUE(second.ok()) << second.status().ToString();
  EXPECT_EQ(std::filesystem::status(path).permissions(), static_cast<std::filesystem::perms>(0660));
  std::filesystem::remove(path);
  EXPECT_EQ(ListenSeqpacket(std::string(200, 'a'), 0600).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ConnectSeqpacket(path).status().code(), Code::kUnavailable);
}

TEST(SharedMemory, ForeignDescriptorsAreChecked) {
  auto good = CreateSealedMemfd("good", 4096);
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE(CheckForeignMemfd(good->get(), 4096).ok());
  EXPECT_EQ(CheckForeignMemfd(good->get(), 4097).code(), Code::kInvalidArgument);
  UniqueFd unsealed(::memfd_create("bad", MFD_ALLOW_SEALING));
  EXPECT_NE(CheckForeignMemfd(unsealed.get(), 0).message().find("F_SEAL_SHRINK"), std::string::npos);
  UniqueFd file(::open("/dev/null", O_RDWR));
  EXPECT_NE(CheckForeignMemfd(file.get(), 0).message().find("not a memfd"), std::string::npos);
}

}  // namespace
}  // namespace tandem
