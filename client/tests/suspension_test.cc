// Client::Suspend and Resume: the order of the groups, and what becomes of the others where one refuses.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "client/tests/fake_daemon_test.h"

namespace tandem::client {
namespace {

class SuspensionTest : public FakeDaemonTest {
 protected:
  void SetUp() override {
    MakeDaemon("host");
    Connect();
    plan_.reset();
    for (const uint64_t id : {13, 12, 14}) Join(id);
    daemon_->suspend = [this](uint64_t group, SuspendStep step) {
      steps_.push_back(std::to_string(group) + Letter(step));
      const auto refused = refusals_.find(steps_.back());
      return refused == refusals_.end() ? Status::Ok() : refused->second;
    };
  }
  void TearDown() override { daemon_->suspend = nullptr; }

  void Join(uint64_t id) {
    daemon_->group_id = id;
    JoinOptions join;
    join.job_key = "0123456789abcdef";
    join.name = "g" + std::to_string(id);
    join.world_size = 2;
    others_.push_back(client_->JoinGroup(join).value());
  }
  static char Letter(SuspendStep step) {
    switch (step) {
      case SuspendStep::kStopped: return 's';
      case SuspendStep::kUnmapped: return 'u';
      case SuspendStep::kResuming: return 'r';
      case SuspendStep::kMapped: return 'm';
    }
    return '?';
  }
  std::vector<std::string> Steps() { return std::exchange(steps_, {}); }

  using Names = std::vector<std::string>;
  std::vector<std::shared_ptr<Group>> others_;  // beside 11, which is "tp"
  std::vector<std::string> steps_;
  std::map<std::string, Status> refusals_;  // by step
};

TEST_F(SuspensionTest, GroupsFollowTheirIdsWhateverTheOrderOfJoining) {
  ASSERT_TRUE(client_->Suspend().ok());
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "12s", "12u", "13s", "13u", "14s", "14u"}));
  ASSERT_TRUE(client_->Resume().ok());
  EXPECT_EQ(Steps(), (Names{"11r", "11m", "12r", "12m", "13r", "13m", "14r", "14m"}));
  ASSERT_TRUE(client_->Resume().ok());
  EXPECT_EQ(Steps(), Names{});
}

TEST_F(SuspensionTest, WhereOneRefusesTheOthersWakeUp) {
  refusals_["13s"] = Status(Code::kDeadlineExceeded, "late", {.reason = "RANK_LATE", .ranks = {1}});
  const Status status = client_->Suspend();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "group 'g13' does not sleep: late");
  EXPECT_EQ(status.detail(), refusals_["13s"].detail());
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "12s", "12u", "13s", "11r", "11m", "12r", "12m"}));
  refusals_.clear();
  ASSERT_TRUE(client_->Suspend().ok());
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "12s", "12u", "13s", "13u", "14s", "14u"}));
}

TEST_F(SuspensionTest, AGroupThatSleptBeforeSleepsOn) {
  ASSERT_TRUE(group_->Suspend().ok());
  refusals_["12s"] = FailedPrecondition("shared");
  EXPECT_EQ(client_->Suspend().code(), Code::kFailedPrecondition);
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "11u", "12s"}));
}

TEST_F(SuspensionTest, AGroupThatCannotBeWokenUpIsNamed) {
  refusals_["12s"] = FailedPrecondition("shared");
  refusals_["11r"] = DeadlineExceeded("rank 1 did not come");
  EXPECT_EQ(client_->Suspend().message(),
            "group 'g12' does not sleep: shared; and group 'tp' does not wake up: rank 1 did not come "
            "(asleep: 'tp')");
}

TEST_F(SuspensionTest, ACancelledCallIsOverAtOnce) {
  refusals_["12u"] = Status(Code::kCancelled, "the call was cancelled");
  EXPECT_EQ(client_->Suspend().code(), Code::kCancelled);
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "12s", "12u"}));
  refusals_["11r"] = refusals_["12u"];
  EXPECT_EQ(client_->Resume().code(), Code::kCancelled);
  EXPECT_EQ(Steps(), Names{"11r"});
}

TEST_F(SuspensionTest, WhereOneDoesNotWakeUpTheOthersDo) {
  ASSERT_TRUE(client_->Suspend().ok());
  (void)Steps();
  refusals_["11r"] = ResourceExhausted("no memory");
  refusals_["13m"] = Unavailable("rank 1 is gone");
  const Status status = client_->Resume();
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "group 'tp' does not wake up: no memory (asleep: 'tp', 'g13')");
  EXPECT_EQ(Steps(), (Names{"11r", "12r", "12m", "13r", "13m", "14r", "14m"}));
  refusals_.clear();
  ASSERT_TRUE(client_->Resume().ok());
  EXPECT_EQ(Steps(), (Names{"11r", "11m", "13r", "13m"}));
}

TEST_F(SuspensionTest, GroupsThatAreLeftOrDroppedDoNotCount) {
  ASSERT_TRUE(others_[0]->Leave().ok());  // 13
  others_.pop_back();                     // 14
  ASSERT_TRUE(client_->Suspend().ok());
  EXPECT_EQ(Steps(), (Names{"11s", "11u", "12s", "12u"}));
}

}  // namespace
}  // namespace tandem::client
