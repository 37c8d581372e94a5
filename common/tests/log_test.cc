#include "common/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/sd_notify.h"
#include "common/unique_fd.h"

namespace tandem {
namespace {

TEST(LogTest, PlainLinesCarryTimeAndSeverity) {
  log::SetUp(log::Level::kInfo, false);
  testing::internal::CaptureStderr();
  log::Info("engine ready gpu=1");
  log::Debug("not shown");
  log::Error("two\nlines");
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::ContainsRegex("20[0-9-]+ [0-9:.]+ I engine ready gpu=1\n"));
  EXPECT_THAT(text, testing::HasSubstr("E two lines\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("not shown")));
}

TEST(LogTest, JournalLinesBeginWithThePriority) {
  log::SetUp(log::Level::kDebug, true);
  testing::internal::CaptureStderr();
  log::Debug("d");
  log::Info("i");
  log::Warning("w");
  log::Error("e");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<7>d\n<6>i\n<4>w\n<3>e\n");
}

TEST(LogTest, JournalIsRecognisedByDeviceAndInode) {
  struct stat status;
  ASSERT_EQ(::fstat(2, &status), 0);
  ::setenv("JOURNAL_STREAM", (std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino)).c_str(),
           1);
  EXPECT_TRUE(log::RunsUnderJournal());
  ::setenv("JOURNAL_STREAM", "1:2", 1);
  EXPECT_FALSE(log::RunsUnderJournal());
  ::unsetenv("JOURNAL_STREAM");
  EXPECT_FALSE(log::RunsUnderJournal());
}

TEST(SdNotifyTest, SpeaksToTheSocketThatSystemdNames) {
  UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::string path = testing::TempDir() + "/notify." + std::to_string(::getpid());
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  NotifyReady("4 GPUs");
  NotifyAlive();
  char buffer[256];
  ssize_t length = ::recv(socket.get(), buffer, sizeof(buffer), 0);
  EXPECT_EQ(std::string(buffer, length), "READY=1\nSTATUS=4 GPUs");
  length = ::recv(socket.get(), buffer, sizeof(buffer), 0);
  EXPECT_EQ(std::string(buffer, length), "WATCHDOG=1");
  ::unsetenv("NOTIFY_SOCKET");
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace tandem
