#include "daemon/observe/metrics.h"

#include <prometheus/metric_family.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>
#include <utility>

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
ClientMetric DurationHistogram(const Labels& labels, const LaunchCounters::Value& value) {
  ClientMetric metric = WithLabels(labels);
  uint64_t sum = 0;
  for (int i = 0; i < kDurationBuckets; ++i) {
    sum += value.histogram[i];
    if (i % 4 == 3 && i < kDurationBuckets - 1)
      metric.histogram.bucket.push_back({sum, DurationBucketUpperUs(i) * 1e-6});
  }
  metric.histogram.bucket.push_back({sum, std::numeric_limits<double>::infinity()});
  metric.histogram.sample_count = sum;
  metric.histogram.sample_sum = value.run_ns * 1e-9;
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
    for (EngineState candidate :
         {EngineState::kStarting, EngineState::kReady, EngineState::kDown, EngineState::kCrashLooped}) {
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
  by_gpu("tandem_engine_prelaunched_total", "Launches that found their first kernel on its lane",
         input.prelaunched, 1);
  by_gpu("tandem_engine_called_off_total", "Kernels called off that waited on a lane for a launch",
         input.called_off, 1);
}

void AddLaunches(const LaunchCounters& launches, Families& families) {
  auto labels = [](const LaunchCounters::Key& key) {
    return Labels{{"gpu", key.gpu_uuid}, {"op", key.op}, {"algorithm", key.algorithm}};
  };
  auto& count =
      families.Add("tandem_launches_total", "Launches by operation and algorithm", MetricType::Counter);
  for (const auto& [key, value] : launches.values()) Families::AddCounter(count, labels(key), value.launches);
  auto& bytes = families.Add("tandem_moved_bytes_total", "Bytes sent to peers", MetricType::Counter);
  for (const auto& [key, value] : launches.values())
    Families::AddCounter(bytes, labels(key), value.bytes_moved);
  auto& durations = families.Add("tandem_launch_duration_seconds", "From a launch's start to its end",
                                 MetricType::Histogram);
  for (const auto& [key, value] : launches.values())
    durations.metric.push_back(DurationHistogram(labels(key), value));
}

// A GPU's rows, one sum for each plan: a plan that is being reinstalled may have two rows.
std::map<uint64_t, PlanStats> RowsMerged(const std::vector<PlanStats>& rows) {
  std::map<uint64_t, PlanStats> plans;
  for (const PlanStats& row : rows) {
    PlanStats& sum = plans[row.plan_id];
    sum.launches += row.launches;
    sum.failures += row.failures;
    sum.bytes_moved += row.bytes_moved;
    sum.run_ns += row.run_ns;
    for (int i = 0; i < kDurationBuckets; ++i) sum.histogram[i] += row.histogram[i];
  }
  return plans;
}

// Gauges of live plans. A released plan's gauges go with it.
void AddLinks(const MetricsInput& input, Families& families) {
  auto& links = families.Add("tandem_link_bytes_per_second",
                             "Measured pushes from one GPU into another's memory", MetricType::Gauge);
  for (const LinkRate& link : input.links) {
    Families::AddGauge(links, {{"gpu", link.from}, {"peer", link.to}}, link.gb_per_second * 1e9);
  }
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

void LaunchCounters::Update(const MetricsInput& input) {
  std::set<std::pair<size_t, uint64_t>> live;
  for (size_t gpu = 0; gpu < input.plans.size(); ++gpu) {
    for (const auto& [plan_id, now] : RowsMerged(input.plans[gpu])) {
      auto labels = input.labels.find(plan_id);
      if (labels == input.labels.end()) continue;
      auto id = std::make_pair(gpu, plan_id);
      live.insert(id);
      PlanStats& before = seen_[id];
      if (now.launches < before.launches) before = PlanStats{};  // a restarted engine counts from 0
      Value& value = values_[{input.gpu_uuids[gpu], labels->second.op, labels->second.algorithm}];
      value.launches += now.launches - before.launches;
      value.failures += now.failures - std::min(before.failures, now.failures);
      value.bytes_moved += now.bytes_moved - std::min(before.bytes_moved, now.bytes_moved);
      value.run_ns += now.run_ns - std::min(before.run_ns, now.run_ns);
      for (int i = 0; i < kDurationBuckets; ++i) {
        value.histogram[i] += now.histogram[i] - std::min(before.histogram[i], now.histogram[i]);
      }
      before = now;
    }
  }
  std::erase_if(seen_, [&](const auto& entry) { return !live.contains(entry.first); });
}

std::vector<MetricFamily> CollectMetrics(const MetricsInput& input, const LaunchCounters& launches) {
  Families families;
  const ControlSnapshot& control = input.control;
  families.Gauge("tandem_sessions", "Attached sessions", control.sessions);
  families.Gauge("tandem_groups", "Groups", control.groups);
  families.Gauge("tandem_plans", "Prepared plans", control.plans);
  families.Gauge("tandem_tensors", "Symmetric tensors", control.tensors);
  families.Gauge("tandem_registrations", "Registrations of clients' own memory", control.registrations);
  families.Gauge("tandem_channels", "Open channels", control.channels);
  families.Gauge("tandem_draining", "1 while the node drains", control.draining ? 1 : 0);
  families.Counter("tandem_sessions_total", "Sessions since the start", control.sessions_total);
  families.Counter("tandem_sessions_lost_total", "Sessions that ended with their process, or by its fault",
                   control.sessions_lost_total);
  families.Counter("tandem_sessions_evicted_total", "Sessions that an operator ended",
                   control.sessions_evicted_total);
  families.Counter("tandem_groups_broken_total", "Groups that have broken", control.groups_broken_total);
  auto& failures =
      families.Add("tandem_launch_failures_total", "Failed launches by canonical code", MetricType::Counter);
  for (const auto& [code, count] : control.launch_failures) {
    Families::AddCounter(failures, {{"code", std::string(CodeName(static_cast<Code>(code)))}}, count);
  }
  AddEngines(input, families);
  AddLaunches(launches, families);
  AddLinks(input, families);
  auto& segments =
      families.Add("tandem_pool_segment_bytes", "Memory in segments of a GPU's pool", MetricType::Gauge);
  for (const auto& pool : input.pools)
    Families::AddGauge(segments, {{"gpu", pool.gpu_uuid}}, pool.segment_bytes);
  auto& used =
      families.Add("tandem_pool_used_bytes", "Memory of a GPU's pool that is in use", MetricType::Gauge);
  for (const auto& pool : input.pools) Families::AddGauge(used, {{"gpu", pool.gpu_uuid}}, pool.used_bytes);
  families.Gauge("process_resident_memory_bytes", "Resident memory of tandemd", input.process.rss_bytes);
  families.Gauge("process_open_fds", "Open descriptors of tandemd", input.process.descriptors);
  if (input.process.descriptor_limit != 0) {
    families.Gauge("process_max_fds", "Limit of open descriptors", input.process.descriptor_limit);
  }
  auto& build = families.Add("tandem_build_info",
                             "1, with the version and commit of tandemd, and the backend", MetricType::Gauge);
  Families::AddGauge(build, {{"version", input.version}, {"backend", input.backend}}, 1);
  families.Gauge("tandem_uptime_seconds", "Time since the daemon's start", control.uptime_seconds);
  return families.Take();
}

}  // namespace tandem::daemon
