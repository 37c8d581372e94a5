#include "daemon/observe/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/metric_family.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "tandem/op_request.h"

namespace tandem::daemon {
namespace {

double Value(const std::vector<prometheus::MetricFamily>& families, const std::string& name,
             const std::string& label) {
  for (const auto& family : families) {
    if (family.name != name) continue;
    for (const auto& metric : family.metric) {
      bool match = label.empty();
      for (const auto& entry : metric.label) match |= entry.value == label;
      if (match)
        return family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
    }
  }
  return -1;
}

MetricsInput OneGpu() {
  MetricsInput input;
  input.gpu_uuids = {"EMU-0"};
  input.engines.resize(1);
  return input;
}

TEST(MetricsTest, EachFigureOfTheNodeIsAMetric) {
  MetricsInput input = OneGpu();
  uint64_t value = 10;
  for (const auto& gauge : kNodeGauges) input.control.*gauge.value = ++value;
  for (const NodeCounter& counter : kNodeCounters) input.control.*counter.value = ++value;
  const auto families = CollectMetrics(input);
  for (const auto& gauge : kNodeGauges) {
    const double expected = static_cast<double>(input.control.*gauge.value);
    EXPECT_EQ(Value(families, gauge.metric, ""), expected) << gauge.metric;
  }
  for (const NodeCounter& counter : kNodeCounters) {
    const double expected = static_cast<double>(input.control.*counter.value);
    EXPECT_EQ(Value(families, counter.metric, ""), expected) << counter.metric;
    EXPECT_TRUE(counter.name().ends_with("_total")) << counter.metric;
  }
}

TEST(MetricsTest, GpusHealthHasSeries) {
  MetricsInput input = OneGpu();
  EXPECT_EQ(Value(CollectMetrics(input), "tandem_gpu_cordoned", "EMU-0"), 0);
  EXPECT_EQ(Value(CollectMetrics(input), "tandem_gpu_fault", "xid"), -1) << "nobody looks";
  input.control.cordoned_gpus[0] = "XID 79";
  input.gpus.resize(1);
  GpuReading reading;
  reading.xids = {79, 31, 79};
  Update(reading, &input.gpus[0]);
  auto families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_gpu_cordoned", "EMU-0"), 1);
  EXPECT_EQ(Value(families, "tandem_gpu_xid_errors_total", "79"), 2);
  EXPECT_EQ(Value(families, "tandem_gpu_xid_errors_total", "31"), 1);
  EXPECT_EQ(Value(families, "tandem_gpu_fault", "xid"), 1);
  EXPECT_EQ(Value(families, "tandem_gpu_fault", "ecc"), 0);
  EXPECT_EQ(Value(families, "tandem_gpu_ecc_uncorrected_total", "EMU-0"), -1) << "not reported";
  reading.xids = {};
  reading.uncorrected_ecc = 7;
  reading.rows = NvmlRemappedRows{1, 2, true, false};
  reading.active_links = 16;
  reading.link_errors = NvmlLinkErrors{3, 4, 5};
  reading.clock_limits = kNvmlHwThermal;
  input.gpus[0].expected_links = 18;
  Update(reading, &input.gpus[0]);
  families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_gpu_ecc_uncorrected_total", "EMU-0"), 7);
  EXPECT_EQ(Value(families, "tandem_gpu_remapped_rows", "uncorrectable"), 2);
  EXPECT_EQ(Value(families, "tandem_gpu_nvlinks_active", "EMU-0"), 16);
  EXPECT_EQ(Value(families, "tandem_gpu_nvlinks_inactive", "EMU-0"), 2);
  EXPECT_EQ(Value(families, "tandem_gpu_nvlink_errors_total", "recovery"), 4);
  EXPECT_EQ(Value(families, "tandem_gpu_clocks_limited", "hw_thermal"), 1);
  EXPECT_EQ(Value(families, "tandem_gpu_clocks_limited", "power_cap"), 0);
  for (const char* fault : {"xid", "ecc", "rows", "links", "clocks"})
    EXPECT_EQ(Value(families, "tandem_gpu_fault", fault), 1) << fault;
}

TEST(MetricsTest, CountersGoOnAfterReleaseAndRestart) {
  const UniqueFd fd = std::move(*CreateStatsArea(1, 0));
  const auto op = static_cast<uint32_t>(Op::kAllReduce);
  const auto algorithm = static_cast<uint32_t>(Algorithm::kOneShot);
  for (uint64_t engine = 1; engine <= 2; ++engine) {
    StatsArea area = std::move(*StatsArea::Map(fd.get()));
    area.TakeOver();
    for (uint64_t plan = 1; plan <= 2; ++plan) {
      const StatsRow row = area.ClaimRow(plan, 1, op, algorithm);
      for (int launch = 0; launch < 4; ++launch) {
        const int code = launch == 3 ? 4 : 0;
        area.Count(row, code, 100);
        area.Time(row, {.plan_id = plan, .arrive_ns = 1000, .start_ns = 4000, .end_ns = 9000, .code = code});
      }
      area.ReleaseRow(row);
    }
  }
  const StatsArea area = std::move(*StatsArea::Map(fd.get()));
  MetricsInput input = OneGpu();
  input.series = {area.ReadSeries()};
  input.failures_by_code = area.FailuresByCode();
  const auto families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_launches_total", "one_shot"), 16);
  EXPECT_EQ(Value(families, "tandem_moved_bytes_total", "all_reduce"), 1200);
  EXPECT_EQ(Value(families, "tandem_launch_failures_total", "DEADLINE_EXCEEDED"), 4);
  int histograms = 0;
  for (const auto& family : families) {
    if (family.type == prometheus::MetricType::Counter) {
      EXPECT_TRUE(family.name.ends_with("_total")) << family.name;
    }
    if (family.type != prometheus::MetricType::Histogram) continue;
    ++histograms;
    const auto& histogram = family.metric.at(0).histogram;
    const auto& buckets = histogram.bucket;
    for (size_t i = 1; i < buckets.size(); ++i) {
      EXPECT_GE(buckets[i].cumulative_count, buckets[i - 1].cumulative_count);
      EXPECT_GT(buckets[i].upper_bound, buckets[i - 1].upper_bound);
    }
    EXPECT_EQ(buckets.back().cumulative_count, 12u);
    EXPECT_NEAR(histogram.sample_sum, family.name == "tandem_launch_wait_seconds" ? 36e-6 : 60e-6, 1e-9);
  }
  EXPECT_EQ(histograms, 2);
}

TEST(MetricsTest, EveryCodeIsThereBeforeAnythingFails) {
  const auto families = CollectMetrics(OneGpu());
  for (int code = 1; code <= 16; ++code) {
    const std::string name(CodeName(static_cast<Code>(code)));
    EXPECT_EQ(Value(families, "tandem_launch_failures_total", name), 0) << name;
  }
  EXPECT_EQ(Value(families, "tandem_engine_state", "down"), 1);
}

TEST(MetricsTest, ReportsWhatWaits) {
  const UniqueFd fd = std::move(*CreateStatsArea(1, 0));
  StatsArea area = std::move(*StatsArea::Map(fd.get()));
  area.SetWaiting(3, 2, 1'000'000'000);
  area.SetStarted(1);
  area.CountLate();
  MetricsInput input = OneGpu();
  input.queues = {area.Queue()};
  input.late = {area.Late()};
  input.now_ns = 3'500'000'000;
  auto families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_queue_launches", "waiting"), 3);
  EXPECT_EQ(Value(families, "tandem_queue_launches", "started"), 1);
  EXPECT_EQ(Value(families, "tandem_late_ranks", "EMU-0"), 2);
  EXPECT_EQ(Value(families, "tandem_late_launches_total", "EMU-0"), 1);
  EXPECT_DOUBLE_EQ(Value(families, "tandem_oldest_waiting_launch_seconds", "EMU-0"), 2.5);
  area.TakeOver();
  input.queues = {area.Queue()};
  families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_queue_launches", "waiting"), 0);
  EXPECT_EQ(Value(families, "tandem_oldest_waiting_launch_seconds", "EMU-0"), 0);
}

TEST(MetricsTest, OwnersHaveSeriesOfPrintableLabels) {
  MetricsInput input = OneGpu();
  input.control.owners = {{.owner = "/kubepods/pod1", .sessions = 2, .segment_bytes = 4096},
                          {.owner = "/a\xff\n%", .sessions = 1},
                          {.owner = "", .sessions = 3}};
  const auto families = CollectMetrics(input);
  EXPECT_EQ(Value(families, "tandem_owner_sessions", "/kubepods/pod1"), 2);
  EXPECT_EQ(Value(families, "tandem_owner_segment_bytes", "/kubepods/pod1"), 4096);
  EXPECT_EQ(Value(families, "tandem_owner_sessions", "/a%ff%0a%25"), 1);
  EXPECT_EQ(Value(families, "tandem_owner_sessions", "others"), 3);
}

TEST(MetricsTest, ReportsTheProcess) {
  MetricsInput input = OneGpu();
  input.process = ReadProcessInfo();
  input.control.quota_use["plans"] = 0.25;
  const auto families = CollectMetrics(input);
  EXPECT_GT(Value(families, "process_virtual_memory_bytes", ""),
            Value(families, "process_resident_memory_bytes", ""));
  EXPECT_GE(Value(families, "process_cpu_seconds_total", ""), 0);
  const double age = static_cast<double>(::time(nullptr)) - Value(families, "process_start_time_seconds", "");
  EXPECT_GT(age, -5);
  EXPECT_LT(age, 3600);
  EXPECT_EQ(Value(families, "tandem_quota_use_ratio", "plans"), 0.25);
}

}  // namespace
}  // namespace tandem::daemon
