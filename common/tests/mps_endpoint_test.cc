#include "common/mps_endpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "common/unique_fd.h"

namespace tandem {
namespace {

class MpsEndpointTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/tandem-mps-test.XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  // A control daemon's socket of `type`; it listens as long as the descriptor lives.
  UniqueFd Listen(int type, const std::string& directory) {
    UniqueFd socket(::socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, (directory + "/control").c_str());
    EXPECT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(socket.get(), 4), 0);
    return socket;
  }

  std::string directory_;
};

TEST_F(MpsEndpointTest, NothingAnswersWhereNothingIs) {
  EXPECT_FALSE(ProbeMps(directory_).answers);
  EXPECT_NE(ProbeMps(directory_).inode, 0u);
  MpsEndpoint nowhere = ProbeMps(directory_ + "/nowhere");
  EXPECT_FALSE(nowhere.answers);
  EXPECT_EQ(nowhere.inode, 0u);
  EXPECT_FALSE(ShareMpsServer(nowhere, nowhere));
}

TEST_F(MpsEndpointTest, AListenerAnswersUntilItEnds) {
  for (int type : {SOCK_SEQPACKET, SOCK_STREAM}) {
    UniqueFd listener = Listen(type, directory_);
    EXPECT_TRUE(ProbeMps(directory_).answers) << type;
    listener.Reset();
    EXPECT_FALSE(ProbeMps(directory_).answers) << "its file is still there";
    std::filesystem::remove(directory_ + "/control");
  }
}

TEST_F(MpsEndpointTest, APipeAnswersWhileSomebodyReads) {
  const std::string pipe = directory_ + "/control";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_FALSE(ProbeMps(directory_).answers);
  UniqueFd reader(::open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_TRUE(ProbeMps(directory_).answers);
}

TEST_F(MpsEndpointTest, TheSameDirectoryByAnotherNameIsTheSameServer) {
  UniqueFd listener = Listen(SOCK_SEQPACKET, directory_);
  const std::string link = directory_ + ".link", other = directory_ + "/other";
  ASSERT_EQ(::symlink(directory_.c_str(), link.c_str()), 0);
  ASSERT_EQ(::mkdir(other.c_str(), 0755), 0);
  UniqueFd second = Listen(SOCK_SEQPACKET, other);
  EXPECT_TRUE(ShareMpsServer(ProbeMps(directory_), ProbeMps(link)));
  EXPECT_FALSE(ShareMpsServer(ProbeMps(directory_), ProbeMps(other)));
  listener.Reset();
  EXPECT_FALSE(ShareMpsServer(ProbeMps(directory_), ProbeMps(link)));
  std::filesystem::remove(link);
}

TEST_F(MpsEndpointTest, TheDriversVariableNamesTheDirectory) {
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/somewhere", 1);
  EXPECT_EQ(MpsPipeDirectory(), "/run/somewhere");
  ::setenv("CUDA_MPS_PIPE_DIRECTORY", "", 1);
  EXPECT_EQ(MpsPipeDirectory(), "/tmp/nvidia-mps");
  ::unsetenv("CUDA_MPS_PIPE_DIRECTORY");
  EXPECT_EQ(MpsPipeDirectory(), "/tmp/nvidia-mps");
}

}  // namespace
}  // namespace tandem
