#include "common/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "common/sd_notify.h"
#include "common/unique_fd.h"

namespace tandem {
namespace {

TEST(LogTest, PlainLinesCarryTimeAndSeverity) {
  ASSERT_TRUE(log::SetUp(log::Level::kInfo, log::Format::kText).ok());
  testing::internal::CaptureStderr();
  log::Info("engine ready gpu=1");
  log::Debug("not shown");
  log::Error("two\nlines");
  std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::ContainsRegex("20[0-9-]+ [0-9:.]+ I engine ready gpu=1\n"));
  EXPECT_THAT(text, testing::HasSubstr("E two lines\n"));
  EXPECT_THAT(text, testing::Not(testing::HasSubstr("not shown")));
}

// Lets standard error, as it is now, pass for the journal's stream while it exists.
class JournalStream {
 public:
  JournalStream() {
    struct stat status;
    EXPECT_EQ(::fstat(2, &status), 0);
    ::setenv("JOURNAL_STREAM", (std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino)).c_str(),
             1);
  }
  ~JournalStream() { ::unsetenv("JOURNAL_STREAM"); }
};

TEST(LogTest, TextUnderTheJournalBeginsWithThePriority) {
  testing::internal::CaptureStderr();
  JournalStream stream;
  ASSERT_TRUE(log::SetUp(log::Level::kDebug, log::Format::kText).ok());
  log::Debug("d");
  log::Info("i");
  log::Warning("w");
  log::Error("e");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "<7>d\n<6>i\n<4>w\n<3>e\n");
}

TEST(LogTest, FormsForProgramsHaveFields) {
  testing::internal::CaptureStderr();
  ASSERT_TRUE(log::SetUp(log::Level::kInfo, log::Format::kLogfmt).ok());
  log::Info("gpu=1 engine ready");
  log::Debug("not shown");
  ASSERT_TRUE(log::SetUp(log::Level::kInfo, log::Format::kJson).ok());
  log::Warning("gpu=1 engine ended");
  log::Write(log::Level::kError, "text for people", log::Line{"message", {{"call", "Drain"}}});
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, testing::ContainsRegex(
                        "^ts=20[0-9T:.-]+Z level=info msg=\"engine ready\" gpu=1\n\\{\"time\":\"20"));
  EXPECT_THAT(text, testing::HasSubstr("\"level\":\"warning\",\"message\":\"engine ended\",\"gpu\":1}\n"));
  EXPECT_THAT(text, testing::HasSubstr("\"level\":\"error\",\"message\":\"message\",\"call\":\"Drain\"}\n"));
}

// Runs `body` in a process that sees an empty directory where the journal's socket would be; its exit status.
// -1 where this user may not do that.
int WithOwnJournal(const std::function<int(int socket)>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", "/run", "tmpfs", 0, nullptr) != 0)
      ::_exit(77);
    ::mkdir("/run/systemd", 0755);
    ::mkdir("/run/systemd/journal", 0755);
    UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ::_exit(body(socket.get()));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

TEST(LogTest, JournalGetsFieldsOverItsSocket) {
  const int outcome = WithOwnJournal([](int socket) {
    if (log::SetUp(log::Level::kInfo, log::Format::kJournal).code() != Code::kInvalidArgument) return 1;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, "/run/systemd/journal/socket");
    if (::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 2;
    if (!log::SetUp(log::Level::kInfo, log::Format::kJournal).ok()) return 3;
    log::Warning("session=7 lost pid=3");
    char buffer[4096];
    const ssize_t length = ::recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (length <= 0) return 4;
    const std::string text(buffer, static_cast<size_t>(length));
    for (const char* field : {"PRIORITY=4\n", "MESSAGE=session=7 lost pid=3\n", "TANDEM_SESSION=7\n",
                              "TANDEM_PID=3", "SYSLOG_IDENTIFIER=tandemd\n"}) {
      if (text.find(field) == std::string::npos) return 5;
    }
    // `auto` takes the fields under the journal only.
    JournalStream stream;
    if (!log::SetUp(log::Level::kInfo, log::Format::kAuto).ok()) return 6;
    log::Info("auto");
    return ::recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT) > 0 ? 0 : 7;
  });
  if (outcome == -1) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(outcome, 0);
}

TEST(LogTest, AJournalThatGoesGetsTextOnStandardError) {
  testing::internal::CaptureStderr();
  const int outcome = WithOwnJournal([](int socket) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, "/run/systemd/journal/socket");
    if (::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return 1;
    if (!log::SetUp(log::Level::kInfo, log::Format::kJournal).ok()) return 2;
    ::unlink(address.sun_path);
    log::Info("still here");
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  if (outcome == -1) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(text, "<6>still here\n");
}

TEST(LogTest, JournalIsRecognisedByDeviceAndInode) {
  {
    JournalStream stream;
    EXPECT_TRUE(log::RunsUnderJournal());
  }
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
  // A process whose clients have taken all descriptors is alive, and says so.
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{0, limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_LT(::socket(AF_UNIX, SOCK_DGRAM, 0), 0);
  NotifyAlive();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  length = ::recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  EXPECT_EQ(std::string(buffer, std::max<ssize_t>(length, 0)), "WATCHDOG=1");
  ::unsetenv("NOTIFY_SOCKET");
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace tandem
