#include "client/tandemctl/table.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdio>

#include "common/utf8.h"

namespace tandem::ctl {
namespace {

size_t Width(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string Print(const char* format, double value) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
}

void Table::Add(std::vector<std::string> cells) {
  assert(cells.size() <= headings_.size());
  cells.resize(headings_.size());
  for (std::string& cell : cells) cell = WithoutControlCharacters(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::Text() const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < headings_.size(); ++i) {
    widths.push_back(Width(headings_[i]));
    for (const auto& row : rows_) widths[i] = std::max(widths[i], Width(row[i]));
  }
  std::string text;
  auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (size_t i = 0; i < cells.size(); ++i) {
      std::string padding(widths[i] - Width(cells[i]), ' ');
      out += (i == 0 ? "" : "  ") + (right_[i] ? padding + cells[i] : cells[i] + padding);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  };
  line(headings_);
  for (const auto& row : rows_) line(row);
  return text;
}

std::string Bytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return Print(value < 100 && value != static_cast<int64_t>(value) ? "%.1f " : "%.0f ", value) + kUnits[unit];
}

std::string Micros(double us) {
  if (us <= 0) return "-";
  if (us < 1000) return Print("%.1f us", us);
  if (us < 1e6) return Print("%.2f ms", us / 1e3);
  return Print("%.2f s", us / 1e6);
}

std::string Number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string Age(double seconds) {
  auto whole = static_cast<uint64_t>(std::max(seconds, 0.0));
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min";
  if (whole < 86400) return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
  return std::to_string(whole / 86400) + " d " + std::to_string(whole / 3600 % 24) + " h";
}

}  // namespace tandem::ctl
