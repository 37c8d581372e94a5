// File: tuning_entries.h
//
// Entries and a directory for the tests of tuning files.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "daemon/planner/tuning/tuning_table.h"

namespace tandem::daemon {

inline plan::TuningEntry MakeEntry(int64_t bytes, double us = 12.5) {
  plan::TuningEntry entry;
  entry.key = {"NVIDIA H200", "nvswitch", 4, Op::kAllReduce, "bf16 -> bf16", "", "in_place"};
  entry.shape = {bytes};
  entry.measured_at = "2026-01-31T12:00:00Z";
  entry.version = "0.1.0";
  entry.candidates = {{Algorithm::kOneShot, 0, 0, 9, us, us - 1, us + 2, ""},
                      {Algorithm::kTwoShot, 0, 0, 9, us + 5, us, us + 9, ""},
                      {Algorithm::kNccl, 0, 0, 0, 0, 0, 0, "NCCL is \"not\" available"}};
  return entry;
}

class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = ::testing::TempDir() + "tuning.XXXXXX";
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempDirectory() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void WriteText(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::trunc) << text;
}

inline std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace tandem::daemon
