// File: measure.h
//
// The common parts of the benchmarks: a clock, order statistics, and the JSON line that each result is.
#pragma once

#include <string>
#include <vector>

namespace tandem::bench {

// CLOCK_MONOTONIC in microseconds.
double NowUs();

// Prints {"name":…,"value":median,"unit":…,"samples":n,"p10":…,"p90":…,"p99":…} and flushes. The value of
// a single sample is itself.
void Report(const std::string& name, std::vector<double> samples, const std::string& unit);

}  // namespace tandem::bench
