#include "daemon/control/base/ledger.h"

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

TEST(LedgerTest, TheLargestOwnersHaveEntriesAndTheOthersOneTogether) {
  ControlLimits limits;
  Ledger ledger(limits);
  for (uint32_t i = 0; i < 5; ++i) {
    const Payer payer{1, "/job_" + std::to_string(i)};
    EXPECT_TRUE(ledger.Charge(payer, Resource::kSessions, 1).ok());
    EXPECT_TRUE(ledger.Charge(payer, Resource::kSegmentBytes, 100 * i).ok());
  }
  EXPECT_TRUE(ledger.Charge({2, ""}, Resource::kSegmentBytes, 7).ok());  // its cgroup is not known
  const auto owners = ledger.Owners(2);
  ASSERT_EQ(owners.size(), 3u);
  EXPECT_EQ(owners[0].owner, "/job_4");
  EXPECT_EQ(owners[0].segment_bytes, 400u);
  EXPECT_EQ(owners[1].owner, "/job_3");
  EXPECT_EQ(owners[2].owner, "");
  EXPECT_EQ(owners[2].sessions, 3u);
  EXPECT_EQ(owners[2].segment_bytes, 307u);
  EXPECT_EQ(ledger.Owners(5).size(), 6u);
  EXPECT_EQ(ledger.Owners(5)[5].segment_bytes, 7u);
  EXPECT_EQ(Ledger(limits).Owners(2).size(), 1u);
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

TEST(LedgerTest, TheOwnerOfACgroupIsItsJob) {
  const std::pair<const char*, const char*> owners[] = {
      {"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice/cri-containerd-99.scope",
       "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice"},
      {"/kubepods.slice/kubepods-pod12_ab.slice/cri-o-99.scope/child",
       "/kubepods.slice/kubepods-pod12_ab.slice"},
      {"/kubepods/besteffort/pod12-ab/99", "/kubepods/besteffort/pod12-ab"},
      {"/system.slice/slurmstepd.scope/job_17/step_0/user/task_3", "/system.slice/slurmstepd.scope/job_17"},
      {"/slurm/uid_1000/job_17/step_batch", "/slurm/uid_1000/job_17"},
      {"/user.slice/user-1000.slice/session-3.scope", "/user.slice/user-1000.slice/session-3.scope"},
      {"/podman/pod12/99", "/podman/pod12/99"},  // of no Kubernetes
      {"/system.slice/job_x.service", "/system.slice/job_x.service"},
      {"/", "/"},
      {"", ""},
  };
  for (const auto& [cgroup, owner] : owners) EXPECT_EQ(OwnerOf(cgroup), owner);
}

TEST(LedgerTest, TheFirstRuleThatFitsHasThePayersLimits) {
  Ledger ledger(Limits());
  ControlLimits many = Limits(), few = Limits();
  many.plans = 10;
  many.cgroup.plans = 0;
  few.plans = 1;
  ledger.SetRules({{.uid = 1, .gid = {}, .cgroup = "/batch", .gpus = {}, .limits = many},
                   {.uid = {}, .gid = 7, .cgroup = "", .gpus = {}, .limits = few},
                   {.uid = 3, .gid = {}, .cgroup = "", .gpus = {}}});
  // A rule's cgroup is the session's own; the account's is the job's.
  const Payer first{1, "/batch/job_1", 7, "/batch/job_1/step_0"};
  EXPECT_TRUE(ledger.Charge(first, Resource::kPlans, 9).ok());
  EXPECT_EQ(ledger.Charge(first, Resource::kPlans, 2).detail().limit, 10);
  EXPECT_DOUBLE_EQ(ledger.LargestUse()["plans"], 0.9);
  const Payer second{2, "/x", 7, "/x"};
  EXPECT_EQ(ledger.Charge(second, Resource::kPlans, 2).detail().limit, 1);
  EXPECT_TRUE(ledger.Charge(second, Resource::kPlans, 1).ok());
  EXPECT_DOUBLE_EQ(ledger.LargestUse()["plans"], 1.0);
  // A rule without quotas, and no rule at all: those of all.
  EXPECT_EQ(ledger.Charge({3, "", 8, ""}, Resource::kPlans, 5).detail().limit, 4);
  EXPECT_EQ(ledger.Charge({4, "", 8, ""}, Resource::kPlans, 5).detail().limit, 4);
  EXPECT_EQ(ledger.LimitsOf({1, "/batchy", 8, "/batchy"}).plans, 4u);
  // A uid's resources outside the rule count, too.
  EXPECT_FALSE(ledger.Check({1, "/y", 8, "/y"}, Resource::kPlans, 1).ok());
  ledger.SetRules({});
  EXPECT_EQ(ledger.Check(first, Resource::kPlans, 1).detail().limit, 4);
  ledger.Refund(first, Resource::kPlans, 9);
  ledger.Refund(second, Resource::kPlans, 1);
  EXPECT_EQ(ledger.accounts(), 0u);
}

TEST(LedgerTest, NewLimitsTakeNothingAway) {
  Ledger ledger(Limits());
  const Payer payer{1, "/x"};
  EXPECT_TRUE(ledger.Charge(payer, Resource::kPlans, 3).ok());
  EXPECT_GT(ledger.LargestUse()["plans"], 0);
  ControlLimits fewer = Limits();
  fewer.plans = fewer.cgroup.plans = 2;
  ledger.SetLimits(fewer);
  EXPECT_EQ(ledger.Charge(payer, Resource::kPlans, 1).detail().limit, 2);
  EXPECT_DOUBLE_EQ(ledger.LargestUse()["plans"], 1.5);
  ledger.Refund(payer, Resource::kPlans, 2);
  EXPECT_TRUE(ledger.Charge(payer, Resource::kPlans, 1).ok());
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
