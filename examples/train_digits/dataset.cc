#include "examples/train_digits/dataset.h"

#include <cstdlib>
#include <fstream>
#include <numeric>
#include <utility>

namespace tandem::digits {
namespace {

// std::shuffle may differ between standard libraries; this one is the same everywhere (splitmix64,
// Fisher-Yates).
uint64_t NextRandom(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

std::vector<int> Shuffled(int count, uint64_t seed) {
  std::vector<int> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  for (int i = count - 1; i > 0; --i) {
    auto j = static_cast<size_t>(NextRandom(seed) % static_cast<uint64_t>(i + 1));
    std::swap(order[static_cast<size_t>(i)], order[j]);
  }
  return order;
}

bool ParseLine(const std::string& line, Sample* sample) {
  const char* cursor = line.c_str();
  for (int i = 0; i <= kPixels; ++i) {
    char* end = nullptr;
    long value = std::strtol(cursor, &end, 10);
    if (end == cursor || (i < kPixels && *end != ',') || value < 0 ||
        value > (i < kPixels ? 16 : kClasses - 1)) {
      return false;
    }
    if (i < kPixels) {
      sample->pixels[i] = static_cast<float>(value) / 16.0f;
    } else {
      sample->label = static_cast<int>(value);
    }
    cursor = end + 1;
  }
  return true;
}

}  // namespace

Result<Dataset> LoadDigits(const std::string& path, uint64_t seed) {
  std::ifstream file(path);
  if (!file) return NotFound("cannot read the data set " + path);
  std::vector<Sample> samples;
  for (std::string line; std::getline(file, line);) {
    Sample sample{};
    if (!ParseLine(line, &sample)) {
      return InvalidArgument(path + ":" + std::to_string(samples.size() + 1) + ": not 64 pixels and a digit");
    }
    samples.push_back(sample);
  }
  if (samples.size() < 10) return InvalidArgument(path + ": too few images");
  std::vector<int> order = Shuffled(static_cast<int>(samples.size()), seed);
  size_t test = (samples.size() + 4) / 5;
  Dataset dataset;
  for (size_t i = 0; i < order.size(); ++i) {
    auto& part = i < samples.size() - test ? dataset.train : dataset.test;
    part.push_back(samples[static_cast<size_t>(order[i])]);
  }
  return dataset;
}

std::vector<int> EpochOrder(int count, uint64_t seed, int epoch) {
  return Shuffled(count, seed * 1000003 + static_cast<uint64_t>(epoch));
}

}  // namespace tandem::digits
