#include "daemon/observe/metrics.h"

#include <prometheus/metric_family.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#include "tandem/op_request.h"

namespace tandem::daemon {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

ClientMetric WithLabels(const Labels& labels) {
  ClientMetric metric;
  for (const auto& [name, value] : labels) metric.label.push_back({name, value});
  return metric;
}

class Families {
 public:
  MetricFamily& Add(const char* name, const char* help, MetricType type) {
    MetricFamily family;
    family.name = name;
    family.help = help;
    family.type = type;
    families_.push_back(std::move(family));
    return families_.back();
  }
  void Counter(const char* name, const char* help, double value) {
    AddCounter(Add(name, help, MetricType::Counter), {}, value);
  }
  void Gauge(const char* name, const char* help, double value) {
    AddGauge(Add(name, help, MetricType::Gauge), {}, value);
  }
  static void AddCounter(MetricFamily& family, const Labels& labels, double value) {
    ClientMetric metric = WithLabels(labels);
    metric.counter.value = value;
    family.metric.push_back(std::move(metric));
  }
  static void AddGauge(MetricFamily& family, const Labels& labels, double value) {
    ClientMetric metric = WithLabels(labels);
    metric.gauge.value = value;
    family.metric.push_back(std::move(metric));
  }
  std::vector<MetricFamily> Take() {
    return {std::make_move_iterator(families_.begin()), std::make_move_iterator(families_.end())};
  }

 private:
  std::deque<MetricFamily> families_;  // references to earlier ones stay valid
};

// Every fourth bucket of the engines' quarter octaves: powers of two of a microsecond, in seconds.
ClientMetric DurationHistogram(const Labels& labels, const std::array<uint64_t, kDurationBuckets>& buckets,
                               uint64_t sum_ns) {
  ClientMetric metric = WithLabels(labels);
  uint64_t sum = 0;
  for (int i = 0; i < kDurationBuckets; ++i) {
    sum += buckets[static_cast<size_t>(i)];
    if (i % 4 == 3 && i < kDurationBuckets - 1)
      metric.histogram.bucket.push_back({sum, DurationBucketUpperUs(i) * 1e-6});
  }
  metric.histogram.bucket.push_back({sum, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = sum;
  metric.histogram.sample_sum = static_cast<double>(sum_ns) * 1e-9;
  return metric;
}

void AddEngines(const MetricsInput& input, Families& families) {
  auto& restart_family =
      families.Add("tandem_engine_restarts_total", "Restarts of a GPU's engine", MetricType::Counter);
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    Families::AddCounter(restart_family, {{"gpu", input.gpu_uuids[gpu]}}, input.engines[gpu].restarts);
  }
  auto& state_family =
      families.Add("tandem_engine_state", "1 for the state that a GPU's engine is in", MetricType::Gauge);
  for (size_t gpu = 0; gpu < input.engines.size(); ++gpu) {
    for (EngineState candidate : {EngineState::kStarting, EngineState::kReady, EngineState::kIdle,
                                  EngineState::kDown, EngineState::kCrashLooped}) {
      Families::AddGauge(state_family, {{"gpu", input.gpu_uuids[gpu]}, {"state", EngineStateName(candidate)}},
                         input.engines[gpu].state == candidate ? 1 : 0);
    }
  }
  const auto by_gpu = [&](const char* name, const char* help, const std::vector<uint64_t>& values,
                          double unit) {
    auto& family = families.Add(name, help, MetricType::Counter);
    for (size_t gpu = 0; gpu < values.size(); ++gpu) {
      Families::AddCounter(family, {{"gpu", input.gpu_uuids[gpu]}}, values[gpu] * unit);
    }
  };
  by_gpu("tandem_engine_busy_seconds_total", "Time in which at least one program ran", input.busy_ns, 1e-9);
  by_gpu("tandem_engine_launches_total", "Launches that have ended, on each GPU", input.launches, 1);
  by_gpu("tandem_engine_launch_failures_total", "Launches that have failed, on each GPU", input.failures, 1);
  by_gpu("tandem_engine_speculated_total", "Launches that found their first kernel on its lane",
         input.speculated, 1);
  by_gpu("tandem_engine_cancelled_total", "Cancelled kernels that waited on a lane for a launch",
         input.cancelled, 1);
  by_gpu("tandem_late_launches_total", "Launches that have waited over a second for other ranks", input.late,
         1);
}

void AddLaunches(const MetricsInput& input, Families& families) {
  auto& count =
      families.Add("tandem_launches_total", "Launches by operation and algorithm", MetricType::Counter);
  auto& bytes = families.Add("tandem_moved_bytes_total", "Bytes sent to peers", MetricType::Counter);
  auto& durations = families.Add("tandem_launch_duration_seconds", "From a launch's start to its end",
                                 MetricType::Histogram);
  auto& waits =
      families.Add("tandem_launch_wait_seconds", "From a rank's arrival at a launch to the launch's start",
                   MetricType::Histogram);
  for (size_t gpu = 0; gpu < input.series.size(); ++gpu) {
    for (const SeriesStats& series : input.series[gpu]) {
      const Labels labels = {
          {"gpu", input.gpu_uuids[gpu]},
          {"op", std::string(OpName(static_cast<Op>(series.op)))},
          {"algorithm", std::string(AlgorithmName(static_cast<Algorithm>(series.algorithm)))}};
      Families::AddCounter(count, labels, series.launches);
      Families::AddCounter(bytes, labels, series.bytes_moved);
      durations.metric.push_back(DurationHistogram(labels, series.runs, series.run_ns));
      waits.metric.push_back(DurationHistogram(labels, series.waits, series.wait_ns));
    }
  }
  auto& failures =
      families.Add("tandem_launch_failures_total", "Failed launches by canonical code", MetricType::Counter);
  for (size_t code = 1; code < kStatsCodes; ++code) {
    Families::AddCounter(failures, {{"code", std::string(CodeName(static_cast<Code>(code)))}},
                         input.failures_by_code[code]);
  }
}

void AddQueues(const MetricsInput& input, Families& families) {
  auto& depth = families.Add("tandem_queue_launches", "Launches that have arrived and not ended, by state",
                             MetricType::Gauge);
  auto& oldest =
      families.Add("tandem_oldest_waiting_launch_seconds",
                   "Age of the launch that has waited the longest; 0: none waits", MetricType::Gauge);
  auto& late = families.Add(
      "tandem_late_ranks", "Ranks missing at launches that have waited for over a second", MetricType::Gauge);
  for (size_t gpu = 0; gpu < input.queues.size(); ++gpu) {
    const QueueState& queue = input.queues[gpu];
    const std::string& uuid = input.gpu_uuids[gpu];
    Families::AddGauge(depth, {{"gpu", uuid}, {"state", "waiting"}}, queue.waiting);
    Families::AddGauge(depth, {{"gpu", uuid}, {"state", "started"}}, queue.started);
    const bool waits = queue.oldest_arrive_ns != 0 && queue.oldest_arrive_ns < input.now_ns;
    Families::AddGauge(oldest, {{"gpu", uuid}},
                       waits ? static_cast<double>(input.now_ns - queue.oldest_arrive_ns) * 1e-9 : 0);
    Families::AddGauge(late, {{"gpu", uuid}}, queue.late_ranks);
  }
}

// Series of the driver's reports. A GPU that does not report a value has no series of it.
void AddGpuHealth(const MetricsInput& input, Families& families) {
  auto& cordoned =
      families.Add("tandem_gpu_cordoned", "1 while the GPU takes no new groups", MetricType::Gauge);
  for (size_t gpu = 0; gpu < input.gpu_uuids.size(); ++gpu) {
    Families::AddGauge(cordoned, {{"gpu", input.gpu_uuids[gpu]}},
                       input.control.cordoned_gpus.contains(static_cast<int>(gpu)) ? 1 : 0);
  }
  if (input.gpus.empty()) return;
  auto& faults =
      families.Add("tandem_gpu_fault", "1 while the GPU has a fault of this kind", MetricType::Gauge);
  auto& xids = families.Add("tandem_gpu_xid_errors_total", "XIDs since tandemd's start", MetricType::Counter);
  auto& ecc = families.Add("tandem_gpu_ecc_uncorrected_total",
                           "Uncorrected memory errors since the driver was loaded", MetricType::Counter);
  auto& rows =
      families.Add("tandem_gpu_remapped_rows", "Rows of memory replaced by spare ones", MetricType::Gauge);
  auto& active = families.Add("tandem_gpu_nvlinks_active", "Active NVLinks", MetricType::Gauge);
  auto& missing = families.Add("tandem_gpu_nvlinks_inactive", "NVLinks that should be active and are not",
                               MetricType::Gauge);
  auto& errors =
      families.Add("tandem_gpu_nvlink_errors_total", "Errors of the GPU's NVLinks", MetricType::Counter);
  auto& clocks = families.Add("tandem_gpu_clocks_limited", "1 while this holds the GPU's clocks down",
                              MetricType::Gauge);
  for (size_t gpu = 0; gpu < input.gpus.size() && gpu < input.gpu_uuids.size(); ++gpu) {
    const GpuCondition& condition = input.gpus[gpu];
    const GpuReading& now = condition.latest;
    const std::string& uuid = input.gpu_uuids[gpu];
    const auto found = FaultsOf(condition);
    for (const GpuFault fault : kGpuFaults) {
      const bool has =
          std::any_of(found.begin(), found.end(), [&](const auto& each) { return each.first == fault; });
      Families::AddGauge(faults, {{"gpu", uuid}, {"fault", std::string(GpuFaultName(fault))}}, has ? 1 : 0);
    }
    for (const auto& [xid, count] : condition.xids)
      Families::AddCounter(xids, {{"gpu", uuid}, {"xid", std::to_string(xid)}}, static_cast<double>(count));
    if (now.uncorrected_ecc.has_value())
      Families::AddCounter(ecc, {{"gpu", uuid}}, static_cast<double>(*now.uncorrected_ecc));
    if (now.rows.has_value()) {
      Families::AddGauge(rows, {{"gpu", uuid}, {"cause", "correctable"}}, now.rows->correctable);
      Families::AddGauge(rows, {{"gpu", uuid}, {"cause", "uncorrectable"}}, now.rows->uncorrectable);
    }
    if (now.active_links.has_value()) {
      Families::AddGauge(active, {{"gpu", uuid}}, *now.active_links);
      Families::AddGauge(missing, {{"gpu", uuid}}, std::max(condition.expected_links - *now.active_links, 0));
    }
    if (now.link_errors.has_value()) {
      for (const auto& [kind, count] :
           {std::pair("replay", now.link_errors->replays), std::pair("recovery", now.link_errors->recoveries),
            std::pair("crc", now.link_errors->crc)}) {
        Families::AddCounter(errors, {{"gpu", uuid}, {"kind", kind}}, static_cast<double>(count));
      }
    }
    for (const ClockLimit& limit : kClockLimits) {
      if (!now.clock_limits.has_value()) break;
      Families::AddGauge(clocks, {{"gpu", uuid}, {"reason", std::string(limit.name)}},
                         (*now.clock_limits & limit.bit) != 0 ? 1 : 0);
    }
  }
}

// A label's value of printable ASCII: whoever may make cgroups chooses their bytes, and Prometheus refuses a
// scrape that is not UTF-8. Distinct texts stay distinct.
std::string LabelOf(const OwnerUse& use) {
  if (use.owner.empty()) return "others";
  std::string label;
  for (const char c : use.owner) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7f && c != '%') {
      label += c;
    } else {
      constexpr char kDigits[] = "0123456789abcdef";
      label += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return label;
}

void AddOwners(const std::vector<OwnerUse>& owners, Families& families) {
  const auto add = [&](const char* name, const char* help, uint64_t OwnerUse::*value) {
    auto& family = families.Add(name, help, MetricType::Gauge);
    for (const OwnerUse& use : owners)
      Families::AddGauge(family, {{"owner", LabelOf(use)}}, static_cast<double>(use.*value));
  };
  add("tandem_owner_sessions", "Sessions of a pod, a job or a cgroup", &OwnerUse::sessions);
  add("tandem_owner_groups", "Groups of a pod, a job or a cgroup, by their rank 0", &OwnerUse::groups);
  add("tandem_owner_plans", "Plans of a pod, a job or a cgroup, by their rank 0", &OwnerUse::plans);
  add("tandem_owner_segment_bytes", "Symmetric memory of a pod, a job or a cgroup", &OwnerUse::segment_bytes);
  add("tandem_owner_registered_bytes", "Registered memory of a pod, a job or a cgroup",
      &OwnerUse::registered_bytes);
}

void AddProcess(const ProcessInfo& process, Families& families) {
  families.Counter("process_cpu_seconds_total", "Processor time of tandemd, user and system",
                   process.cpu_seconds);
  families.Gauge("process_resident_memory_bytes", "Resident memory of tandemd", process.rss_bytes);
  families.Gauge("process_virtual_memory_bytes", "Address space of tandemd", process.virtual_bytes);
  families.Gauge("process_open_fds", "Open descriptors of tandemd", process.descriptors);
  if (process.descriptor_limit != 0)
    families.Gauge("process_max_fds", "Limit of open descriptors", process.descriptor_limit);
  if (process.start_time_seconds != 0) {
    families.Gauge("process_start_time_seconds", "Start of tandemd, in seconds since the launch number",
                   process.start_time_seconds);
  }
}

// Gauges of live plans. A released plan's gauges go with it.
void AddLinks(const MetricsInput& input, Families& families) {
  auto& links = families.Add("tandem_link_bytes_per_second",
                             "Measured pushes from one GPU into another's memory", MetricType::Gauge);
  for (const LinkRate& link : input.links) {
    Families::AddGauge(links, {{"gpu", link.from}, {"peer", link.to}}, link.gb_per_second * 1e9);
  }
  if (input.labels.empty()) return;
  auto& sent =
      families.Add("tandem_plan_sent_bytes_per_second",
                   "Rate at which a rank of a live plan sends while its launches run", MetricType::Gauge);
  auto& fraction =
      families.Add("tandem_plan_link_ratio",
                   "The same as a part of what its slowest link was measured to carry", MetricType::Gauge);
  for (const SentRate& rate : SentRates(input.plans, input.gpus_of_plan, input.gpu_uuids, input.links)) {
    auto found = input.labels.find(rate.plan_id);
    if (found == input.labels.end()) continue;
    const Labels labels = {{"gpu", input.gpu_uuids[static_cast<size_t>(rate.gpu)]},
                           {"plan", std::to_string(rate.plan_id)},
                           {"op", found->second.op},
                           {"algorithm", found->second.algorithm}};
    Families::AddGauge(sent, labels, rate.gb_per_second * 1e9);
    if (rate.link_gb_per_second > 0) Families::AddGauge(fraction, labels, rate.link_fraction);
  }
}

}  // namespace

std::vector<MetricFamily> CollectMetrics(const MetricsInput& input) {
  Families families;
  const ControlSnapshot& control = input.control;
  for (const auto& gauge : kNodeGauges)
    families.Gauge(gauge.metric, gauge.help, static_cast<double>(control.*gauge.value));
  families.Gauge("tandem_draining", "1 while the node drains",
                 control.admission == Admission::kDraining ? 1 : 0);
  families.Gauge("tandem_cordoned", "1 while the node takes no new sessions and groups, draining or not",
                 control.admission != Admission::kOpen ? 1 : 0);
  for (const NodeCounter& counter : kNodeCounters) {
    const double value = static_cast<double>(control.*counter.value);
    families.Counter(counter.metric, counter.help, value);
  }
  auto& quotas = families.Add("tandem_quota_use_ratio", "Part of a quota that its largest user has in use",
                              MetricType::Gauge);
  for (const auto& [quota, use] : control.quota_use) Families::AddGauge(quotas, {{"quota", quota}}, use);
  AddOwners(control.owners, families);
  AddEngines(input, families);
  AddLaunches(input, families);
  AddQueues(input, families);
  AddGpuHealth(input, families);
  AddLinks(input, families);
  auto& segments =
      families.Add("tandem_pool_segment_bytes", "Memory in segments of a GPU's pool", MetricType::Gauge);
  for (const auto& pool : input.pools)
    Families::AddGauge(segments, {{"gpu", pool.gpu_uuid}}, pool.segment_bytes);
  auto& used =
      families.Add("tandem_pool_used_bytes", "Memory of a GPU's pool that is in use", MetricType::Gauge);
  for (const auto& pool : input.pools) Families::AddGauge(used, {{"gpu", pool.gpu_uuid}}, pool.used_bytes);
  AddProcess(input.process, families);
  auto& build = families.Add("tandem_build_info",
                             "1, with the version and commit of tandemd, and the backend", MetricType::Gauge);
  Families::AddGauge(build, {{"version", input.version}, {"backend", input.backend}}, 1);
  families.Gauge("tandem_uptime_seconds", "Time since the daemon's start", control.uptime_seconds);
  return families.Take();
}

}  // namespace tandem::daemon
