#include "daemon/control/ledger.h"

#include <gmock/gmock.h>

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

ControlLimits Limits() {
  ControlLimits limits;
  limits.plans = 4;
  limits.cgroup.plans = 3;
  limits.tensors = 2;  // the cgroup's is 0: the same
  return limits;
}

TEST(LedgerTest, TheUidsOrTheCgroupsQuotaRefusesWhicheverIsReachedFirst) {
  Ledger ledger(Limits());
  const Payer a{1, "/pod-a"}, other_user{2, "/pod-a"}, b{1, "/pod-b"};
  EXPECT_TRUE(ledger.Charge(a, Resource::kPlans, 2).ok());
  EXPECT_TRUE(ledger.Charge(other_user, Resource::kPlans, 1).ok());
  const Status by_cgroup = ledger.Charge(a, Resource::kPlans, 1);
  EXPECT_EQ(by_cgroup.code(), Code::kResourceExhausted);
  EXPECT_EQ(
      by_cgroup.detail(),
      (StatusDetail{.reason = "QUOTA_PLANS", .who = "cgroup /pod-a", .field = {}, .limit = 3, .usage = 3}));
  EXPECT_THAT(by_cgroup.message(), HasSubstr("reached by cgroup /pod-a: limit 3, in use 3, asked for 1"));
  EXPECT_TRUE(ledger.Charge(b, Resource::kPlans, 2).ok());
  const Status by_uid = ledger.Charge(b, Resource::kPlans, 1);
  EXPECT_EQ(by_uid.detail().who, "uid 1");
  EXPECT_EQ(by_uid.detail().limit, 4);
  // A refused request was not charged to anybody.
  EXPECT_EQ(ledger.Total(Resource::kPlans), 5u);
  EXPECT_TRUE(ledger.Charge({3, "/pod-b"}, Resource::kPlans, 1).ok());
}

TEST(LedgerTest, ACgroupWithoutAQuotaOfItsOwnHasTheUids) {
  Ledger ledger(Limits());
  EXPECT_TRUE(ledger.Charge({1, "/x"}, Resource::kTensors, 1).ok());
  EXPECT_TRUE(ledger.Charge({2, "/x"}, Resource::kTensors, 1).ok());
  EXPECT_EQ(ledger.Charge({3, "/x"}, Resource::kTensors, 1).detail().who, "cgroup /x");
}

TEST(LedgerTest, AnUnknownCgroupIsNotAnAccountOfItsOwn) {
  Ledger ledger(Limits());
  for (uint32_t uid = 1; uid <= 5; ++uid) EXPECT_TRUE(ledger.Charge({uid, ""}, Resource::kTensors, 2).ok());
  EXPECT_EQ(ledger.accounts(), 5u);
}

TEST(LedgerTest, UnbookedAmountsAndHugeOnesAreCounted) {
  Ledger ledger(Limits());
  const Payer payer{1, "/x"};
  EXPECT_EQ(ledger.Check(payer, Resource::kPlans, 1, {.of_uid = 4, .of_cgroup = 0}).detail().who, "uid 1");
  EXPECT_EQ(ledger.Check(payer, Resource::kPlans, 1, {.of_uid = 0, .of_cgroup = 3}).detail().who,
            "cgroup /x");
  EXPECT_TRUE(ledger.Check(payer, Resource::kPlans, 1, {.of_uid = 3, .of_cgroup = 2}).ok());
  EXPECT_TRUE(ledger.Charge(payer, Resource::kPlans, 1).ok());
  EXPECT_FALSE(ledger.Check(payer, Resource::kPlans, ~uint64_t{0}).ok());
}

TEST(LedgerTest, RefundsEndAtZeroAndEmptyAccountsAreForgotten) {
  Ledger ledger(Limits());
  const Payer payer{1, "/x"};
  EXPECT_TRUE(ledger.Charge(payer, Resource::kPlans, 3).ok());
  EXPECT_TRUE(ledger.Charge(payer, Resource::kSegmentBytes, 100).ok());
  ledger.Refund(payer, Resource::kPlans, 3);
  EXPECT_EQ(ledger.accounts(), 2u);
  ledger.Refund(payer, Resource::kSegmentBytes, 1000);
  EXPECT_EQ(ledger.accounts(), 0u);
  ledger.Refund(payer, Resource::kPlans, 1);
  EXPECT_EQ(ledger.accounts(), 0u);
  EXPECT_TRUE(ledger.Charge(payer, Resource::kPlans, 3).ok());
}

}  // namespace
}  // namespace tandem::daemon
