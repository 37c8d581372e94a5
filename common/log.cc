#include "common/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace tandem::log {
namespace {

// libsystemd's path; without the socket it drops what it is given.
constexpr char kJournalSocket[] = "/run/systemd/journal/socket";

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

std::string_view NameOf(Level severity) {
  switch (severity) {
    case Level::kTrace: return "trace";
    case Level::kDebug: return "debug";
    case Level::kInfo: return "info";
    case Level::kWarning: return "warning";
    case Level::kError: return "error";
  }
  return "info";
}

// The syslog priority.
char PriorityOf(Level severity) {
  switch (severity) {
    case Level::kTrace:
    case Level::kDebug: return '7';
    case Level::kInfo: return '6';
    case Level::kWarning: return '4';
    case Level::kError: return '3';
  }
  return '6';
}

std::shared_ptr<spdlog::logger> MakeLogger(const char* pattern) {
  auto logger =
      std::make_shared<spdlog::logger>("tandemd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern(pattern);
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  return logger;
}

spdlog::logger& Dated() {
  static const std::shared_ptr<spdlog::logger> logger = MakeLogger("%Y-%m-%d %H:%M:%S.%e %L %v");
  return *logger;
}

spdlog::logger& Bare() {
  static const std::shared_ptr<spdlog::logger> logger = MakeLogger("%v");
  return *logger;
}

// How lines leave this process.
enum class Way : uint8_t { kDated, kPrioritised, kLogfmt, kJson, kJournal };
std::atomic<Way> way{Way::kDated};
std::atomic<Level> least_written{Level::kWarning};

bool HasJournal() { return ::access(kJournalSocket, W_OK) == 0; }

Way WayOf(Format format) {
  switch (format) {
    case Format::kAuto: return RunsUnderJournal() && HasJournal() ? Way::kJournal : WayOf(Format::kText);
    case Format::kText: return RunsUnderJournal() ? Way::kPrioritised : Way::kDated;
    case Format::kLogfmt: return Way::kLogfmt;
    case Format::kJson: return Way::kJson;
    case Format::kJournal: return Way::kJournal;
  }
  return Way::kDated;
}

void WritePrioritised(Level severity, std::string_view text) {
  Bare().log(LevelOf(severity), std::string("<") + PriorityOf(severity) + ">" + OneLine(text));
}

void WriteJournal(Level severity, std::string_view text, const Line& line) {
  std::vector<std::string> fields = JournalFields(PriorityOf(severity), text, line.fields);
  std::vector<iovec> parts;
  parts.reserve(fields.size());
  for (std::string& field : fields) parts.push_back({field.data(), field.size()});
  // A journal that is gone for a while costs the fields, not the event.
  if (!HasJournal() || ::sd_journal_sendv(parts.data(), static_cast<int>(parts.size())) < 0)
    WritePrioritised(severity, text);
}

// `line`: null where the text has to be split.
void WriteBy(Level severity, std::string_view text, const Line* line) {
  if (!Writes(severity)) return;
  const Way now = way.load(std::memory_order_relaxed);
  if (now == Way::kDated) return Dated().log(LevelOf(severity), OneLine(text));
  if (now == Way::kPrioritised) return WritePrioritised(severity, text);
  Line own;
  if (line == nullptr) {
    own = SplitFields(text);
    line = &own;
  }
  if (now == Way::kJournal) return WriteJournal(severity, text, *line);
  const std::string time = Rfc3339(std::chrono::system_clock::now());
  Bare().log(LevelOf(severity), now == Way::kJson ? JsonLine(time, NameOf(severity), *line)
                                                  : LogfmtLine(time, NameOf(severity), *line));
}

}  // namespace

Status SetUp(Level least, Format format) {
  TANDEM_RETURN_IF_ERROR(CheckFormat(format));
  way = WayOf(format);
  least_written = least;
  return Status::Ok();
}

Status CheckFormat(Format format) {
  if (format != Format::kJournal || HasJournal()) return Status::Ok();
  return InvalidArgument(std::string("log_format = \"journal\" needs the journal's socket ") +
                         kJournalSocket + ", which cannot be used here");
}

bool RunsUnderJournal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  unsigned long long device = 0, inode = 0;
  if (stream == nullptr || std::sscanf(stream, "%llu:%llu", &device, &inode) != 2) return false;
  struct stat status;
  return ::fstat(2, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

bool Writes(Level severity) { return severity >= least_written.load(std::memory_order_relaxed); }

void Write(Level severity, std::string_view text) { WriteBy(severity, text, nullptr); }

void Write(Level severity, std::string_view text, const Line& line) { WriteBy(severity, text, &line); }

}  // namespace tandem::log
