#include "daemon/main/embedded.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(JobWatchTest, TheFirstSessionIsAwaitedLongerThanALaterOne) {
  const JobWatch::Clock::time_point start{};
  JobWatch watch(start);
  EXPECT_FALSE(watch.IsOver({0, 0}, start + kFirstSessionWait - milliseconds(1)));
  EXPECT_TRUE(watch.IsOver({0, 0}, start + kFirstSessionWait));

  JobWatch served(start);
  const auto last = start + milliseconds(500);
  EXPECT_FALSE(served.IsOver({1, 1}, last));
  EXPECT_FALSE(served.IsOver({0, 1}, last + kNoSessionWait - milliseconds(1)));
  EXPECT_TRUE(served.IsOver({0, 1}, last + kNoSessionWait));
}

TEST(JobWatchTest, ASessionStartsTheWaitAnew) {
  const JobWatch::Clock::time_point start{};
  JobWatch watch(start);
  EXPECT_FALSE(watch.IsOver({2, 2}, start));
  const auto later = start + std::chrono::hours(10);
  EXPECT_FALSE(watch.IsOver({1, 2}, later));
  EXPECT_FALSE(watch.IsOver({0, 2}, later + milliseconds(1)));
  EXPECT_FALSE(watch.IsOver({1, 3}, later + kNoSessionWait - milliseconds(1)));
  EXPECT_FALSE(watch.IsOver({0, 3}, later + kNoSessionWait));
}

TEST(JobWatchTest, SessionsThatNoCallSawCount) {
  const JobWatch::Clock::time_point start{};
  JobWatch watch(start);
  EXPECT_FALSE(watch.IsOver({0, 2}, start + milliseconds(500)));
  EXPECT_FALSE(watch.IsOver({0, 2}, start + milliseconds(499) + kNoSessionWait));
  EXPECT_FALSE(watch.IsOver({0, 3}, start + milliseconds(500) + kNoSessionWait));
  EXPECT_TRUE(watch.IsOver({0, 3}, start + milliseconds(500) + 2 * kNoSessionWait));
}

class EmbeddedDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/embedded.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    own_ = root_ + "/own";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string root_, own_;
};

TEST_F(EmbeddedDirectoryTest, IsMadePrivateAndRemovedWhole) {
  ASSERT_TRUE(PrepareEmbeddedDirectory(own_).ok());
  struct stat made;
  ASSERT_EQ(::stat(own_.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777u, 0700u);
  std::filesystem::create_directories(own_ + "/run");
  std::ofstream(own_ + "/run/lock") << "1";
  std::ofstream(root_ + "/precious") << "1";
  std::filesystem::create_symlink(root_ + "/precious", own_ + "/link");
  ASSERT_TRUE(RemoveEmbeddedDirectory(own_).ok());
  EXPECT_FALSE(std::filesystem::exists(own_));
  EXPECT_TRUE(std::filesystem::exists(root_ + "/precious"));
  EXPECT_TRUE(RemoveEmbeddedDirectory(own_).ok()) << "it is gone";
}

TEST_F(EmbeddedDirectoryTest, WhatTheStarterPutThereMayBeThere) {
  ASSERT_EQ(::mkdir(own_.c_str(), 0700), 0);
  std::ofstream(own_ + "/alive") << "";
  std::ofstream(own_ + "/tandemd.log") << "";
  EXPECT_TRUE(PrepareEmbeddedDirectory(own_).ok());
}

TEST_F(EmbeddedDirectoryTest, NoOtherDirectoryIsTaken) {
  std::ofstream(root_ + "/file") << "precious";
  EXPECT_THAT(PrepareEmbeddedDirectory(root_).message(), HasSubstr("is not empty: it has file"));
  EXPECT_THAT(PrepareEmbeddedDirectory(root_ + "/file").message(), HasSubstr("is no directory"));
  EXPECT_THAT(PrepareEmbeddedDirectory(root_ + "/a/b").message(), HasSubstr("make the directory"));
  ASSERT_EQ(::mkdir(own_.c_str(), 0755), 0);
  EXPECT_THAT(PrepareEmbeddedDirectory(own_).message(), HasSubstr("is open to other users"));
  std::filesystem::create_symlink(own_, root_ + "/link");
  EXPECT_THAT(PrepareEmbeddedDirectory(root_ + "/link").message(), HasSubstr("is no directory"));
}

}  // namespace
}  // namespace tandem::daemon
