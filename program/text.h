// File: text.h
//
// Short texts for labels, reasons and listings: concatenation, sizes and shapes as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace tandem::plan {

namespace internal {
inline void Append(std::string* out, std::string_view text) { out->append(text); }
template <typename T>
requires std::is_integral_v<T>
void Append(std::string* out, T value) { out->append(std::to_string(value)); }
}  // namespace internal

// The parts one after the other; integers in decimal. Text("push to ", 3) is "push to 3".
template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::string out;
  (internal::Append(&out, parts), ...);
  return out;
}

// "512 B", "256 KiB", "2.5 MiB": exact where it divides, else two decimals at most.
std::string BytesText(uint64_t bytes);

// "[2, 3, 5]".
std::string ShapeText(const std::vector<int64_t>& shape);

// "12.3 us".
std::string MicrosecondsText(double us);

}  // namespace tandem::plan
