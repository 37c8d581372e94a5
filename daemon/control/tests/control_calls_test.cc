// Places for calls: what one session, one uid and one cgroup can hold, and that others have theirs all the
// same.
#include <gmock/gmock.h>

#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

class ControlCallsTest : public ControlTest {
 protected:
  void TearDown() override {
    places.clear();  // before the control plane
    ControlTest::TearDown();
  }
  SessionRef AttachAs(uint32_t uid, const std::string& cgroup = {}) {
    v1::AttachRequest request;
    request.set_protocol_min(kProtocol);
    request.set_protocol_max(kProtocol);
    const auto reply = control->Attach({.uid = uid, .gid = 7, .pid = 1, .cgroup = cgroup}, request);
    EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return reply.ok() ? *control->Authenticate(reply->token()) : nullptr;
  }
  // Takes up to `most` places and keeps them: how many it got, and why not one more.
  std::pair<uint64_t, Status> Take(const SessionRef& session, uint64_t most = 1 << 20) {
    for (uint64_t got = 0; got < most; ++got) {
      auto place = control->Admit(session);
      if (!place.ok()) return {got, place.status()};
      places.push_back(std::move(*place));
    }
    return {most, Status::Ok()};
  }

  std::vector<std::shared_ptr<void>> places;
};

TEST_F(ControlCallsTest, OneUidCannotTakeTheOthersPlaces) {
  ControlOptions options;
  Start(1, options);
  const ControlLimits& limits = options.limits;
  std::vector<SessionRef> greedy;
  for (int i = 0; i < 4; ++i) greedy.push_back(AttachAs(7));
  uint64_t taken = 0;
  Status refused;
  for (const SessionRef& session : greedy) {
    const auto [got, why] = Take(session);
    EXPECT_GE(got, kOwnCalls);
    taken += got;
    refused = why;
  }
  EXPECT_EQ(taken, 4 * kOwnCalls + limits.calls_per_uid);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.detail().reason, "QUOTA_CALLS_PER_UID");
  EXPECT_EQ(refused.detail().who, "uid 7");
  // A second greedy uid takes what the node has left to share; everybody else still has its own.
  for (int i = 0; i < 4; ++i) taken += Take(AttachAs(8)).first;
  EXPECT_EQ(taken, 8 * kOwnCalls + 2 * limits.calls_per_uid);
  for (uint32_t uid = 9; uid < 9 + limits.sessions - 8; ++uid) {
    const auto [got, why] = Take(AttachAs(uid));
    EXPECT_EQ(got, kOwnCalls);
    EXPECT_EQ(why.detail().reason, "QUOTA_CALLS_PER_NODE");
    taken += got;
  }
  EXPECT_EQ(taken, MostCalls(limits));
}

TEST_F(ControlCallsTest, EightRanksWithManyGroupsAreNotRefused) {
  Start(8);
  for (int rank = 0; rank < 8; ++rank) {
    const auto [got, why] = Take(AttachAs(7, "/job"), 1 + 64);  // events, and 64 calls at once
    EXPECT_TRUE(why.ok()) << why.ToString();
  }
}

TEST_F(ControlCallsTest, PlacesAreGivenBackAndCgroupsCounted) {
  ControlOptions options;
  options.limits.calls_per_uid = 8;
  options.limits.cgroup.calls = 3;
  options.limits.calls_per_session = 6;
  Start(1, options);
  const SessionRef first = AttachAs(7, "/pod"), second = AttachAs(8, "/pod"), free = AttachAs(7);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(Take(first).first, kOwnCalls + 3);
    const auto [got, why] = Take(second);
    EXPECT_EQ(got, kOwnCalls);
    EXPECT_EQ(why.detail().reason, "QUOTA_CALLS_PER_CGROUP");
    EXPECT_EQ(why.detail().who, "cgroup /pod");
    const auto [all, session] = Take(free);
    EXPECT_EQ(all, 6u);
    EXPECT_EQ(session.detail().reason, "QUOTA_CALLS");
    places.clear();
  }
}

}  // namespace
}  // namespace tandem::daemon
