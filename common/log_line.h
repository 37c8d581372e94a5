// File: log_line.h
//
// One line of the log in its parts, and the forms that other programs read: logfmt, JSON, journal fields.
// Texts of the log carry pairs key=value at their ends ("group=3 broken: …", "attached pid=7 uid=1000").
// `SplitFields` takes them off. Values of others' making go through `FieldValue`, or they could pass for
// pairs.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/log_field.h"

namespace tandem::log {

// Names of small letters, digits and underscores, each one once.
using Fields = std::vector<std::pair<std::string, std::string>>;

struct Line {
  std::string message;
  Fields fields;
};

// The pairs at the beginning and at the end of `text` as fields, the rest as message. A value is
// as FieldValue writes it. Pairs amid other words stay in the message, and so do keys
// that are there already or that the forms themselves use, and a pair behind a colon.
Line SplitFields(std::string_view text);

// "2026-01-31T23:59:59.123Z".
std::string Rfc3339(std::chrono::system_clock::time_point when);

// The line without its end. Bytes that are no UTF-8 become U+FFFD, control characters are escaped.
// ts=… level=info msg="…" session=7
std::string LogfmtLine(std::string_view time, std::string_view level, const Line& line);
// {"time":"…","level":"info","message":"…","session":7}; ids and counts are numbers.
std::string JsonLine(std::string_view time, std::string_view level, const Line& line);
// "PRIORITY=6", "MESSAGE=…" with the whole `text`, "SYSLOG_IDENTIFIER=tandemd", "TANDEM_SESSION=7", …
std::vector<std::string> JournalFields(char priority, std::string_view text, const Fields& fields);

}  // namespace tandem::log
