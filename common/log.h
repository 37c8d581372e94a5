// File: log.h
//
// The daemon's log: one line an event to standard error, through spdlog (which stays out of this header).
// Lines end with key=value pairs (session=7 plan=12), so that a journal can be searched by them. Under
// systemd's journal each line begins with its priority "<n>" instead of a time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tandem::log {

enum class Level : uint8_t { kTrace = 0, kDebug = 1, kInfo = 2, kWarning = 3, kError = 4 };

// Sets the least severity that is written, and the form. Call once at the start; before it, warnings and
// errors are written in the plain form.
void SetUp(Level least, bool journal);

// Changes the least severity that is written. Thread-safe.
void SetLeast(Severity least);

// True if standard error is the journal's stream (JOURNAL_STREAM names its device and inode).
bool RunsUnderJournal();

// Writes one line. Thread-safe; line feeds in `text` become spaces, so that one event is one line.
void Write(Level severity, std::string_view text);

inline void Info(std::string_view text) { Write(Level::kInfo, text); }
inline void Warning(std::string_view text) { Write(Level::kWarning, text); }
inline void Error(std::string_view text) { Write(Level::kError, text); }
inline void Debug(std::string_view text) { Write(Level::kDebug, text); }

// `text` without line feeds and other control characters.
std::string OneLine(std::string_view text);

}  // namespace tandem::log
