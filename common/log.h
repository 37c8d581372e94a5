// File: log.h
//
// The daemon's log: one event a line to standard error, through spdlog (which stays out of this header), or
// to the journal. A text has pairs key=value at its ends (session=7 plan=12), by which a journal can be
// searched. The forms for other programs have them as fields (log_line.h).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/log_line.h"
#include "tandem/status.h"

namespace tandem::log {

enum class Level : uint8_t { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

enum class Format : uint8_t {
  kAuto = 0,  // kJournal where standard error is the journal's stream, and its socket can be used; else kText
  kText = 1,  // a time and a letter, or the priority "<n>" where standard error is the journal's stream
  kLogfmt = 2,   // ts=… level=… msg="…" and the fields
  kJson = 3,     // one object a line
  kJournal = 4,  // the journal's own fields, to its socket
};

// Sets the least severity that is written, and the form. Before it, warnings and errors are written as
// text. INVALID_ARGUMENT, and nothing changes, if the form is kJournal and the journal's socket cannot be
// used. Thread-safe.
Status SetUp(Level least, Format format);

// Whether SetUp would take the form.
Status CheckFormat(Format format);

// True if standard error is the journal's stream (JOURNAL_STREAM names its device and inode).
bool RunsUnderJournal();

// Whether events of this severity are written at all.
bool Writes(Level severity);

// Writes one event. Thread-safe. Control characters become spaces in texts, and are escaped elsewhere.
void Write(Level severity, std::string_view text);
// The same for a text whose parts the caller knows: the forms for programs take `line`.
void Write(Level severity, std::string_view text, const Line& line);

inline void Info(std::string_view text) { Write(Level::kInfo, text); }
inline void Warning(std::string_view text) { Write(Level::kWarning, text); }
inline void Error(std::string_view text) { Write(Level::kError, text); }
inline void Debug(std::string_view text) { Write(Level::kDebug, text); }

}  // namespace tandem::log
