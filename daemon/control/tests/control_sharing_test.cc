// Ranks that share a GPU (engines_per_gpu), as the control plane sees them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/control/tests/control_fixture.h"
#include "daemon/topology/shared_gpus.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

class ControlSharingTest : public ControlTest {
 protected:
  // Two devices of two engines each: 0 and 2 share the first one.
  ControlSharingTest() {
    ControlOptions options;
    options.topology = *ShareGpus(EmulatedTopology(2), 2);
    Start(4, options);
    sessions_ = AttachAll(2);
  }

  // CTAs that a fused all-gather of few rows may have, in the program that rank 0's engine gets.
  uint32_t MostCtas(const std::vector<int>& gpus, const std::string& name) {
    const uint64_t group = JoinOn(gpus, sessions_, name).group_id();
    OpRequest request;
    request.op = Op::kAllGatherMatmul;
    request.algorithm = Algorithm::kFused;
    request.operands = {{Role::kA, {DType::kBf16, {16, 64}, {}}, false, -1},
                        {Role::kB, {DType::kBf16, {64, 128}, {}}, false, -1},
                        {Role::kC, {DType::kBf16, {32, 128}, {}}, false, -1}};
    v1::PrepareRequest prepare;
    prepare.set_group_id(group);
    prepare.set_key("ag");
    *prepare.mutable_request() = OpRequestToProto(request);
    auto plans = Together(2, [&](int rank) {
      return control->Prepare(sessions_[static_cast<size_t>(rank)], prepare, Waiter::For(kWaitBudget));
    });
    if (!plans[0].ok()) {
      ADD_FAILURE() << plans[0].status().ToString();
      return 0;
    }
    const auto state = engines->Look(gpus[0]);
    return state.plans.at(plans[0]->plan().plan_id()).program().steps(0).collective().skinny().most_ctas();
  }

  std::vector<SessionRef> sessions_;
};

TEST_F(ControlSharingTest, NcclIsOfferedToRanksOfDifferentDevicesOnly) {
  EXPECT_TRUE(OfferOf(JoinOn({0, 1}, sessions_, "apart"), Algorithm::kNccl).available());
  const v1::Offer offer = OfferOf(JoinOn({0, 2}, sessions_, "together"), Algorithm::kNccl);
  EXPECT_FALSE(offer.available());
  EXPECT_THAT(offer.reason(), HasSubstr("share a GPU"));
}

TEST_F(ControlSharingTest, FusedKernelsFitTheSmallestGpuOfTheGroup) {
  EXPECT_EQ(MostCtas({0, 1}, "unknown"), 128u);
  engines->kernel_sms = {{0, 65}, {1, 33}, {2, 65}, {3, 132}};
  EXPECT_EQ(MostCtas({0, 1}, "small"), 29u);
  EXPECT_EQ(MostCtas({2, 3}, "large"), 61u);
  EXPECT_EQ(MostCtas({3, 1}, "other order"), 29u);
}

}  // namespace
}  // namespace tandem::daemon
