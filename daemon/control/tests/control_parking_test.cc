// Parking, as the control plane sees it: who asks for it, what plans say of it, and breaks that do not wait
// for commands.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

class ControlParkingTest : public ControlTest {
 protected:
  // A group of two whose ranks ask for `parking` ("" for nothing): what rank 0's engine is told.
  std::string Told(const std::vector<SessionRef>& sessions, const std::string& parking,
                   const std::string& name) {
    auto replies = Together(2, [&](int rank) {
      v1::JoinGroupRequest request = JoinRequest(2, rank, name);
      if (!parking.empty()) (*request.mutable_options())["parking"] = parking;
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kPatience));
    });
    if (!replies[0].ok()) return replies[0].status().ToString();
    group = replies[0]->group_id();
    return engines->Look(0).groups.at(group).options().at("parking");
  }
  // What a plan of the group says.
  std::string PlanSays(const std::vector<SessionRef>& sessions) {
    auto plans = Together(2, [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "k"),
                              Waiter::For(kPatience));
    });
    return plans[0].ok() ? plans[0]->plan().parking() : plans[0].status().ToString();
  }
  uint64_t group = 0;
};

TEST_F(ControlParkingTest, TheGroupsOptionGoesOverTheConfiguration) {
  for (bool configured : {false, true}) {
    ControlOptions options;
    options.parking = configured;
    Start(2, options);
    const auto sessions = AttachAll(2);
    EXPECT_EQ(Told(sessions, "", "default"), configured ? "auto" : "off");
    EXPECT_EQ(Told(sessions, "auto", "on"), "auto");
    EXPECT_EQ(PlanSays(sessions), "where it is allowed");
    EXPECT_EQ(Told(sessions, "off", "off"), "off");
    EXPECT_EQ(PlanSays(sessions), "off");
    EXPECT_THAT(Told(sessions, "on", "wrong"), testing::HasSubstr("options[parking]"));
  }
}

TEST_F(ControlParkingTest, APlanSaysWhyAnEngineNeverParksIt) {
  Start(2);
  engines->never_parked = "NCCL cannot be called off";
  const auto sessions = AttachAll(2);
  EXPECT_EQ(Told(sessions, "auto", "on"), "auto");
  EXPECT_EQ(PlanSays(sessions), "never: NCCL cannot be called off");
  EXPECT_EQ(Told(sessions, "off", "off"), "off");
  EXPECT_EQ(PlanSays(sessions), "off");
}

TEST_F(ControlParkingTest, BreaksOfGroupsThatParkGoByTheLogToo) {
  std::mutex mutex;
  std::multiset<std::pair<uint64_t, uint64_t>> breaks;
  ControlOptions options;
  options.break_by_log = [&](uint64_t id, uint64_t generation) {
    std::lock_guard lock(mutex);
    breaks.emplace(id, generation);
  };
  Start(4, options);
  const auto sessions = AttachAll(2);
  Told(sessions, "off", "off");
  Told(sessions, "auto", "on");
  engines->Kill(0);  // of generation 1; the group is installed again as generation 2
  engines->Restart(0);
  ASSERT_TRUE(Eventually([&] { return engines->Look(0).groups.contains(group); }));
  control->SessionLost(IdOf(1), "its process has ended");
  std::lock_guard lock(mutex);
  EXPECT_EQ(breaks, (std::multiset<std::pair<uint64_t, uint64_t>>{{group, 1}, {group, 2}}));
}

}  // namespace
}  // namespace tandem::daemon
