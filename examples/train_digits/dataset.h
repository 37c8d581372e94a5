// File: dataset.h
//
// The UCI handwritten digits, split by a seed into a training and a test part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tandem/status.h"

namespace tandem::digits {

inline constexpr int kPixels = 64;
inline constexpr int kClasses = 10;

struct Sample {
  float pixels[kPixels];  // 0 to 1
  int label;
};

struct Dataset {
  std::vector<Sample> train;
  std::vector<Sample> test;
};

// Reads `path` (64 pixels and a label a line) and splits it: a shuffle by `seed`, then one fifth, rounded up,
// for the test. INVALID_ARGUMENT names the line that cannot be read.
Result<Dataset> LoadDigits(const std::string& path, uint64_t seed);

// The order of `count` samples in epoch `epoch`: the same on every rank and machine.
std::vector<int> EpochOrder(int count, uint64_t seed, int epoch);

}  // namespace tandem::digits
