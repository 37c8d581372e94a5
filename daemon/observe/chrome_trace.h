// File: chrome_trace.h
//
// The node's latest launches as Chrome trace JSON (chrome://tracing, Perfetto): a process row for each GPU, a
// thread row for each plan on it, a slice from arrival to start ("wait") and one from start to end. Sampled
// launches have a slice for each step too, in a row for each lane. The format is the Trace Event Format, "X"
// and "M" events, times in microseconds.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ipc/stats_area.h"

namespace tandem::daemon {

// A slice's name and annotations.
struct TracePlan {
  std::string group_name;
  std::string summary;  // op, shapes, dtype
  std::string algorithm;
  std::map<size_t, std::vector<std::string>> steps = {};  // by GPU: what each step is called; may be empty
};

// The text, and whether launches were left out that `last` allowed.
struct ChromeTraceText {
  std::string json;
  bool truncated = false;
};

// `records[gpu]` is what ReadTrace of that GPU's area gave; `gpu_names[gpu]` labels its row. Only the `last`
// launches of each GPU are taken; 0 means all. The latest ones of all GPUs are taken that fit into
// `max_bytes` of text, possibly none. Plans that have been released keep their numbers as names.
ChromeTraceText ChromeTrace(std::span<const std::vector<TraceRecord>> records,
                            std::span<const std::string> gpu_names,
                            const std::map<uint64_t, TracePlan>& plans, uint32_t last, size_t max_bytes);

}  // namespace tandem::daemon
