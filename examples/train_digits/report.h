// File: report.h
//
// The example's output: tables, the progress bar, and the checks with their verdicts.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tandem::digits {

// Columns aligned, numbers to the right; the first row is the heading.
void PrintTable(const std::vector<std::vector<std::string>>& rows);

// "12.3 KiB".
std::string FormatBytes(double bytes);
// Printf-style number.
std::string Format(const char* format, double value);

// One line that redraws itself on a terminal, and nothing where the output is a file.
void DrawProgress(const std::string& label, int done, int total);
void EndProgress();

// Topology class and link matrix of the group.
void PrintTopology(const nlohmann::json& joined, int world_size);
// The plans with their explanations; `name` etc. as the worker's event "plans" has them.
void PrintPlans(const nlohmann::json& plans);
void PrintSweep(const nlohmann::json& rows);

// Collects verdicts: prints each check as it is made, and knows whether all passed.
class Checks {
 public:
  void Expect(bool passed, const std::string& what);
  bool all_passed() const { return failed_ == 0; }
  // The last line.
  void Summary() const;

 private:
  int made_ = 0;
  int failed_ = 0;
};

}  // namespace tandem::digits
