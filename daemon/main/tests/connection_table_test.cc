#include "daemon/main/connection_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::daemon {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

constexpr ConnectionLimits kLimits = {.per_session = 2, .strangers_per_uid = 4, .strangers = 6};

ConnectionPeer Of(uint32_t uid, const std::string& owner = "/") {
  return {.caller = Caller{.uid = uid}, .owner = owner};
}

class ConnectionTableTest : public testing::Test {
 protected:
  // As the listener does: what must go, goes.
  std::optional<uint64_t> Add(uint64_t id, ConnectionPeer peer) {
    const auto surplus = table.Add(id, std::move(peer));
    if (surplus.has_value()) table.Remove(*surplus);
    return surplus;
  }
  ConnectionTable table{kLimits};
};

TEST_F(ConnectionTableTest, OfAUserWithTooManyStrangersTheOldestGoes) {
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(Add(id, Of(7)), std::nullopt);
  EXPECT_THAT(Add(5, Of(7)), Optional(1u));
  EXPECT_THAT(Add(6, Of(7)), Optional(2u));
  EXPECT_EQ(table.size(), 4u);
}

TEST_F(ConnectionTableTest, OneUsersStrangersDoNotPushOutAnothers) {
  Add(1, Of(1000));
  for (uint64_t id = 2; id <= 5; ++id) Add(id, Of(7));
  EXPECT_EQ(Add(6, Of(1000)), std::nullopt);
  EXPECT_THAT(Add(7, Of(1001)), Optional(2u)) << "of who has most, though the table is full by another";
  EXPECT_NE(table.Find(1), nullptr);
}

TEST_F(ConnectionTableTest, ContainersOfOneUserAreToldApart) {
  Add(1, Of(0, "/quiet"));
  for (uint64_t id = 2; id <= 4; ++id) Add(id, Of(0, "/loud"));
  EXPECT_THAT(Add(5, Of(0, "/quiet")), Optional(2u));
  EXPECT_THAT(Add(6, Of(0, "/loud")), Optional(3u));
}

TEST_F(ConnectionTableTest, WhatHasASessionIsNoStranger) {
  for (uint64_t id = 1; id <= 4; ++id) Add(id, Of(7));
  EXPECT_EQ(table.Own(1, 99), std::nullopt);
  EXPECT_EQ(table.Own(1, 99), std::nullopt) << "each call says so again";
  EXPECT_EQ(Add(5, Of(7)), std::nullopt);
  EXPECT_THAT(Add(6, Of(7)), Optional(2u));
}

TEST_F(ConnectionTableTest, ASessionHasFewConnections) {
  for (uint64_t id = 1; id <= 3; ++id) Add(id, Of(7));
  EXPECT_EQ(table.Own(2, 99), std::nullopt);
  EXPECT_EQ(table.Own(3, 99), std::nullopt);
  EXPECT_THAT(table.Own(1, 99), Optional(2u)) << "the oldest but the one that calls";
}

TEST_F(ConnectionTableTest, ConnectionsOfEndedSessionsAreStrangersAgain) {
  for (uint64_t id = 1; id <= 3; ++id) {
    Add(id, Of(7));
    table.Own(id, 100 + id);
  }
  for (uint64_t id = 4; id <= 6; ++id) Add(id, Of(7));
  EXPECT_THAT(table.KeepSessions({101, 102, 103}), IsEmpty());
  EXPECT_TRUE(table.has_sessions());
  EXPECT_THAT(table.KeepSessions({102}), ElementsAre(1u)) << "five strangers are one too many";
  EXPECT_EQ(table.Find(1), nullptr);
  EXPECT_THAT(table.KeepSessions({}), ElementsAre(2u));
  EXPECT_FALSE(table.has_sessions());
}

TEST_F(ConnectionTableTest, WhatIsRemovedCountsNoMore) {
  for (uint64_t id = 1; id <= 4; ++id) Add(id, Of(7));
  table.Own(4, 99);
  table.Remove(4);
  table.Remove(3);
  table.Remove(3);
  EXPECT_FALSE(table.has_sessions());
  EXPECT_EQ(Add(5, Of(7)), std::nullopt);
  EXPECT_EQ(table.size(), 3u);
}

}  // namespace
}  // namespace tandem::daemon
