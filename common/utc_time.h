// File: utc_time.h
//
// `UtcNow`: the time as records that people read keep it.
#pragma once

#include <array>
#include <ctime>
#include <string>

namespace tandem {

// The time of the system's clock, by ISO 8601: "2026-01-31T23:59:59Z". Thread-safe.
inline std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  std::array<char, 32> text{};
  if (::gmtime_r(&now, &parts) != nullptr)
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

}  // namespace tandem
