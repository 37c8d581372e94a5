// File: config_keys.h
//
// The table of tandemd's configuration keys: name, documentation, type, limits and the member of `Config`
// behind it. The file parser, the flags and the printer all walk this table; a new key is one line in
// config_keys.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "daemon/config/config.h"
#include "tandem/status.h"

namespace tandem::config {

enum class KeyType : uint8_t {
  kString,
  kInteger,
  kBytes,  // an integer, or text with a unit: "512 MiB"
  kBool,
  kChoice,  // one of `choices`
};

// A member of Config by its type. kChoice members are enums whose values count the choices from 0.
using FieldRef = std::variant<std::string*, int64_t*, bool*, BackendKind*, LogLevel*, LogFormat*,
                              ShowSessions*, FusedUse*, PlacementUse*, Determinism*>;

struct KeySpec {
  std::string_view name;  // dotted, "quotas.sessions"; the part before the dot is the TOML table
  KeyType type = KeyType::kString;
  FieldRef (*field)(Config& config) = nullptr;
  int64_t min = 0;  // kInteger and kBytes: bounds, both allowed
  int64_t max = 0;
  std::span<const std::string_view> choices;
  std::string_view doc;            // one or two sentences
  bool live = false;               // a reload takes it over; any other key needs a restart
  std::string_view old_name = {};  // the name of the version before, which is still read; "": none
};

// All keys, those without a table first; keys of one table stand together.
std::span<const KeySpec> Keys();
// The key of this dotted name, or nullptr. An old name finds the key too.
const KeySpec* FindKey(std::string_view name);
// The known key that `name` was most likely meant to be, or "" if none is near.
std::string_view NearestKey(std::string_view name);
// The key's flag: "--quotas-sessions" for quotas.sessions.
std::string FlagName(const KeySpec& key);
// The flag of the key's old name, or "" if it has none.
std::string OldFlagName(const KeySpec& key);
// One sentence for the log, for a key that was set by an old name: "debug.verify_plans is now
// testing.verify_plans, …".
std::string OldNameNote(std::string_view old_name, std::string_view name);

// A value as a file or a flag has it.
using KeyValue = std::variant<std::string, int64_t, bool>;

// Sets the key's member in `config`. INVALID_ARGUMENT or OUT_OF_RANGE names the key, the value and what is
// allowed.
Status SetKey(const KeySpec& key, const KeyValue& value, Config& config);
// Sets it from a flag's text: numbers and booleans are parsed first.
Status SetKeyFromText(const KeySpec& key, std::string_view text, Config& config);

// The key's value in `config` as a TOML value: "\"/run/tandem\"", "8", "\"2 GiB\"", "true".
std::string PrintValue(const KeySpec& key, const Config& config);

// "2 GiB" or "2147483648" as a number of bytes; units B, KiB, MiB, GiB, TiB. INVALID_ARGUMENT on anything
// else, overflow included.
Result<int64_t> ParseBytes(std::string_view text);
// The largest unit that divides `bytes`: "2 GiB", "1536 MiB", "7 B".
std::string PrintBytes(int64_t bytes);

}  // namespace tandem::config
