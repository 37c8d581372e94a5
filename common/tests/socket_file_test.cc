#include "common/socket_file.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/fd_socket.h"

namespace tandem {
namespace {

class SocketFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/socket.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    options_ = {.path = directory_ + "/s", .type = SOCK_SEQPACKET, .mode = 0660, .group = ""};
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
  SocketFileOptions options_;
};

TEST_F(SocketFileTest, ListensWithItsMode) {
  auto file = SocketFile::Listen(options_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  struct stat status;
  ASSERT_EQ(::stat(options_.path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0660u);
  EXPECT_TRUE(ConnectSeqpacket(options_.path).ok());
  EXPECT_TRUE(file->IsThere());
  EXPECT_EQ(SocketFile::Listen(options_).status().code(), Code::kAlreadyExists) << "a live one stays";
}

TEST_F(SocketFileTest, KnowsThatItsFileHasGoneOrIsAnothers) {
  auto file = SocketFile::Listen(options_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(::unlink(options_.path.c_str()), 0);
  EXPECT_FALSE(file->IsThere());
  auto another = SocketFile::Listen(options_);
  ASSERT_TRUE(another.ok()) << another.status().ToString();
  EXPECT_FALSE(file->IsThere());
  EXPECT_TRUE(another->IsThere());
  file->Unlink();
  EXPECT_TRUE(another->IsThere()) << "a file of another socket is not removed";
  another->Unlink();
  EXPECT_FALSE(std::filesystem::exists(options_.path));
}

TEST_F(SocketFileTest, AGroupThatDoesNotExistIsSaid) {
  options_.group = "no-such-group-here";
  auto file = SocketFile::Listen(options_);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->group_missing().code(), Code::kNotFound);
}

TEST_F(SocketFileTest, APathThatIsTooLongIsRefused) {
  options_.path = directory_ + "/" + std::string(200, 's');
  EXPECT_EQ(SocketFile::Listen(options_).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
