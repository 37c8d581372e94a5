// Clients of the version before: which versions are accepted, and what their groups do without.
#include <gmock/gmock.h>

#include "common/protocol.h"
#include "daemon/control/tests/control_fixture.h"

namespace tandem::daemon {
namespace {

using ::testing::HasSubstr;

static_assert(CommonProtocol(kProtocol, kProtocol) == kProtocol);
static_assert(CommonProtocol(kOldestProtocol, kOldestProtocol) == kOldestProtocol);
static_assert(CommonProtocol(1, kProtocol + 5) == kProtocol);
static_assert(CommonProtocol(0, kOldestProtocol - 1) == 0);
static_assert(CommonProtocol(kProtocol + 1, kProtocol + 5) == 0);

class ControlProtocolTest : public ControlTest {
 protected:
  Result<v1::AttachReply> AttachWith(uint32_t min, uint32_t max, int pid = 1000) {
    v1::AttachRequest request;
    request.set_protocol_min(min);
    request.set_protocol_max(max);
    return control->Attach({.uid = 7, .gid = 7, .pid = pid}, request);
  }
  // A group whose ranks speak these versions, and the placement of a plan in it.
  v1::PrepareReply PrepareAmong(const std::vector<uint32_t>& protocols, const std::string& name) {
    std::vector<SessionRef> sessions;
    for (const uint32_t protocol : protocols) {
      const auto reply = AttachWith(protocol, protocol);
      EXPECT_TRUE(reply.ok()) << reply.status().ToString();
      EXPECT_EQ(reply->protocol(), protocol);
      sessions.push_back(*control->Authenticate(reply->token()));
    }
    const uint64_t group = Join(sessions, name);
    const auto replies = Together(static_cast<int>(sessions.size()), [&](int rank) {
      return control->Prepare(sessions[static_cast<size_t>(rank)], AllReduce(group, "ar"),
                              Waiter::For(kWaitBudget));
    });
    for (const auto& reply : replies) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
    return replies[0].ok() ? *replies[0] : v1::PrepareReply();
  }
};

TEST_F(ControlProtocolTest, TheNewestCommonVersionIsSpoken) {
  Start(1);
  EXPECT_EQ(AttachWith(kOldestProtocol, kProtocol)->protocol(), kProtocol);
  EXPECT_EQ(AttachWith(kProtocol, kProtocol + 7)->protocol(), kProtocol);
  EXPECT_EQ(AttachWith(kOldestProtocol, kOldestProtocol)->protocol(), kOldestProtocol);
}

TEST_F(ControlProtocolTest, ARefusalNamesBothRangesAndWhatToUpgrade) {
  Start(1);
  const Status newer = AttachWith(kProtocol + 1, kProtocol + 2).status();
  EXPECT_EQ(newer.code(), Code::kFailedPrecondition);
  EXPECT_EQ(newer.detail().reason, "PROTOCOL");
  EXPECT_EQ(newer.detail().field, "protocol_min");
  EXPECT_THAT(newer.message(), HasSubstr("protocols " + std::to_string(kProtocol + 1) + " to " +
                                         std::to_string(kProtocol + 2)));
  EXPECT_THAT(newer.message(), HasSubstr("speaks " + std::to_string(kOldestProtocol) + " to " +
                                         std::to_string(kProtocol) + ": upgrade the daemon"));
  const Status older = AttachWith(0, kOldestProtocol - 1).status();
  EXPECT_EQ(older.detail().reason, "PROTOCOL");
  EXPECT_EQ(older.detail().field, "protocol_max");
  EXPECT_THAT(older.message(), HasSubstr("the client is too old"));
}

TEST_F(ControlProtocolTest, PlansOfAGroupWithAnOlderClientStayOnEngines) {
  ControlOptions options;
  options.placement = plan::PlanPlacement::kClient;
  Start(2, options);
  for (const bool first : {true, false}) {
    const v1::PrepareReply reply =
        PrepareAmong({first ? 1u : kProtocol, first ? kProtocol : 1u}, first ? "first" : "second");
    EXPECT_FALSE(reply.has_client());
    EXPECT_THAT(reply.plan().placement(), HasSubstr("engine: the client of rank " +
                                                    std::string(first ? "0" : "1") + " speaks protocol 1"));
  }
  EXPECT_TRUE(PrepareAmong({kProtocol, kProtocol}, "third").has_client());
}

}  // namespace
}  // namespace tandem::daemon
