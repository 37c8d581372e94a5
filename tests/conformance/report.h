// File: report.h
//
// The results of a run: a line a case while it runs (TAP), then a table and the failing cases, and all of it
// as JSON.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/conformance/conformance_case.h"
#include "tests/conformance/options.h"

namespace tandem::conformance {

// How a case came out on all ranks together.
struct Verdict {
  std::string wrong;    // what, by rank; empty: right, or refused with a good reason
  std::string refusal;  // empty: it ran
  std::string code;     // of the first rank that failed: "INTERNAL", …
  // The first wrong element that a rank reported, with its slot. Empty if it was no comparison.
  std::string first_wrong;
  bool broken = false;  // the group serves no further case
};

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  // `place`: the case's place in the seed's order for `world`.
  void Add(int world, const Case& test, const Verdict& verdict, double milliseconds, size_t place);
  // Something that is no case's: a world that was given up, a stress that failed.
  void Fail(int world, const std::string& what);
  void AddStress(int world, const nlohmann::json& first);
  void AddRestart() { ++restarts_; }
  // How many cases a world's seed, filter and sample have drawn.
  void AddDrawn(size_t cases) { drawn_ += cases; }
  void AddCut(int world);

  int run() const { return run_; }
  int failed() const { return failed_; }
  // An algorithm that was refused often and has never run: asked for no more.
  bool NeverRuns(const Case& test) const;
  // Prints the table, writes the JSON; the program's exit code.
  int Summarise(double seconds);

 private:
  struct Row {
    int right = 0, refused = 0, wrong = 0;
    std::map<std::string, int> refusals;  // how often for which reason, numbers aside
  };
  struct Before {
    int world;
    size_t place;
    std::string name;
  };

  // Fails for each of the options' `must_run` that no right case bears out.
  void FailUnlessRun();
  // Prints and returns what ran before a case that broke the group: what failed may have been begun there.
  nlohmann::json TellBefore(int world, size_t place) const;

  const Options& options_;
  std::map<std::string, Row> table_;  // by operation and algorithm
  std::deque<Before> before_;         // the last cases of this incarnation of the group
  nlohmann::json failures_ = nlohmann::json::array();
  int run_ = 0, refused_ = 0, failed_ = 0, restarts_ = 0, cut_ = 0;
  size_t drawn_ = 0;
};

}  // namespace tandem::conformance
