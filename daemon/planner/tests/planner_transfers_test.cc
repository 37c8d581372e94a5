// Transfers: which lists of sends and receives are refused, and that the error names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

class Transfers : public testing::Test {
 protected:
  Transfers() {
    const OpRequest request = Request(
        Op::kSendReceive, {Tensor(Role::kInput, DType::kF32, {9}), Tensor(Role::kOutput, DType::kF32, {9})});
    requests_ = OnAllRanks(request, 2);
    requests_[0].transfers = {{true, 1, 0}};
    requests_[1].transfers = {{false, 0, 1}};
  }
  void ExpectRefused(const std::string& field, const std::string& text) {
    const Status status = MakePlan(requests_, SwitchGroup(2)).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.ToString();
    EXPECT_EQ(status.detail().field, field);
    EXPECT_THAT(status.message(), HasSubstr(text));
  }
  std::vector<OpRequest> requests_;
};

TEST_F(Transfers, Run) { EXPECT_TRUE(MakePlan(requests_, SwitchGroup(2)).ok()); }
TEST_F(Transfers, NeedAPeerInTheWorld) {
  requests_[0].transfers[0].peer = 2;
  ExpectRefused("transfers[0].peer", "rank 2");
}
TEST_F(Transfers, NeedASlot) {
  requests_[0].transfers[0].slot = 2;
  ExpectRefused("transfers[0].slot", "no slot 2");
}
TEST_F(Transfers, ReceiveIntoAnOutput) {
  requests_[1].transfers[0].slot = 0;
  ExpectRefused("transfers[0].slot", "no output");
}
TEST_F(Transfers, ReceiveOnceIntoASlot) {
  requests_[0].transfers.push_back({true, 1, 0});
  requests_[1].transfers.push_back({false, 0, 1});
  ExpectRefused("transfers[1].slot", "receives twice");
}
TEST_F(Transfers, DoNotSendWhatTheyReceive) {
  requests_[1].transfers.push_back({true, 0, 1});
  ExpectRefused("transfers[0].slot", "sent and received");
}
TEST_F(Transfers, HaveACounterpart) {
  requests_[1].transfers.clear();
  ExpectRefused("transfers", "rank 0 sends 1 times to rank 1, which receives 0 times");
}
TEST_F(Transfers, AgreeOnTheTensor) {
  requests_[1].operands[1].spec.shape = {8};
  ExpectRefused("transfers[0].slot", "rank 1 receives f32[8] where rank 0 sends f32[9]");
}

}  // namespace
}  // namespace tandem::plan
