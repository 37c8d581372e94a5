#include "common/log_line.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

namespace tandem::log {
namespace {

// Members of the forms themselves.
constexpr std::array<std::string_view, 5> kOwnKeys = {"level", "message", "msg", "time", "ts"};
// Fields that are numbers wherever they stand: a member of JSON must not change its type.
constexpr std::array<std::string_view, 9> kNumbers = {"generation", "gpu",  "group",   "launch", "pid",
                                                      "plan",       "port", "session", "uid"};

bool IsKeyByte(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

// One word of the text, which begins at `begin`; a pair if it has a key.
struct LineWord {
  size_t begin = 0, end = 0;
  std::string key, value;
};

// The end of the key that begins at `at`, where its '=' stands; `at` if there is none.
size_t KeyEnd(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size() && IsKeyByte(text[end])) ++end;
  return end < text.size() && text[end] == '=' && text[at] >= 'a' ? end : at;
}

// The quoted value that begins at `at`, and the position behind it.
std::optional<std::pair<std::string, size_t>> Quoted(std::string_view text, size_t at) {
  std::string value;
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '"') return std::pair(std::move(value), i + 1);
    if (text[i] == '\\' && i + 1 < text.size()) ++i;
    value += text[i];
  }
  return std::nullopt;
}

LineWord LineWordAt(std::string_view text, size_t begin) {
  LineWord word{begin, std::min(text.find(' ', begin), text.size()), {}, {}};
  const size_t equals = KeyEnd(text, begin);
  if (equals == begin) return word;
  const size_t from = equals + 1;
  if (from < text.size() && text[from] == '"') {
    auto quoted = Quoted(text, from);
    if (!quoted.has_value() || (quoted->second < text.size() && text[quoted->second] != ' ')) return word;
    word.value = std::move(quoted->first);
    word.end = quoted->second;
  } else if (const std::string_view value = text.substr(from, word.end - from); IsBareValue(value)) {
    word.value = value;
  } else {
    return word;
  }
  word.key = text.substr(begin, equals - begin);
  return word;
}

std::vector<LineWord> Words(std::string_view text) {
  std::vector<LineWord> words;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == ' ') {
      ++at;
      continue;
    }
    words.push_back(LineWordAt(text, at));
    at = words.back().end;
  }
  return words;
}

bool CanTake(const Fields& fields, const std::string& key) {
  if (key.empty() || std::find(kOwnKeys.begin(), kOwnKeys.end(), key) != kOwnKeys.end()) return false;
  return std::none_of(fields.begin(), fields.end(), [&](const auto& field) { return field.first == key; });
}

// In quotes, escaped as in JSON, which readers of logfmt know too.
std::string JsonText(std::string_view text) {
  return nlohmann::ordered_json(std::string(text))
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

bool IsNumber(std::string_view key, std::string_view value) {
  return std::find(kNumbers.begin(), kNumbers.end(), key) != kNumbers.end() && !value.empty() &&
         value.size() < 19 &&
         std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
}

bool IsPlain(std::string_view value) {
  return IsBareValue(value) &&
         std::all_of(value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

}  // namespace

Line SplitFields(std::string_view text) {
  const std::vector<LineWord> words = Words(text);
  Line line;
  size_t first = 0, last = words.size();  // of the message
  while (first < last && CanTake(line.fields, words[first].key)) {
    line.fields.emplace_back(words[first].key, words[first].value);
    ++first;
  }
  const auto leading = static_cast<Fields::difference_type>(line.fields.size());
  while (last > first && CanTake(line.fields, words[last - 1].key)) {
    --last;
    line.fields.emplace(line.fields.begin() + leading, words[last].key, words[last].value);
  }
  if (first == words.size()) {  // nothing but pairs
    line.message = text;
    return line;
  }
  // "configuration: log_level=…": what a colon announces is text.
  if (last > first && last < words.size() && text[words[last - 1].end - 1] == ':') {
    line.fields.erase(line.fields.begin() + leading);
    ++last;
  }
  if (last > first) line.message = text.substr(words[first].begin, words[last - 1].end - words[first].begin);
  return line;
}

std::string Rfc3339(std::chrono::system_clock::time_point when) {
  const auto since = std::chrono::floor<std::chrono::milliseconds>(when.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(since / 1000);
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(since % 1000));
  return text;
}

std::string LogfmtLine(std::string_view time, std::string_view level, const Line& line) {
  std::string out =
      "ts=" + std::string(time) + " level=" + std::string(level) + " msg=" + JsonText(line.message);
  for (const auto& [key, value] : line.fields)
    out += " " + key + "=" + (IsPlain(value) ? value : JsonText(value));
  return out;
}

std::string JsonLine(std::string_view time, std::string_view level, const Line& line) {
  nlohmann::ordered_json object = {{"time", time}, {"level", level}, {"message", line.message}};
  for (const auto& [key, value] : line.fields) {
    if (IsNumber(key, value)) {
      object[key] = std::stoll(value);
    } else {
      object[key] = value;
    }
  }
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::vector<std::string> JournalFields(char priority, std::string_view text, const Fields& fields) {
  std::vector<std::string> all = {std::string("PRIORITY=") + priority, "MESSAGE=" + OneLine(text),
                                  "SYSLOG_IDENTIFIER=tandemd"};
  for (const auto& [key, value] : fields) {
    std::string name = "TANDEM_" + key;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
    all.push_back(name + "=" + OneLine(value));
  }
  return all;
}

}  // namespace tandem::log
