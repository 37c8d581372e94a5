#include "common/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tandem::log {
namespace {

spdlog::level::level_enum LevelOf(Level severity) {
  switch (severity) {
    case Level::kTrace: return spdlog::level::trace;
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The syslog priority of a line, as the journal reads it: "<6>".
class PriorityFlag : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&, spdlog::memory_buf_t& out) override {
    char priority = '7';
    if (message.level == spdlog::level::info) priority = '6';
    if (message.level == spdlog::level::warn) priority = '4';
    if (message.level >= spdlog::level::err) priority = '3';
    const char text[] = {'<', priority, '>'};
    out.append(text, text + sizeof(text));
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<PriorityFlag>(); }
};

std::shared_ptr<spdlog::logger> MakeLogger(Level least, bool journal) {
  auto logger =
      std::make_shared<spdlog::logger>("tandemd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  formatter->add_flag<PriorityFlag>('*').set_pattern(journal ? "%*%v" : "%Y-%m-%d %H:%M:%S.%e %L %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(LevelOf(least));
  logger->flush_on(spdlog::level::trace);
  return logger;
}

std::shared_ptr<spdlog::logger>& Logger() {
  static std::shared_ptr<spdlog::logger> logger = MakeLogger(Level::kWarning, false);
  return logger;
}

}  // namespace

void SetUp(Level least, bool journal) { Logger() = MakeLogger(least, journal); }

void SetLeast(Severity least) { Logger()->set_level(LevelOf(least)); }

bool RunsUnderJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  unsigned long long device = 0, inode = 0;
  if (stream == nullptr || std::sscanf(stream, "%llu:%llu", &device, &inode) != 2) return false;
  struct stat status;
  return ::fstat(2, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

void Write(Level severity, std::string_view text) { Logger()->log(LevelOf(severity), OneLine(text)); }

std::string OneLine(std::string_view text) {
  std::string line(text);
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return line;
}

}  // namespace tandem::log
