// Measured times and the control plane: taken under the key that plans look them up by, and refused when they
// cannot be true.
#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"
#include "daemon/planner/tuning/tuning_store.h"

namespace tandem::daemon {
namespace {

using testing::HasSubstr;

class ControlTuningTest : public ControlTest {
 protected:
  ControlTuningTest() {
    std::string pattern = ::testing::TempDir() + "control-tuning.XXXXXX";
    directory_ = ::mkdtemp(pattern.data());
  }
  ~ControlTuningTest() override { std::filesystem::remove_all(directory_); }

  void StartTuned(int gpus) {
    ControlOptions options;
    options.tuning = std::make_shared<TuningStore>(directory_ + "/tuning.toml", "");
    Start(gpus, options);
  }
  v1::OpRequest Request(int64_t elements = 1024) { return AllReduce(0, "", elements).request(); }
  std::vector<std::string> Gpus(int count) {
    std::vector<std::string> uuids;
    for (int i = 0; i < count; ++i)
      uuids.push_back(control->options().topology.gpus[static_cast<size_t>(i)].uuid);
    return uuids;
  }
  static plan::TuningCandidate Time(Algorithm algorithm, double us, int steps = 0) {
    return {algorithm, steps, 0, 5, us, us, us, ""};
  }
  // The plan of an all-reduce on two ranks.
  v1::PlanInfo Plan(const std::string& name) {
    const auto sessions = AttachAll(2);
    const uint64_t group = Join(sessions, name);
    auto replies = Together(2, [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "k"),
                              Waiter::For(kWaitBudget));
    });
    for (auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    EXPECT_EQ(replies[0]->plan().algorithm(), replies[1]->plan().algorithm());
    return replies[0]->plan();
  }

  std::string directory_;
};

TEST_F(ControlTuningTest, LaterPlansAreChosenByWhatWasMeasured) {
  StartTuned(2);
  EXPECT_EQ(Plan("before").algorithm(), static_cast<uint32_t>(Algorithm::kOneShot));
  auto entry =
      control->PutTuning(Request(), Gpus(2), {Time(Algorithm::kOneShot, 8), Time(Algorithm::kTwoShot, 5.5)});
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  EXPECT_EQ(entry->key.gpu, "host");
  EXPECT_EQ(entry->key.types, "f32 -> f32");
  EXPECT_EQ(entry->shape, plan::TuningShape{4096});
  EXPECT_EQ(entry->candidates[0].algorithm, Algorithm::kTwoShot);
  const v1::PlanInfo after = Plan("after");
  EXPECT_EQ(after.algorithm(), static_cast<uint32_t>(Algorithm::kTwoShot));
  EXPECT_EQ(after.measured_us(), 5.5);
  EXPECT_THAT(after.reason(), HasSubstr("measured fastest: 5.5 us"));
  EXPECT_THAT(after.reason(), HasSubstr(directory_ + "/tuning.toml"));
  for (const auto& refused : after.refused()) {
    if (refused.algorithm() == static_cast<uint32_t>(Algorithm::kOneShot)) {
      EXPECT_EQ(refused.measured_us(), 8);
    }
  }
}

TEST_F(ControlTuningTest, PlansWithoutATimeAreRemembered) {
  StartTuned(2);
  TuningStore& store = *control->options().tuning;
  Plan("first");
  Plan("second");
  auto wanted = store.Wanted();
  ASSERT_EQ(wanted.size(), 1u);
  EXPECT_EQ(wanted[0].plans, 2u);
  EXPECT_EQ(wanted[0].gpu_uuids, Gpus(2));
  // Every remembered problem can be handed in.
  auto entry = control->PutTuning(OpRequestToProto(wanted[0].request), wanted[0].gpu_uuids,
                                  {Time(Algorithm::kOneShot, 8)});
  ASSERT_TRUE(entry.ok()) << entry.status().ToString();
  EXPECT_EQ(plan::TuningId(*entry), plan::TuningId(wanted[0].entry));
  EXPECT_TRUE(store.Wanted().empty());
  Plan("third");
  EXPECT_TRUE(store.Wanted().empty());
}

TEST_F(ControlTuningTest, WhatCannotHaveBeenMeasuredIsRefused) {
  StartTuned(3);
  auto refusal = [&](const v1::OpRequest& request, const std::vector<std::string>& gpus,
                     const std::vector<plan::TuningCandidate>& candidates) {
    auto entry = control->PutTuning(request, gpus, candidates);
    EXPECT_FALSE(entry.ok());
    return entry.status().ToString();
  };
  const std::vector<plan::TuningCandidate> good = {Time(Algorithm::kOneShot, 8)};
  EXPECT_THAT(refusal(Request(), Gpus(1), good), HasSubstr("2 to 8 GPUs"));
  EXPECT_THAT(refusal(Request(), {Gpus(1)[0], Gpus(1)[0]}, good), HasSubstr("twice"));
  EXPECT_THAT(refusal(Request(), {Gpus(1)[0], "GPU-none"}, good), HasSubstr("GPU-none"));
  EXPECT_THAT(refusal(Request(), Gpus(2), {}), HasSubstr("no candidate"));
  EXPECT_THAT(refusal(Request(), Gpus(2), {Time(Algorithm::kRing, 8)}), HasSubstr("no algorithm ring"));
  EXPECT_THAT(refusal(Request(), Gpus(2), {Time(Algorithm::kOneShot, -8)}), HasSubstr("p10"));
  EXPECT_THAT(refusal(Request(), Gpus(2), {Time(Algorithm::kLowLatency, 8)}),
              HasSubstr("the time for low_latency is refused"));
  EXPECT_THAT(refusal(Request(), Gpus(2), {Time(Algorithm::kOneShot, 8, 2)}), HasSubstr("steps"));
  v1::OpRequest barrier;
  barrier.set_op(static_cast<uint32_t>(Op::kBarrier));
  EXPECT_THAT(refusal(barrier, Gpus(2), good), HasSubstr("barrier"));
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/tuning.toml"));
}

TEST_F(ControlTuningTest, WithoutATableTimesAreRefused) {
  Start(2);
  EXPECT_EQ(control->PutTuning(Request(), Gpus(2), {Time(Algorithm::kOneShot, 8)}).status().code(),
            Code::kFailedPrecondition);
}

}  // namespace
}  // namespace tandem::daemon
