// The bytes that plans send beside the bytes on their links, and the metrics of both.
#include "daemon/observe/link_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/metric_family.h>

#include "daemon/observe/metrics.h"

namespace tandem::daemon {
namespace {

const std::vector<std::string> kUuids = {"EMU-0", "EMU-1", "EMU-2"};

// `launches` that took `us` each and sent `bytes` each.
PlanStats Row(uint64_t plan, uint64_t launches, int64_t us, uint64_t bytes) {
  PlanStats row;
  row.plan_id = plan;
  row.launches = launches;
  row.bytes_moved = launches * bytes;
  row.run_ns = launches * static_cast<uint64_t>(us) * 1000;
  row.histogram[static_cast<size_t>(DurationBucket(us * 1000))] = launches;
  return row;
}

TEST(SentRatesTest, EachRankBesideTheSlowestLinkToItsPeers) {
  // 100 kB in 10 us are 10 GB/s.
  const std::vector<std::vector<PlanStats>> plans = {
      {Row(5, 7, 10, 100000)}, {}, {Row(5, 7, 40, 100000), Row(6, 9, 1, 1000)}};
  const std::vector<LinkRate> links = {
      {"EMU-2", "EMU-0", 40}, {"EMU-2", "EMU-1", 1}, {"EMU-0", "EMU-2", 80}, {"EMU-0", "EMU-1", 2}};
  // Rank 0 is on GPU 2.
  const auto rates = SentRates(plans, {{5, {2, 0}}}, kUuids, links);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_EQ(rates[0].plan_id, 5u);
  EXPECT_EQ(rates[0].rank, 0);
  EXPECT_EQ(rates[0].gpu, 2);
  EXPECT_EQ(rates[0].bytes, 700000u);
  EXPECT_DOUBLE_EQ(rates[0].gb_per_second, 2.5);
  EXPECT_DOUBLE_EQ(rates[0].link_gb_per_second, 40)
      << "the link to a GPU that is not in the group does not count";
  EXPECT_DOUBLE_EQ(rates[0].link_fraction, 2.5 / 40);
  EXPECT_EQ(rates[1].gpu, 0);
  EXPECT_DOUBLE_EQ(rates[1].gb_per_second, 10);
  EXPECT_DOUBLE_EQ(rates[1].link_gb_per_second, 80);
  const auto wide = SentRates(plans, {{5, {2, 0, 1}}}, kUuids, links);
  ASSERT_EQ(wide.size(), 2u) << "GPU 1 has sent nothing";
  EXPECT_DOUBLE_EQ(wide[0].link_gb_per_second, 1);
}

TEST(SentRatesTest, FailedAndUntimedLaunchesDoNotChangeTheRate) {
  PlanStats row = Row(5, 8, 10, 100000);
  row.launches += 3;
  row.failures += 3;
  PlanStats counted = Row(5, 2, 10, 100000);  // after a restart; not timed yet
  counted.run_ns = 0;
  counted.histogram = {};
  const std::vector<std::vector<PlanStats>> plans = {{row, counted}};
  const auto rates = SentRates(plans, {{5, {0}}}, kUuids, {});
  ASSERT_EQ(rates.size(), 1u);
  EXPECT_EQ(rates[0].bytes, 1000000u);
  EXPECT_DOUBLE_EQ(rates[0].gb_per_second, 10);
  EXPECT_EQ(rates[0].link_gb_per_second, 0);
  EXPECT_EQ(rates[0].link_fraction, 0) << "of a link that has not been measured";
  const std::vector<std::vector<PlanStats>> untimed = {{counted}};
  EXPECT_EQ(SentRates(untimed, {{5, {0}}}, kUuids, {}).at(0).gb_per_second, 0);
}

TEST(SentRatesTest, MetricsHaveLinksAndLivePlans) {
  MetricsInput input;
  input.gpu_uuids = kUuids;
  input.engines.resize(3);
  input.labels[5] = {"all_reduce", "one_shot"};
  input.gpus_of_plan[5] = {0, 1};
  input.links = {{"EMU-0", "EMU-1", 40}};
  input.plans = {{Row(5, 1, 10, 100000)}, {Row(5, 1, 20, 100000)}, {}};
  // By family: first label and value.
  std::map<std::string, std::vector<std::pair<std::string, double>>> found;
  for (const auto& family : CollectMetrics(input)) {
    for (const auto& metric : family.metric) {
      if (metric.label.size() >= 2 && family.type == prometheus::MetricType::Gauge) {
        found[family.name].emplace_back(metric.label[0].value + " " + metric.label[1].value,
                                        metric.gauge.value);
      }
    }
  }
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(found["tandem_link_bytes_per_second"], ElementsAre(Pair("EMU-0 EMU-1", 40e9)));
  EXPECT_THAT(found["tandem_plan_sent_bytes_per_second"],
              ElementsAre(Pair("EMU-0 5", 10e9), Pair("EMU-1 5", 5e9)));
  EXPECT_THAT(found["tandem_plan_link_ratio"], ElementsAre(Pair("EMU-0 5", 0.25)))
      << "only where the link was measured";
}

}  // namespace
}  // namespace tandem::daemon
