#include "daemon/control/plans/autotune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "daemon/control/base/validate.h"

namespace tandem::daemon {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

plan::OperationPlan PlanWith(double own_us, std::vector<plan::RefusedAlgorithm> others) {
  plan::OperationPlan plan;
  plan.algorithm = Algorithm::kTwoShot;
  plan.predicted_us = own_us;
  plan.refused = std::move(others);
  return plan;
}

v1::PrepareRequest MeasuredTimes(std::vector<std::pair<Algorithm, double>> times) {
  v1::PrepareRequest request;
  for (const auto& [algorithm, us] : times) {
    v1::MeasuredTime* time = request.add_times();
    time->set_algorithm(static_cast<uint32_t>(algorithm));
    time->set_samples(3);
    time->set_median_us(us);
    time->set_p10_us(us - 1);
    time->set_p90_us(us + 1);
  }
  return request;
}

TEST(WorthMeasuringTest, TheFewThatMayBeFasterComeBehindThePlansOwn) {
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {{Algorithm::kNccl, "", 30, 0},
                                           {Algorithm::kOneShot, "", 12, 0},
                                           {Algorithm::kCopyEngine, "", 15, 0},
                                           {Algorithm::kLowLatency, "too large", 0, 0}})),
              ElementsAre(Algorithm::kTwoShot, Algorithm::kOneShot, Algorithm::kCopyEngine));
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {{Algorithm::kOneShot, "", 12, 0},
                                           {Algorithm::kCopyEngine, "", 13, 0},
                                           {Algorithm::kNccl, "", 14, 0},
                                           {Algorithm::kSm, "", 15, 0}})),
              testing::SizeIs(4));
}

TEST(WorthMeasuringTest, NothingWithoutARival) {
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {})), IsEmpty());
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {{Algorithm::kNccl, "", 30, 0}})), IsEmpty());
}

TEST(WorthMeasuringTest, RingsAreMeasuredOnRequestOnly) {
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {{Algorithm::kRing, "", 11, 0},
                                           {Algorithm::kTiledTwoShot, "", 11, 0},
                                           {Algorithm::kUnfused, "", 12, 0}})),
              ElementsAre(Algorithm::kTwoShot, Algorithm::kUnfused));
  EXPECT_THAT(WorthMeasuring(PlanWith(10, {{Algorithm::kRing, "", 11, 0}})), IsEmpty());
}

TEST(WhyNotMeasuredTest, NamesTheRanksThatCannot) {
  std::vector<v1::PrepareRequest> ranks(3);
  EXPECT_EQ(WhyNotMeasured(ranks), "");
  ranks[1].set_cannot_measure("no memory");
  EXPECT_EQ(WhyNotMeasured(ranks), "autotune has measured nothing: rank 1: no memory");
  ranks[2].set_cannot_measure("no stream");
  EXPECT_EQ(WhyNotMeasured(ranks), "autotune has measured nothing: rank 1: no memory; rank 2: no stream");
}

TEST(SlowestTimesTest, TheSlowestRankDecides) {
  const std::vector<v1::PrepareRequest> ranks = {
      MeasuredTimes({{Algorithm::kOneShot, 10}, {Algorithm::kTwoShot, 12}}),
      MeasuredTimes({{Algorithm::kOneShot, 15}, {Algorithm::kTwoShot, 11}})};
  const auto slowest = SlowestTimes(ranks);
  ASSERT_EQ(slowest.size(), 2u);
  EXPECT_EQ(slowest[0].algorithm, Algorithm::kOneShot);
  EXPECT_EQ(slowest[0].median_us, 15);
  EXPECT_EQ(slowest[0].p90_us, 16);
  EXPECT_EQ(slowest[0].samples, 3);
  EXPECT_EQ(slowest[1].median_us, 12);
}

TEST(SlowestTimesTest, NoneUnlessAllRanksHaveMeasuredTheSame) {
  const v1::PrepareRequest good = MeasuredTimes({{Algorithm::kOneShot, 10}});
  EXPECT_THAT(SlowestTimes(std::vector{MeasuredTimes({}), MeasuredTimes({})}), IsEmpty());
  EXPECT_THAT(SlowestTimes(std::vector{good, MeasuredTimes({})}), IsEmpty());
  EXPECT_THAT(SlowestTimes(std::vector{good, MeasuredTimes({{Algorithm::kTwoShot, 10}})}), IsEmpty());
  v1::PrepareRequest elsewhere = good;
  elsewhere.set_times_placement(2);
  EXPECT_THAT(SlowestTimes(std::vector{good, elsewhere}), IsEmpty());
}

TEST(SlowestTimesTest, NoneWithATimeThatCannotBe) {
  const v1::PrepareRequest good = MeasuredTimes({{Algorithm::kOneShot, 10}});
  for (const double us :
       {0.0, -1.0, 1e12, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    v1::PrepareRequest bad = good;
    bad.mutable_times(0)->set_median_us(us);
    EXPECT_THAT(SlowestTimes(std::vector{good, bad}), IsEmpty()) << us;
  }
  v1::PrepareRequest bad = good;
  bad.mutable_times(0)->set_samples(0);
  EXPECT_THAT(SlowestTimes(std::vector{good, bad}), IsEmpty());
}

TEST(ValidateTimes, AreBounded) {
  v1::PrepareRequest request;
  request.set_key("k");
  request.mutable_request();
  for (int i = 0; i < 16; ++i) request.add_times();
  EXPECT_TRUE(ValidatePrepare(request).ok());
  request.add_times();
  EXPECT_EQ(ValidatePrepare(request).detail().field, "times");
  request.clear_times();
  request.set_cannot_measure(std::string(4097, 'x'));
  EXPECT_EQ(ValidatePrepare(request).detail().field, "cannot_measure");
}

}  // namespace
}  // namespace tandem::daemon
