// The engines' shared records: order log, arrival table, statistics.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "ipc/arrival_table.h"
#include "ipc/order_log.h"
#include "ipc/stats_area.h"

namespace tandem {
namespace {

OrderLog NewLog() {
  UniqueFd fd = std::move(*OrderLog::Create());
  return std::move(*OrderLog::Map(fd.get()));
}

TEST(OrderLogTest, EntriesComeBackAsAppended) {
  OrderLog log = NewLog();
  EXPECT_EQ(log.Head(), 0u);
  LogEntry entry{LogKind::kFailMismatch, 0xa5, 0xfedcba, 0xffff};
  ASSERT_TRUE(log.TryAppend(0, entry));
  EXPECT_FALSE(log.TryAppend(0, entry));
  LogEntry read;
  ASSERT_EQ(log.Read(0, &read), LogRead::kEntry);
  EXPECT_EQ(read, entry);
  EXPECT_EQ(log.Read(1, &read), LogRead::kEmpty);
  EXPECT_EQ(log.Head(), 1u);
}

TEST(OrderLogTest, AReaderThatWasLappedKnowsIt) {
  OrderLog log = NewLog();
  LogEntry entry{LogKind::kStart, 1, 5, 0};
  for (uint64_t i = 0; i < kLogSlots + 3; ++i) ASSERT_TRUE(log.TryAppend(i, entry));
  LogEntry read;
  EXPECT_EQ(log.Read(2, &read), LogRead::kLapped);
  EXPECT_EQ(log.Read(3, &read), LogRead::kEntry);
  EXPECT_EQ(log.Read(kLogSlots + 2, &read), LogRead::kEntry);
  EXPECT_EQ(log.Read(kLogSlots + 3, &read), LogRead::kEmpty);
  EXPECT_EQ(log.Head(), kLogSlots + 3);
}

TEST(OrderLogTest, RacingAppendersDecideEachLaunchOnce) {
  OrderLog log = NewLog();
  constexpr uint16_t kLaunches = 4000;
  auto engine = [&](uint32_t kind) {
    uint64_t position = 0;
    std::map<uint16_t, LogKind> decided;
    for (uint16_t launch = 0; launch < kLaunches;) {
      LogEntry read;
      if (log.Read(position, &read) == LogRead::kEntry) {
        EXPECT_TRUE(decided.emplace(read.count, read.kind).second)
            << "launch " << read.count << " decided twice";
        ++position;
        continue;
      }
      while (decided.contains(launch)) ++launch;
      if (launch < kLaunches) log.TryAppend(position, {static_cast<LogKind>(kind), 1, 9, launch});
    }
  };
  std::thread a(engine, 1), b(engine, 2), c(engine, 3);
  a.join(), b.join(), c.join();
  EXPECT_EQ(log.Head(), kLaunches);
}

TEST(ArrivalTableTest, OfRanksThatArriveTogetherOneSeesAll) {
  UniqueFd fd = std::move(*CreateArrivalTable(2, 4));
  std::atomic<uint64_t> go{0};
  std::atomic<int> saw_all{0};
  constexpr uint64_t kRounds = 2000;
  std::atomic<int> arrived{0};
  auto rank_body = [&](int rank) {
    ArrivalTable table = std::move(*ArrivalTable::Map(fd.get(), 2));
    for (uint64_t round = 1; round <= kRounds; ++round) {
      while (go.load() < round) std::this_thread::yield();
      table.Arrive(3, rank, round * 10, round);
      if (table.Count(3, 1 - rank) >= round) {
        saw_all.fetch_add(1);
        EXPECT_EQ(table.Digest(3, 1 - rank), round * 10);
      }
      arrived.fetch_add(1);
    }
  };
  std::thread a(rank_body, 0), b(rank_body, 1);
  for (uint64_t round = 1; round <= kRounds; ++round) {
    saw_all = 0;
    arrived = 0;
    go.store(round);
    while (arrived.load() < 2) std::this_thread::yield();
    ASSERT_GE(saw_all.load(), 1) << "round " << round;
  }
  a.join(), b.join();
  EXPECT_FALSE(ArrivalTable::Map(fd.get(), 3).ok());
}

TEST(StatsAreaTest, CountsAndKeepsTheLatestLaunches) {
  UniqueFd fd = std::move(*CreateStatsArea(2, 4));
  StatsArea writer = std::move(*StatsArea::Map(fd.get()));
  StatsArea reader = std::move(*StatsArea::Map(fd.get()));
  const StatsRow row = writer.ClaimRow(77, 5);
  ASSERT_GE(writer.ClaimRow(78, 5).plan, 0);
  EXPECT_EQ(writer.ClaimRow(79, 5).plan, -1);
  for (uint64_t i = 1; i <= 10; ++i) {
    TraceRecord record{.plan_id = 77,
                       .group_id = 5,
                       .launch = i,
                       .arrive_ns = 1000,
                       .start_ns = 2000,
                       .end_ns = 2000 + i * 10000,
                       .code = i == 10 ? 4 : 0};
    writer.Count(row, record.code, 100);
    writer.Time(row, record);
  }
  std::vector<PlanStats> plans = reader.ReadPlans();
  ASSERT_EQ(plans.size(), 2u);
  const PlanStats& stats = plans[0].plan_id == 77 ? plans[0] : plans[1];
  EXPECT_EQ(stats.launches, 10u);
  EXPECT_EQ(stats.failures, 1u);
  EXPECT_EQ(stats.bytes_moved, 900u);
  EXPECT_DOUBLE_EQ(stats.MeanUs(), 50.0);
  EXPECT_NEAR(stats.PercentileUs(0.5), 50, 12);
  EXPECT_NEAR(stats.PercentileUs(0.99), 90, 1);
  std::vector<TraceRecord> trace = reader.ReadTrace();
  ASSERT_EQ(trace.size(), 4u);
  EXPECT_EQ(trace.front().launch, 7u);
  EXPECT_EQ(trace.back().code, 4);
  trace = reader.ReadTrace(2);
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace.front().launch, 9u);
  EXPECT_EQ(reader.ReadTrace(100).size(), 4u);
  writer.ReleaseRow(row);
  EXPECT_EQ(reader.ReadPlans().size(), 1u);
}

TEST(StatsAreaTest, AnEngineThatTakesOverFreesTheRowsOfTheOneBefore) {
  UniqueFd fd = std::move(*CreateStatsArea(2, 4));
  StatsArea reader = std::move(*StatsArea::Map(fd.get()));
  {
    StatsArea ended = std::move(*StatsArea::Map(fd.get()));
    ended.ClaimRow(77, 5);
    const StatsRow row = ended.ClaimRow(78, 5);
    ended.Count(row, 0, 100);
  }
  StatsArea next = std::move(*StatsArea::Map(fd.get()));
  next.TakeOver();
  EXPECT_TRUE(reader.ReadPlans().empty());
  ASSERT_GE(next.ClaimRow(78, 5).plan, 0);  // the row that was 77's
  const std::vector<PlanStats> plans = reader.ReadPlans();
  ASSERT_EQ(plans.size(), 1u);
  EXPECT_EQ(plans[0].plan_id, 78u);
  EXPECT_EQ(plans[0].launches, 0u);
  EXPECT_EQ(reader.Launches(), 1u);
}

TEST(StatsAreaTest, SumsByOperationAndAlgorithmOutlivePlansAndEngines) {
  UniqueFd fd = std::move(*CreateStatsArea(1, 0));
  StatsArea reader = std::move(*StatsArea::Map(fd.get()));
  for (int engine = 0; engine < 2; ++engine) {
    StatsArea area = std::move(*StatsArea::Map(fd.get()));
    area.TakeOver();
    const StatsRow first = area.ClaimRow(77, 5, 1, 2);
    const StatsRow second = area.ClaimRow(78, 5, 1, 3);  // it has no row
    EXPECT_EQ(second.plan, -1);
    EXPECT_NE(first.series, second.series);
    area.Count(first, 0, 100);
    area.Time(first, {.plan_id = 77, .arrive_ns = 1000, .start_ns = 3000, .end_ns = 8000});
    area.Count(second, 14, 100);
    area.ReleaseRow(first);
    area.ReleaseRow(second);
  }
  EXPECT_TRUE(reader.ReadPlans().empty());
  const std::vector<SeriesStats> series = reader.ReadSeries();
  ASSERT_EQ(series.size(), 2u);
  EXPECT_EQ(series[0].op, 1u);
  EXPECT_EQ(series[0].algorithm, 2u);
  EXPECT_EQ(series[0].launches, 2u);
  EXPECT_EQ(series[0].bytes_moved, 200u);
  EXPECT_EQ(series[0].run_ns, 10000u);
  EXPECT_EQ(series[0].wait_ns, 4000u);
  EXPECT_EQ(series[0].runs[static_cast<size_t>(DurationBucket(5000))], 2u);
  EXPECT_EQ(series[0].waits[static_cast<size_t>(DurationBucket(2000))], 2u);
  EXPECT_EQ(series[1].algorithm, 3u);
  EXPECT_EQ(series[1].failures, 2u);
  EXPECT_EQ(series[1].bytes_moved, 0u);
  EXPECT_EQ(reader.FailuresByCode()[14], 2u);
}

TEST(StatsAreaTest, StepsAreTracedAndNotCounted) {
  UniqueFd fd = std::move(*CreateStatsArea(2, 4));
  StatsArea area = std::move(*StatsArea::Map(fd.get()));
  StatsRow row = area.ClaimRow(77, 5);
  area.RecordStep(
      {.plan_id = 77, .group_id = 5, .launch = 1, .start_ns = 10, .end_ns = 20, .step = 300, .lane = 7});
  area.Count(row, -3, 100);
  area.Time(row, {.plan_id = 77, .group_id = 5, .launch = 1, .start_ns = 5, .end_ns = 25, .code = -3});
  EXPECT_EQ(area.Launches(), 1u);
  EXPECT_EQ(area.ReadPlans()[0].launches, 1u);
  std::vector<TraceRecord> trace = area.ReadTrace();
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0].step, 300);
  EXPECT_EQ(trace[0].lane, 7);
  EXPECT_EQ(trace[0].code, 0);
  EXPECT_EQ(trace[1].step, -1);
  EXPECT_EQ(trace[1].code, -3);
}

TEST(StatsAreaTest, CountsWithoutATraceIfAskedForNone) {
  UniqueFd fd = std::move(*CreateStatsArea(2, 0));
  StatsArea area = std::move(*StatsArea::Map(fd.get()));
  const StatsRow row = area.ClaimRow(77, 5);
  area.Count(row, 0, 100);
  area.Time(row, {.plan_id = 77, .group_id = 5, .launch = 1});
  EXPECT_EQ(area.Launches(), 1u);
  EXPECT_TRUE(area.ReadTrace().empty());
}

TEST(StatsAreaTest, TakesTheLongestTraceThatTheConfigurationAllows) {
  EXPECT_TRUE(CreateStatsArea(2, 1u << 20).ok());
  EXPECT_FALSE(CreateStatsArea(2, (1u << 20) + 1).ok());
}

}  // namespace
}  // namespace tandem
