#include "examples/train_digits/report.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

namespace tandem::digits {
namespace {

using nlohmann::json;

bool LooksNumeric(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell[0] == '-');
}

}  // namespace

void PrintTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    if (widths.size() < row.size()) widths.resize(row.size(), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      std::string padding(widths[i] - row[i].size(), ' ');
      line.append(" ").append(LooksNumeric(row[i]) ? padding + row[i] : row[i] + padding).append(" ");
    }
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
  }
}

std::string Format(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof(text), format, value);
  return text;
}

std::string FormatBytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 3) {
    bytes /= 1024;
    ++unit;
  }
  return Format(unit == 0 ? "%.0f " : "%.1f ", bytes) + units[unit];
}

void DrawProgress(const std::string& label, int done, int total) {
  if (::isatty(STDOUT_FILENO) == 0) return;
  constexpr int kWidth = 32;
  int filled = total > 0 ? done * kWidth / total : kWidth;
  std::printf("\r  %s [%s%s] %d/%d ", label.c_str(), std::string(static_cast<size_t>(filled), '#').c_str(),
              std::string(static_cast<size_t>(kWidth - filled), '.').c_str(), done, total);
  std::fflush(stdout);
}

void EndProgress() {
  if (::isatty(STDOUT_FILENO) != 0) std::printf("\r\033[K");
  std::fflush(stdout);
}

void PrintTopology(const json& joined, int world_size) {
  std::printf("Topology of the group: %s\n", joined.value("topology_class", "?").c_str());
  std::vector<std::vector<std::string>> rows(1, {""});
  for (int i = 0; i < world_size; ++i) rows[0].push_back("rank " + std::to_string(i));
  for (int i = 0; i < world_size; ++i) {
    std::vector<std::string> row = {"rank " + std::to_string(i)};
    for (int j = 0; j < world_size; ++j) {
      int links = i == j ? 0 : joined["links"][static_cast<size_t>(i)][static_cast<size_t>(j)].get<int>();
      row.push_back(i == j ? "X" : links > 0 ? "NV" + std::to_string(links) : "PCIe");
    }
    rows.push_back(row);
  }
  PrintTable(rows);
}

void PrintPlans(const json& plans) {
  std::vector<std::vector<std::string>> rows = {{"plan", "operation", "algorithm", "steps x lanes",
                                                 "launches", "moved/launch", "predicted us", "mean us",
                                                 "p99 us", "workspace"}};
  uint64_t shared = 0, unshared = 0;
  for (const json& plan : plans) {
    auto times = plan["microseconds"].get<std::vector<double>>();
    std::sort(times.begin(), times.end());
    double mean = times.empty()
                      ? 0
                      : std::accumulate(times.begin(), times.end(), 0.0) / static_cast<double>(times.size());
    double p99 = times.empty() ? 0 : times[std::min(times.size() - 1, times.size() * 99 / 100)];
    rows.push_back(
        {plan["name"], plan["summary"], plan["algorithm"],
         std::to_string(plan["steps"].get<int>()) + " x " + std::to_string(plan["lanes"].get<int>()),
         std::to_string(times.size()), FormatBytes(plan["bytes_moved"].get<double>()),
         Format("%.1f", plan["predicted_us"].get<double>()), Format("%.1f", mean), Format("%.1f", p99),
         FormatBytes(plan["workspace"].get<double>())});
    shared = std::max(shared, plan["group_workspace"].get<uint64_t>());
    unshared = std::max(unshared, plan["unshared_workspace"].get<uint64_t>());
  }
  PrintTable(rows);
  std::printf("  workspace of the group: %s if each plan had its own, %s shared\n",
              FormatBytes(static_cast<double>(unshared)).c_str(),
              FormatBytes(static_cast<double>(shared)).c_str());
  for (const json& plan : plans) {
    std::printf("  %s: %s because %s\n", plan["name"].get<std::string>().c_str(),
                plan["algorithm"].get<std::string>().c_str(), plan["reason"].get<std::string>().c_str());
    for (const json& other : plan["refused"]) {
      double predicted = other["predicted_us"].get<double>();
      std::printf("      not %s: %s%s\n", other["algorithm"].get<std::string>().c_str(),
                  other["reason"].get<std::string>().c_str(),
                  predicted > 0 ? (" (predicted " + Format("%.1f", predicted) + " us)").c_str() : "");
    }
  }
}

void PrintSweep(const json& rows) {
  std::vector<std::vector<std::string>> table = {{"all-reduce", "algorithm", "median us", "why"}};
  for (const json& row : rows) {
    table.push_back({std::to_string(row["bytes"].get<size_t>()) + " B", row["algorithm"],
                     Format("%.0f", row["median_us"].get<double>()), row["reason"]});
  }
  PrintTable(table);
}

void Checks::Expect(bool passed, const std::string& what) {
  ++made_;
  if (!passed) ++failed_;
  std::printf("  %s  %s\n", passed ? "ok    " : "FAILED", what.c_str());
}

void Checks::Summary() const {
  if (failed_ == 0) {
    std::printf("All %d checks passed.\n", made_);
  } else {
    std::printf("%d of %d checks FAILED.\n", failed_, made_);
  }
}

}  // namespace tandem::digits
