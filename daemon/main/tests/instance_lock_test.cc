#include "daemon/main/instance_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/fd_socket.h"

namespace tandem::daemon {
namespace {

class InstanceLockTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/lock.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string directory_;
};

TEST_F(InstanceLockTest, SecondOwnerIsRefusedAndToldWho) {
  auto first = LockRuntimeDirectory(directory_ + "/new");
  ASSERT_TRUE(first.ok()) << first.status().ToString();
  auto second = LockRuntimeDirectory(directory_ + "/new");
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(second.status().message(), testing::HasSubstr(std::to_string(::getpid())));
  first->Reset();
  EXPECT_TRUE(LockRuntimeDirectory(directory_ + "/new").ok());
}

TEST_F(InstanceLockTest, StaleSocketGoesLiveOneStays) {
  std::string path = directory_ + "/s";
  EXPECT_TRUE(RemoveStaleSocket(path).ok());
  {
    auto listener = ListenSeqpacket(path, 0600);
    ASSERT_TRUE(listener.ok());
    EXPECT_EQ(RemoveStaleSocket(path).code(), Code::kAlreadyExists);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_TRUE(RemoveStaleSocket(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(InstanceLockTest, OtherFilesAreNeverRemoved) {
  std::string path = directory_ + "/file";
  std::ofstream(path) << "precious";
  EXPECT_EQ(RemoveStaleSocket(path).code(), Code::kAlreadyExists);
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(InstanceLockTest, UnknownGroupStillGetsItsMode) {
  std::string path = directory_ + "/s";
  auto listener = ListenSeqpacket(path, 0600);
  ASSERT_TRUE(listener.ok());
  EXPECT_EQ(ShareSocket(path, "no-such-group-here", 0660).code(), Code::kNotFound);
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0660u);
}

}  // namespace
}  // namespace tandem::daemon
