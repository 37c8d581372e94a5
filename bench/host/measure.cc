#include "bench/host/measure.h"

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace tandem::bench {

double NowUs() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

void Report(const std::string& name, std::vector<double> samples, const std::string& unit) {
  std::sort(samples.begin(), samples.end());
  auto at = [&](size_t percent) {
    return samples[std::min(samples.size() - 1, samples.size() * percent / 100)];
  };
  nlohmann::ordered_json line;
  line["name"] = name;
  line["value"] = at(50);
  line["unit"] = unit;
  line["samples"] = samples.size();
  if (samples.size() > 1) {
    line["p10"] = at(10);
    line["p90"] = at(90);
    line["p99"] = at(99);
  }
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace tandem::bench
