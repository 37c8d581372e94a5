#include "daemon/main/instance_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/fd_socket.h"
#include "common/socket_file.h"

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

TEST_F(InstanceLockTest, TheAdminDirectoryIsApartFromTheClients) {
  const std::string clients = directory_ + "/clients";
  std::filesystem::create_directories(clients + "/below");
  std::filesystem::create_directory_symlink(clients, directory_ + "/link");
  for (const std::string& bad : {clients, clients + "/", clients + "/below", clients + "/new/deep",
                                 directory_ + "/link", directory_ + "/link/below"}) {
    auto made = PrepareAdminDirectory(bad, clients);
    EXPECT_EQ(made.status().code(), Code::kFailedPrecondition) << bad << ": " << made.status().ToString();
  }
  for (const std::string& good : {directory_ + "/clients-admin", directory_ + "/other/deep", directory_}) {
    auto made = PrepareAdminDirectory(good, clients);
    ASSERT_TRUE(made.ok()) << good << ": " << made.status().ToString();
    EXPECT_EQ(*made, good != directory_);
    struct stat status;
    ASSERT_EQ(::stat(good.c_str(), &status), 0);
    if (*made) {
      EXPECT_EQ(status.st_mode & 0777, 0700u) << good;
    }
  }
  std::filesystem::permissions(directory_, std::filesystem::perms(0755));
  EXPECT_TRUE(PrepareAdminDirectory(directory_, clients).ok());
  EXPECT_EQ(std::filesystem::status(directory_).permissions(), std::filesystem::perms(0755))
      << "not made here, so not changed";
}

TEST_F(InstanceLockTest, AGidIsAGroup) {
  std::string path = directory_ + "/s";
  auto listener = ListenSeqpacket(path, 0600);
  ASSERT_TRUE(listener.ok());
  EXPECT_TRUE(ShareSocket(path, std::to_string(::getegid()), 0660).ok());
  struct stat status;
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_gid, ::getegid());
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
