// File: stats_area.h
//
// `StatsArea`: an engine's statistics, in shared memory that tandemd makes and reads. It holds counters and a
// duration histogram for each plan, the same for each operation and algorithm, what waits now, and the latest
// launches as trace records. A plan's figures end with the plan. Those of an operation and algorithm are
// added to as launches end, and only grow, whatever becomes of plans and engines. One writer (the engine's
// main thread), any number of readers. All fields are atomics; a record that is overwritten while it is read
// is left out.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/shared_memory.h"
#include "common/unique_fd.h"
#include "tandem/status.h"

namespace tandem {

// Durations from arrival's completion (start) to end fall into buckets of a quarter octave: bucket b covers
// [2^(b/4), 2^((b+1)/4)) µs, the first one everything below, the last one everything above.
inline constexpr int kDurationBuckets = 96;
// The bucket of a duration, and the upper bound of a bucket in µs.
int DurationBucket(int64_t duration_ns);
double DurationBucketUpperUs(int bucket);

// A plan on one GPU, as a reader gets it.
struct PlanStats {
  uint64_t plan_id = 0;
  uint64_t group_id = 0;
  uint64_t launches = 0;  // ended, failed ones included
  uint64_t failures = 0;
  uint64_t bytes_moved = 0;
  uint64_t run_ns = 0;   // sum of start to end
  uint64_t wait_ns = 0;  // sum of this rank's arrival to start
  uint64_t max_ns = 0;
  std::array<uint64_t, kDurationBuckets> histogram{};
  // The duration in µs below which `fraction` (0 to 1) of the launches stayed, from the histogram; 0 without
  // launches.
  double PercentileUs(double fraction) const;
  double MeanUs() const {
    return launches == failures ? 0 : run_ns / 1e3 / static_cast<double>(launches - failures);
  }
};

// All launches of one operation and algorithm on one GPU, whatever their plans.
struct SeriesStats {
  uint32_t op = 0;         // as the plans' AddPlan has it
  uint32_t algorithm = 0;  // likewise
  uint64_t launches = 0;   // ended, failed ones included
  uint64_t failures = 0;
  uint64_t bytes_moved = 0;
  uint64_t run_ns = 0;   // sums over launches that ended with OK: start to end,
  uint64_t wait_ns = 0;  // and this rank's arrival to start
  std::array<uint64_t, kDurationBuckets> runs{}, waits{};
};

// The launches that have arrived on one GPU and not ended.
struct QueueState {
  uint32_t waiting = 0;           // launches that have not started
  uint32_t started = 0;           // launches on lanes
  uint32_t late_ranks = 0;        // ranks missing at launches that have waited for more than a second
  uint64_t oldest_arrive_ns = 0;  // of the waiting launches, CLOCK_MONOTONIC; 0: none waits
};

// Where a plan's launches are counted. -1: nowhere.
struct StatsRow {
  int plan = -1;
  int series = -1;
};

// Canonical codes, OK included.
inline constexpr size_t kStatsCodes = 17;

// One launch on one GPU, or one step of a sampled launch; times are CLOCK_MONOTONIC nanoseconds, 0 where it
// did not get so far.
struct TraceRecord {
  uint64_t plan_id = 0;
  uint64_t group_id = 0;
  uint64_t launch = 0;  // of the plan, from 1
  uint64_t arrive_ns = 0;
  uint64_t start_ns = 0;
  uint64_t end_ns = 0;
  int32_t code = 0;  // canonical
  int step = -1;     // of the launch's program, in its order; -1: the launch as a whole
  int lane = 0;      // a step's
};

// Makes the area for `plan_rows` plans and the last `trace_records` launches (both at most 2^20; at least 1
// plan, and 0 records keep no trace).
Result<UniqueFd> CreateStatsArea(uint32_t plan_rows, uint32_t trace_records);

class StatsArea {
 public:
  StatsArea() = default;
  static Result<StatsArea> Map(int fd);

  // Engine, before anything else: frees the plans' rows that an engine before it has left, which has ended,
  // and clears what waited there. The totals, the sums by operation and algorithm, and the trace stay.
  void TakeOver();
  // Engine: rows for the plan. `plan` is -1 if all are taken: then the plan has no separate statistics.
  StatsRow ClaimRow(uint64_t plan_id, uint64_t group_id, uint32_t op = 0, uint32_t algorithm = 0);
  void ReleaseRow(StatsRow row);
  // Engine: a launch has ended with this canonical code, and when it ran, which may be known a little later.
  void Count(StatsRow row, int code, uint64_t bytes_moved);
  void Time(StatsRow row, const TraceRecord& record);
  // Engine: a launch has waited for a second. Once a launch.
  void CountLate() { header()->late.fetch_add(1, std::memory_order_relaxed); }
  // Engine: what waits, and what is on lanes.
  void SetWaiting(uint32_t waiting, uint32_t late_ranks, uint64_t oldest_arrive_ns);
  void SetStarted(uint32_t started) { header()->started.store(started, std::memory_order_relaxed); }
  // Engine: a step of a sampled launch, for the trace alone.
  void RecordStep(const TraceRecord& record) { Trace(record); }
  bool traces() const { return trace_records_ > 0; }
  // Engine: a launch found its first kernel on the lane; a kernel there was cancelled, since another launch
  // came first.
  void CountSpeculated() { header()->speculated.fetch_add(1, std::memory_order_relaxed); }
  void CountCancelled() { header()->cancelled.fetch_add(1, std::memory_order_relaxed); }
  void SetGpuTime(uint64_t busy_ns) { header()->busy_ns.store(busy_ns, std::memory_order_relaxed); }

  // Readers.
  std::vector<PlanStats> ReadPlans() const;
  std::vector<SeriesStats> ReadSeries() const;
  // The latest `most` records, the oldest of them first.
  std::vector<TraceRecord> ReadTrace(uint64_t most = UINT64_MAX) const;
  QueueState Queue() const;
  uint64_t Launches() const { return header()->launches.load(std::memory_order_relaxed); }
  uint64_t Failures() const { return header()->failures.load(std::memory_order_relaxed); }
  // Launches that ended with each canonical code other than OK; a code that is none counts as UNKNOWN.
  std::array<uint64_t, kStatsCodes> FailuresByCode() const;
  // Launches that have waited for a second.
  uint64_t Late() const { return header()->late.load(std::memory_order_relaxed); }
  uint64_t Speculated() const { return header()->speculated.load(std::memory_order_relaxed); }
  uint64_t Cancelled() const { return header()->cancelled.load(std::memory_order_relaxed); }
  // Nanoseconds in which at least one program ran.
  uint64_t BusyNs() const { return header()->busy_ns.load(std::memory_order_relaxed); }

 private:
  friend Result<UniqueFd> CreateStatsArea(uint32_t plan_rows, uint32_t trace_records);
  void Trace(const TraceRecord& record);
  struct Header {
    std::atomic<uint64_t> magic;
    std::atomic<uint32_t> plan_rows;
    std::atomic<uint32_t> trace_records;
    std::atomic<uint64_t> launches, failures, busy_ns, speculated, cancelled;
    std::atomic<uint64_t> traced;  // records ever written
    std::atomic<uint64_t> late;
    std::atomic<uint64_t> failures_by_code[kStatsCodes];
    std::atomic<uint32_t> waiting, started, late_ranks;
    std::atomic<uint64_t> oldest_arrive_ns;
  };
  struct alignas(64) SeriesRow {
    std::atomic<uint64_t> key;  // 0: free, and so are all behind it
    std::atomic<uint64_t> launches, failures, bytes_moved, run_ns, wait_ns;
    std::atomic<uint64_t> runs[kDurationBuckets], waits[kDurationBuckets];
  };
  struct alignas(64) PlanRow {
    std::atomic<uint64_t> plan_id;  // 0: free
    std::atomic<uint64_t> group_id, launches, failures, bytes_moved, run_ns, wait_ns, max_ns;
    std::atomic<uint64_t> histogram[kDurationBuckets];
  };
  struct alignas(64) TraceSlot {
    std::atomic<uint64_t> index;  // of the record + 1; 0 while it is written
    std::atomic<uint64_t> plan_id, group_id, launch, arrive_ns, start_ns, end_ns;
    std::atomic<uint64_t> code_and_step;  // code, (step + 1) << 32, lane << 56
  };
  // More than there are operations times algorithms.
  static constexpr int kMaxSeries = 256;
  static constexpr size_t kSeriesOffset = 4096;
  static constexpr size_t kRowsOffset = kSeriesOffset + kMaxSeries * sizeof(SeriesRow);
  static_assert(sizeof(Header) <= kSeriesOffset);
  static size_t Bytes(uint32_t plan_rows, uint32_t trace_records) {
    return kRowsOffset + plan_rows * sizeof(PlanRow) + trace_records * sizeof(TraceSlot);
  }
  Header* header() const { return mapping_.As<Header>(); }
  SeriesRow* series(int index) const { return mapping_.As<SeriesRow>(kSeriesOffset) + index; }
  int ClaimSeries(uint32_t op, uint32_t algorithm);
  PlanRow* row(int index) const { return mapping_.As<PlanRow>(kRowsOffset) + index; }
  TraceSlot* trace_slot(uint64_t index) const {
    return mapping_.As<TraceSlot>(kRowsOffset + plan_rows_ * sizeof(PlanRow)) + index % trace_records_;
  }

  Mapping mapping_;
  uint32_t plan_rows_ = 0;
  uint32_t trace_records_ = 0;
  std::vector<int> free_rows_;
};

}  // namespace tandem
