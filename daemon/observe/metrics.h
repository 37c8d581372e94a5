// File: metrics.h
//
// Prometheus metrics: base units, counters named _total, labels with a bounded set of values only. Labels are
// GPU UUID, operation, algorithm, canonical code, quota, XID, kind of fault, and at most kMaxOwners owners. A
// live plan's id is a label where the configuration wants that. Engines count launches as they end, in their
// stats areas: a scrape reads sums, and changes nothing.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "daemon/control/base/snapshot.h"
#include "daemon/observe/gpu_health.h"
#include "daemon/observe/link_traffic.h"
#include "daemon/observe/process_info.h"
#include "daemon/supervisor/engines.h"
#include "ipc/stats_area.h"

namespace prometheus {
struct MetricFamily;
}

namespace tandem::daemon {

// The snapshots that the metrics are made from.
struct MetricsInput {
  ControlSnapshot control;
  std::vector<PoolSnapshot> pools;
  std::vector<EngineStatus> engines;  // by GPU
  std::vector<std::string> gpu_uuids;
  // By GPU, since the daemon's start.
  std::vector<uint64_t> launches, failures, busy_ns, speculated, cancelled, late;
  std::vector<std::vector<SeriesStats>> series;             // by GPU
  std::array<uint64_t, kStatsCodes> failures_by_code = {};  // of all GPUs
  std::vector<QueueState> queues;                           // by GPU
  uint64_t now_ns = 0;                                      // CLOCK_MONOTONIC, after `queues` was read
  // Of the live plans, where each plan has series; else empty.
  struct PlanLabels {
    std::string op, algorithm;
  };
  std::vector<std::vector<PlanStats>> plans;          // by GPU
  std::map<uint64_t, PlanLabels> labels;              // by plan
  std::map<uint64_t, std::vector<int>> gpus_of_plan;  // by rank
  std::vector<LinkRate> links;                        // measured
  std::vector<GpuCondition> gpus;                     // by GPU; empty: nobody looks
  ProcessInfo process;
  std::string version, backend;
};

// The families for one scrape.
std::vector<prometheus::MetricFamily> CollectMetrics(const MetricsInput& input);

}  // namespace tandem::daemon
