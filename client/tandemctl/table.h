// File: table.h
//
// Tables and quantities for people: aligned columns, numbers to the right, units.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::ctl {

class Table {
 public:
  // A column's heading; one that begins with '>' aligns to the right (the sign is not shown).
  explicit Table(std::vector<std::string> headings);
  // Missing cells are empty, surplus ones an error of the caller.
  void Add(std::vector<std::string> cells);
  // Lines with two spaces between columns and no trailing space. Widths count UTF-8 characters, not bytes.
  std::string Text() const;
  bool empty() const { return rows_.empty(); }

 private:
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "1.5 GiB", "512 B".
std::string Bytes(uint64_t bytes);
// "12.3 us", "4.56 ms", "1.20 s"; "-" for 0.
std::string Micros(double us);
// `value` by `format`, which takes one double: "%.0f %%".
std::string Number(double value, const char* format);
// "3 s", "5 min", "2 h 10 min", "4 d 3 h".
std::string Age(double seconds);
// "0, 2, 3".
template <typename Numbers>
std::string Join(const Numbers& numbers) {
  std::string text;
  for (auto number : numbers) text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

}  // namespace tandem::ctl
