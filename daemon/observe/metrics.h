// File: metrics.h
//
// Prometheus metrics: base units, counters named _total, labels with a bounded set of values only (GPU UUID,
// operation, algorithm, canonical code; a live plan's id). Collected from snapshots at each scrape; nothing
// is counted on the launch path.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/control/snapshot.h"
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
  std::vector<uint64_t> launches, failures, busy_ns, prelaunched,
      called_off;                             // by GPU, since the daemon's start
  std::vector<std::vector<PlanStats>> plans;  // by GPU
  struct PlanLabels {
    std::string op, algorithm;
  };
  std::map<uint64_t, PlanLabels> labels;              // of the live plans
  std::map<uint64_t, std::vector<int>> gpus_of_plan;  // of the live plans, by rank
  std::vector<LinkRate> links;                        // measured
  ProcessInfo process;
  std::string version, backend;
};

// Sums plans' counters by {GPU, op, algorithm}, so that they go on growing after a plan has been released.
// Not thread-safe.
class LaunchCounters {
 public:
  struct Key {
    std::string gpu_uuid, op, algorithm;
    auto operator<=>(const Key&) const = default;
  };
  struct Value {
    uint64_t launches = 0, failures = 0, bytes_moved = 0, run_ns = 0;
    std::vector<uint64_t> histogram = std::vector<uint64_t>(kDurationBuckets, 0);
  };
  // Adds what has happened since the last call. Plans without labels are counted once they have them.
  void Update(const MetricsInput& input);
  const std::map<Key, Value>& values() const { return values_; }

 private:
  std::map<std::pair<size_t, uint64_t>, PlanStats> seen_;  // by GPU and plan
  std::map<Key, Value> values_;
};

// The families for one scrape.
std::vector<prometheus::MetricFamily> CollectMetrics(const MetricsInput& input,
                                                     const LaunchCounters& launches);

}  // namespace tandem::daemon
