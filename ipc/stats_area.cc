#include "ipc/stats_area.h"

#include <algorithm>
#include <cmath>

namespace tandem {
namespace {

constexpr uint64_t kStatsMagic = 0x54444d5354415431;  // "TDMSTAT1"
constexpr auto kRelaxed = std::memory_order_relaxed;

// Never 0.
uint64_t SeriesKey(uint32_t op, uint32_t algorithm) {
  return uint64_t{1} << 63 | static_cast<uint64_t>(op & 0x7fffffff) << 32 | algorithm;
}

void Add(std::atomic<uint64_t>* counter, uint64_t amount) {
  // One writer: a plain read and write is enough, and cheaper than a locked instruction.
  counter->store(counter->load(kRelaxed) + amount, kRelaxed);
}

}  // namespace

int DurationBucket(int64_t duration_ns) {
  if (duration_ns <= 1000) return 0;
  return std::min(kDurationBuckets - 1,
                  static_cast<int>(4 * std::log2(static_cast<double>(duration_ns) / 1e3)));
}

double DurationBucketUpperUs(int bucket) { return std::exp2((bucket + 1) / 4.0); }

double PlanStats::PercentileUs(double fraction) const {
  uint64_t total = 0;
  for (uint64_t n : histogram) total += n;
  if (total == 0) return 0;
  uint64_t rank = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(total)));
  uint64_t seen = 0;
  for (int bucket = 0; bucket < kDurationBuckets; ++bucket) {
    seen += histogram[bucket];
    if (seen >= rank) return std::min(DurationBucketUpperUs(bucket), static_cast<double>(max_ns) / 1e3);
  }
  return static_cast<double>(max_ns) / 1e3;
}

Result<UniqueFd> CreateStatsArea(uint32_t plan_rows, uint32_t trace_records) {
  constexpr uint32_t kMaxRows = 1u << 20;
  if (plan_rows < 1 || plan_rows > kMaxRows || trace_records > kMaxRows) {
    return InvalidArgument("a stats area has 1 to 2^20 plans and at most 2^20 trace records");
  }
  TANDEM_ASSIGN_OR_RETURN(UniqueFd fd,
                          CreateSealedMemfd("tandem-stats", StatsArea::Bytes(plan_rows, trace_records)));
  TANDEM_ASSIGN_OR_RETURN(Mapping mapping, Mapping::Map(fd.get(), 0, sizeof(StatsArea::Header), true));
  StatsArea::Header* header = mapping.As<StatsArea::Header>();
  header->magic.store(kStatsMagic);
  header->plan_rows.store(plan_rows);
  header->trace_records.store(trace_records);
  return fd;
}

Result<StatsArea> StatsArea::Map(int fd) {
  TANDEM_RETURN_IF_ERROR(CheckForeignMemfd(fd, sizeof(Header)));
  TANDEM_ASSIGN_OR_RETURN(size_t bytes, FileSize(fd));
  StatsArea area;
  TANDEM_ASSIGN_OR_RETURN(area.mapping_, Mapping::Map(fd, 0, bytes, true));
  area.plan_rows_ = area.header()->plan_rows.load();
  area.trace_records_ = area.header()->trace_records.load();
  if (area.header()->magic.load() != kStatsMagic || bytes < Bytes(area.plan_rows_, area.trace_records_)) {
    return InvalidArgument("the descriptor is not a stats area");
  }
  for (int i = static_cast<int>(area.plan_rows_) - 1; i >= 0; --i) area.free_rows_.push_back(i);
  return area;
}

void StatsArea::TakeOver() {
  for (uint32_t i = 0; i < plan_rows_; ++i)
    row(static_cast<int>(i))->plan_id.store(0, std::memory_order_release);
  SetWaiting(0, 0, 0);
  SetStarted(0);
}

StatsRow StatsArea::ClaimRow(uint64_t plan_id, uint64_t group_id, uint32_t op, uint32_t algorithm) {
  StatsRow rows{.plan = -1, .series = ClaimSeries(op, algorithm)};
  if (free_rows_.empty()) return rows;
  rows.plan = free_rows_.back();
  free_rows_.pop_back();
  PlanRow* claimed = row(rows.plan);
  claimed->plan_id.store(0, kRelaxed);
  for (auto* field : {&claimed->launches, &claimed->failures, &claimed->bytes_moved, &claimed->run_ns,
                      &claimed->wait_ns, &claimed->max_ns}) {
    field->store(0, kRelaxed);
  }
  for (auto& bucket : claimed->histogram) bucket.store(0, kRelaxed);
  claimed->group_id.store(group_id, kRelaxed);
  claimed->plan_id.store(plan_id, std::memory_order_release);
  return rows;
}

int StatsArea::ClaimSeries(uint32_t op, uint32_t algorithm) {
  const uint64_t key = SeriesKey(op, algorithm);
  for (int i = 0; i < kMaxSeries; ++i) {
    const uint64_t taken = series(i)->key.load(kRelaxed);
    if (taken == key) return i;
    if (taken != 0) continue;
    series(i)->key.store(key, std::memory_order_release);
    return i;
  }
  return -1;
}

void StatsArea::ReleaseRow(StatsRow released) {
  if (released.plan < 0) return;
  row(released.plan)->plan_id.store(0, std::memory_order_release);
  free_rows_.push_back(released.plan);
}

void StatsArea::Count(StatsRow rows, int code, uint64_t bytes_moved) {
  const bool failed = code != 0;
  const auto add = [&](auto* to) {
    Add(&to->launches, 1);
    if (failed) {
      Add(&to->failures, 1);
    } else {
      Add(&to->bytes_moved, bytes_moved);
    }
  };
  Add(&header()->launches, 1);
  if (failed) {
    const bool known = code > 0 && static_cast<size_t>(code) < kStatsCodes;
    Add(&header()->failures, 1);
    Add(&header()->failures_by_code[known ? code : static_cast<int>(Code::kUnknown)], 1);
  }
  if (rows.series >= 0) add(series(rows.series));
  if (rows.plan >= 0) add(row(rows.plan));
}

void StatsArea::Time(StatsRow rows, const TraceRecord& record) {
  if (record.code == 0) {
    const uint64_t run_ns = record.end_ns > record.start_ns ? record.end_ns - record.start_ns : 0;
    const uint64_t wait_ns = record.start_ns > record.arrive_ns ? record.start_ns - record.arrive_ns : 0;
    const int bucket = DurationBucket(static_cast<int64_t>(run_ns));
    if (rows.series >= 0) {
      SeriesRow* sums = series(rows.series);
      Add(&sums->run_ns, run_ns);
      Add(&sums->wait_ns, wait_ns);
      Add(&sums->runs[bucket], 1);
      Add(&sums->waits[DurationBucket(static_cast<int64_t>(wait_ns))], 1);
    }
    if (rows.plan >= 0) {
      PlanRow* plan = row(rows.plan);
      Add(&plan->run_ns, run_ns);
      Add(&plan->wait_ns, wait_ns);
      if (run_ns > plan->max_ns.load(kRelaxed)) plan->max_ns.store(run_ns, kRelaxed);
      Add(&plan->histogram[bucket], 1);
    }
  }
  Trace(record);
}

void StatsArea::SetWaiting(uint32_t waiting, uint32_t late_ranks, uint64_t oldest_arrive_ns) {
  header()->waiting.store(waiting, kRelaxed);
  header()->late_ranks.store(late_ranks, kRelaxed);
  header()->oldest_arrive_ns.store(oldest_arrive_ns, kRelaxed);
}

QueueState StatsArea::Queue() const {
  return {.waiting = header()->waiting.load(kRelaxed),
          .started = header()->started.load(kRelaxed),
          .late_ranks = header()->late_ranks.load(kRelaxed),
          .oldest_arrive_ns = header()->oldest_arrive_ns.load(kRelaxed)};
}

std::array<uint64_t, kStatsCodes> StatsArea::FailuresByCode() const {
  std::array<uint64_t, kStatsCodes> counts{};
  for (size_t code = 0; code < kStatsCodes; ++code)
    counts[code] = header()->failures_by_code[code].load(kRelaxed);
  return counts;
}

std::vector<SeriesStats> StatsArea::ReadSeries() const {
  std::vector<SeriesStats> all;
  for (int i = 0; i < kMaxSeries; ++i) {
    const SeriesRow* from = series(i);
    const uint64_t key = from->key.load(std::memory_order_acquire);
    if (key == 0) break;
    SeriesStats sums;
    sums.op = static_cast<uint32_t>(key >> 32) & 0x7fffffff;
    sums.algorithm = static_cast<uint32_t>(key);
    sums.launches = from->launches.load(kRelaxed);
    sums.failures = from->failures.load(kRelaxed);
    sums.bytes_moved = from->bytes_moved.load(kRelaxed);
    sums.run_ns = from->run_ns.load(kRelaxed);
    sums.wait_ns = from->wait_ns.load(kRelaxed);
    for (size_t b = 0; b < kDurationBuckets; ++b) {
      sums.runs[b] = from->runs[b].load(kRelaxed);
      sums.waits[b] = from->waits[b].load(kRelaxed);
    }
    all.push_back(sums);
  }
  return all;
}

void StatsArea::Trace(const TraceRecord& record) {
  if (trace_records_ == 0) return;
  uint64_t traced = header()->traced.load(kRelaxed);
  TraceSlot* slot = trace_slot(traced);
  slot->index.store(0, kRelaxed);
  // Release stores keep the fields behind the cleared index.
  slot->plan_id.store(record.plan_id, std::memory_order_release);
  slot->group_id.store(record.group_id, std::memory_order_release);
  slot->launch.store(record.launch, std::memory_order_release);
  slot->arrive_ns.store(record.arrive_ns, std::memory_order_release);
  slot->start_ns.store(record.start_ns, std::memory_order_release);
  slot->end_ns.store(record.end_ns, std::memory_order_release);
  slot->code_and_step.store(static_cast<uint32_t>(record.code) |
                                static_cast<uint64_t>(record.step + 1) << 32 |
                                static_cast<uint64_t>(record.lane) << 56,
                            std::memory_order_release);
  slot->index.store(traced + 1, std::memory_order_release);
  header()->traced.store(traced + 1, std::memory_order_release);
}

std::vector<PlanStats> StatsArea::ReadPlans() const {
  std::vector<PlanStats> plans;
  for (uint32_t i = 0; i < plan_rows_; ++i) {
    const PlanRow* from = row(static_cast<int>(i));
    PlanStats stats;
    stats.plan_id = from->plan_id.load(std::memory_order_acquire);
    if (stats.plan_id == 0) continue;
    stats.group_id = from->group_id.load(kRelaxed);
    stats.launches = from->launches.load(kRelaxed);
    stats.failures = from->failures.load(kRelaxed);
    stats.bytes_moved = from->bytes_moved.load(kRelaxed);
    stats.run_ns = from->run_ns.load(kRelaxed);
    stats.wait_ns = from->wait_ns.load(kRelaxed);
    stats.max_ns = from->max_ns.load(kRelaxed);
    for (int b = 0; b < kDurationBuckets; ++b) stats.histogram[b] = from->histogram[b].load(kRelaxed);
    if (from->plan_id.load(std::memory_order_acquire) == stats.plan_id) plans.push_back(stats);
  }
  return plans;
}

std::vector<TraceRecord> StatsArea::ReadTrace(uint64_t most) const {
  std::vector<TraceRecord> records;
  uint64_t end = header()->traced.load(std::memory_order_acquire);
  const uint64_t kept = std::min<uint64_t>(trace_records_, most);
  uint64_t begin = end > kept ? end - kept : 0;
  for (uint64_t i = begin; i < end; ++i) {
    const TraceSlot* slot = trace_slot(i);
    constexpr auto kAcquire = std::memory_order_acquire;
    if (slot->index.load(kAcquire) != i + 1) continue;
    TraceRecord record;
    record.plan_id = slot->plan_id.load(kAcquire);
    record.group_id = slot->group_id.load(kAcquire);
    record.launch = slot->launch.load(kAcquire);
    record.arrive_ns = slot->arrive_ns.load(kAcquire);
    record.start_ns = slot->start_ns.load(kAcquire);
    record.end_ns = slot->end_ns.load(kAcquire);
    uint64_t code_and_step = slot->code_and_step.load(kAcquire);
    record.code = static_cast<int32_t>(static_cast<uint32_t>(code_and_step));
    record.step = static_cast<int>(code_and_step >> 32 & 0xffffff) - 1;
    record.lane = static_cast<int>(code_and_step >> 56);
    if (slot->index.load(kAcquire) == i + 1) records.push_back(record);
  }
  return records;
}

}  // namespace tandem
