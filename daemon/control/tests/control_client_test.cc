// Client-placed plans in the control plane (docs/client-placement.md): memory for members, the armed
// barrier, verdict pages at every end of a group, and reports of failures.
#include <gmock/gmock.h>

#include <map>
#include <variant>

#include "daemon/control/client_groups/failure_service.h"
#include "daemon/control/tests/client_fixture.h"
#include "program/program_codec.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

TEST_F(ClientPlacementTest, MembersGetTheMemoryAndEnginesNoPlan) {
  Begin();
  const auto replies = PrepareAll("ar");
  for (int rank = 0; rank < kWorld; ++rank) {
    const auto& reply = replies[static_cast<size_t>(rank)];
    ASSERT_TRUE(reply.ok()) << reply.status().ToString();
    ASSERT_TRUE(reply->has_client());
    EXPECT_THAT(reply->plan().placement(), HasSubstr("client: asked for"));
    const v1::ClientPlacement& client = reply->client();
    EXPECT_EQ(client.signal_segment_ids_size(), kWorld);
    EXPECT_EQ(client.workspace_segment_ids_size(), kWorld);
    EXPECT_GE(client.workspace_segment_bytes(), 2 * client.half_bytes() + client.bulk_bytes());
    EXPECT_EQ(lease.last_of(IdOf(rank)).size(), static_cast<size_t>(1 + 2 * kWorld));
    program::v1::RankProgram encoded;
    ASSERT_TRUE(encoded.ParseFromString(client.program()));
    const auto program = plan::DecodeProgram(encoded);
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    EXPECT_EQ(program->rank, rank);
    EXPECT_TRUE(engines->Look(rank).plans.empty());
    // The engine that made a segment has it, and no other.
    for (int peer = 0; peer < kWorld; ++peer) {
      const bool has = engines->Look(rank).segments.contains(client.signal_segment_ids(peer));
      EXPECT_EQ(has, rank == peer);
    }
  }
  EXPECT_EQ(PageOf(0).FirstAbortedLaunch(), 0u);
}

TEST_F(ClientPlacementTest, ALargerPlanGetsALargerWorkspaceAndTheSameWords) {
  Begin();
  const auto small = PrepareAll("small");
  const auto large = PrepareAll("large", 8 << 20);
  ASSERT_TRUE(small[0].ok() && large[0].ok()) << large[0].status().ToString();
  EXPECT_EQ(small[0]->client().signal_segment_ids(0), large[0]->client().signal_segment_ids(0));
  EXPECT_NE(small[0]->client().workspace_segment_ids(0), large[0]->client().workspace_segment_ids(0));
  const auto again = PrepareAll("small");
  ASSERT_TRUE(again[0].ok());
  EXPECT_EQ(again[0]->client().workspace_segment_ids(0), small[0]->client().workspace_segment_ids(0));
}

// An older library runs sums whose packets have launch numbers, and so does the whole group then.
TEST_F(ClientPlacementTest, SumsTravelInDensePacketsIfAllRanksKnowThem) {
  BeginOnCuda();
  for (const bool all : {false, true}) {
    const uint64_t id = JoinAs(all ? "all" : "one", [&](int rank, v1::JoinGroupRequest* request) {
      request->set_client_signal_bytes(all || rank == 0 ? plan::kClientSignalAreaBytes : 0);
    });
    ASSERT_NE(id, 0u);
    const auto replies = PrepareOnAll(AllReduce(id, "sum", 1 << 15));
    for (const auto& reply : replies) {
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      ASSERT_TRUE(reply->has_client());
      program::v1::RankProgram sent;
      ASSERT_TRUE(sent.ParseFromString(reply->client().program()));
      const auto program = plan::DecodeProgram(sent);
      ASSERT_TRUE(program.ok()) << program.status().ToString();
      EXPECT_EQ(std::get<plan::CollectiveStep>(program->steps[0].work).dense, all);
      EXPECT_GE(reply->client().signal_segment_bytes(),
                all ? plan::kClientSignalAreaBytes : plan::kSignalAreaBytes);
    }
  }
}

// A product of the group runs in the clients if the process of every rank has what that takes.
TEST_F(ClientPlacementTest, ProductsNeedCublasltOnAllRanks) {
  BeginOnCuda();
  OpRequest product;
  product.op = Op::kMatmulReduceScatter;
  product.algorithm = Algorithm::kUnfused;
  product.operands = {{Role::kA, {DType::kBf16, {64, 128}, {}}, false, -1},
                      {Role::kB, {DType::kBf16, {128, 256}, {}}, false, -1},
                      {Role::kC, {DType::kBf16, {32, 256}, {}}, false, -1}};
  for (const bool all : {false, true}) {
    const uint64_t id = JoinAs(all ? "all" : "one", [&](int rank, v1::JoinGroupRequest* request) {
      request->set_client_products(all || rank == 0);
    });
    ASSERT_NE(id, 0u);
    const auto replies = PrepareOnAll(PrepareRequestOf(id, "product", product));
    for (const auto& reply : replies) {
      if (!all) {
        EXPECT_EQ(reply.status().detail().reason, "NOT_ONE_KERNEL");
        EXPECT_THAT(reply.status().message(), HasSubstr("need cuBLASLt in the process of every rank"));
        continue;
      }
      ASSERT_TRUE(reply.ok()) << reply.status().ToString();
      ASSERT_TRUE(reply->has_client());
      EXPECT_GE(reply->client().bulk_bytes(), 64u * 256 * 2) << "the product lies there";
    }
  }
}

// A library of another version may lay out the signal area otherwise: its words would lie elsewhere.
TEST_F(ClientPlacementTest, FusedProductsNeedOneLayoutOfTheSignalArea) {
  BeginOnCuda();
  OpRequest product;
  product.op = Op::kMatmulReduceScatter;
  product.algorithm = Algorithm::kFused;
  product.operands = {{Role::kA, {DType::kBf16, {4096, 1024}, {}}, false, -1},
                      {Role::kB, {DType::kBf16, {1024, 2048}, {}}, false, -1},
                      {Role::kC, {DType::kBf16, {4096 / kWorld, 2048}, {}}, false, -1}};
  for (const bool alike : {false, true}) {
    const uint64_t id = JoinAs(alike ? "alike" : "apart", [&](int rank, v1::JoinGroupRequest* request) {
      request->set_client_products(true);
      request->set_client_signal_bytes(plan::kClientSignalAreaBytes - (alike || rank == 0 ? 0 : 4096));
    });
    ASSERT_NE(id, 0u);
    const auto replies = PrepareOnAll(PrepareRequestOf(id, "product", product));
    for (const auto& reply : replies) {
      if (alike) {
        ASSERT_TRUE(reply.ok()) << reply.status().ToString();
        EXPECT_TRUE(reply->has_client());
      } else {
        EXPECT_EQ(reply.status().detail().reason, "NOT_ONE_KERNEL");
        EXPECT_THAT(reply.status().message(), HasSubstr("older library on some rank"));
      }
    }
  }
}

TEST_F(ClientPlacementTest, ARankThatCannotLaunchRefusesForAll) {
  Begin();
  const auto replies = PrepareAll("ar");
  ASSERT_TRUE(replies[0].ok());
  const uint64_t plan = replies[0]->plan().plan_id();
  const auto armed = Together(kWorld, [&](int rank) {
    return Arm(rank, plan, rank == 1 ? Unimplemented("no kernels here") : Status::Ok());
  });
  for (const Status& status : armed) {
    EXPECT_EQ(status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(status.detail().reason, "NOT_ARMED");
    EXPECT_THAT(status.detail().ranks, ElementsAre(1));
    EXPECT_THAT(status.message(), HasSubstr("rank 1 cannot launch it: no kernels here"));
  }
}

TEST_F(ClientPlacementTest, ARankThatNeverArmsIsNamed) {
  Begin();
  const auto replies = PrepareAll("ar");
  ASSERT_TRUE(replies[0].ok());
  const Status armed = Arm(0, replies[0]->plan().plan_id(), {}, milliseconds(50));
  EXPECT_EQ(armed.code(), Code::kDeadlineExceeded) << armed.ToString();
  EXPECT_THAT(armed.detail().ranks, ElementsAre(1));
  EXPECT_EQ(Arm(1, 99).code(), Code::kNotFound);
}

TEST_F(ClientPlacementTest, ALostRankEndsAllLaunchesWithItsName) {
  Begin();
  PlanAll("ar");
  const VerdictPage page = PageOf(0);
  control->SessionLost(IdOf(1), "its process ended");
  EXPECT_TRUE(page.Aborts(1));
  EXPECT_EQ(page.Reason().code(), Code::kUnavailable);
  EXPECT_EQ(page.Reason().detail().reason, "RANK_LOST");
  EXPECT_THAT(page.Reason().detail().ranks, ElementsAre(1));
  EXPECT_THAT(page.Reason().message(), HasSubstr("rank 1 (pid 1001)"));
}

TEST_F(ClientPlacementTest, ALostRankEndsTheArmedRendezvous) {
  Begin();
  const auto replies = PrepareAll("ar");
  ASSERT_TRUE(replies[0].ok());
  auto armed = std::async(std::launch::async, [&] { return Arm(0, replies[0]->plan().plan_id()); });
  control->SessionLost(IdOf(1), "its process ended");
  EXPECT_EQ(armed.get().detail().reason, "RANK_LOST");
}

TEST_F(ClientPlacementTest, ALeaverEndsLaunchesThatItHasNotFinished) {
  Begin();
  PlanAll("ar");
  VerdictPage leaver = PageOf(1);
  const VerdictPage other = PageOf(0);
  leaver.SetFinished(7);
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_FALSE(other.Aborts(7));
  EXPECT_TRUE(other.Aborts(8));
  EXPECT_EQ(other.Reason().detail().reason, "RANK_LEFT");
  EXPECT_THAT(other.Reason().detail().ranks, ElementsAre(1));
  EXPECT_EQ(leaver.FirstAbortedLaunch(), 0u);
}

TEST_F(ClientPlacementTest, LaunchesAreCountedOnceAndOutliveTheirGroup) {
  Begin();
  PlanAll("ar");
  PageOf(0).SetFinished(5);
  PageOf(1).SetFinished(7);
  PageOf(1).SetFinished(6);  // an older count
  EXPECT_EQ(control->SnapshotGroups().at(0).client_launches, 7u);
  EXPECT_EQ(control->Snapshot().client_launches_total, 7u);
  Together(2, [&](int rank) { return control->LeaveGroup(sessions[rank], group, Waiter::For(kWaitBudget)); });
  EXPECT_TRUE(control->SnapshotGroups().empty());
  EXPECT_EQ(control->Snapshot().client_launches_total, 7u);
}

TEST_F(ClientPlacementTest, ListingsNameTheRankThatOthersWaitFor) {
  Begin();
  PlanAll("ar");
  const auto reason = [&] { return control->SnapshotGroups().at(0).state_reason; };
  EXPECT_EQ(reason(), "");
  const auto before = [&](int ms) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<uint64_t>(std::chrono::nanoseconds(now - std::chrono::milliseconds(ms)).count());
  };
  // Again if the system has stopped this thread until the second was over.
  std::string early;
  Waiter::Clock::time_point begin;
  do {
    begin = Waiter::Clock::now();
    PageOf(0).SetWaitsSince(before(500));
    early = reason();
  } while (Waiter::Clock::now() - begin >= milliseconds(500));
  EXPECT_EQ(early, "") << "for less than a second";
  PageOf(0).SetWaitsSince(before(2100));
  EXPECT_THAT(reason(), MatchesRegex(".*rank 0 has waited in launches on their streams for [0-9.]+ s; "
                                     "rank 1 has none.*"));
  PageOf(1).SetWaitsSince(before(2100));
  EXPECT_EQ(reason(), "") << "all ranks are there";
}

// A hostile number ends the others' launches at once; it cannot keep them waiting.
TEST_F(ClientPlacementTest, ALeaversNumberCannotOverflow) {
  Begin();
  PlanAll("ar");
  PageOf(1).SetFinished(UINT64_MAX);
  const VerdictPage other = PageOf(0);
  ASSERT_TRUE(control->LeaveGroup(sessions[1], group, Waiter::For(kWaitBudget)).ok());
  EXPECT_TRUE(other.Aborts(1));
}

// The memory is tandemd's: the new engine neither gets it nor the plan, and no launch is cut off.
TEST_F(ClientPlacementTest, AnEnginesRestartChangesNothing) {
  Begin();
  const uint64_t plan = PlanAll("ar");
  const VerdictPage page = PageOf(0);
  const auto fds = lease.last_of(IdOf(0));
  engines->Kill(1);
  EXPECT_EQ(page.FirstAbortedLaunch(), 0u);
  engines->Restart(1);
  ASSERT_TRUE(Eventually([&] { return engines->Look(1).groups.contains(group); }));
  EXPECT_TRUE(engines->Look(1).plans.empty());
  EXPECT_EQ(page.FirstAbortedLaunch(), 0u);
  // The descriptor that the engine made lives on, and a repeated Prepare gets it.
  const auto again = PrepareAll("ar");
  ASSERT_TRUE(again[0].ok()) << again[0].status().ToString();
  EXPECT_EQ(again[0]->plan().plan_id(), plan);
  for (const uint64_t id : again[0]->client().signal_segment_ids())
    EXPECT_FALSE(engines->Look(1).segments.contains(id));
  EXPECT_EQ(lease.last_of(IdOf(0)), fds);
}

TEST_F(ClientPlacementTest, AReportEndsLaunchesAndNamesTheRankThatWaitsForNobody) {
  Begin();
  const uint64_t plan = PlanAll("ar");
  const VerdictPage page = PageOf(0);
  const auto before = Waiter::Clock::now();
  EXPECT_TRUE(Report(0, 5, 1, DeadlineExceeded("it waited for rank 1"), plan).ok());
  EXPECT_LT(Waiter::Clock::now() - before, kWaitBudget / 2);
  EXPECT_TRUE(page.Aborts(1));
  EXPECT_EQ(page.Reason().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(page.Reason().detail().reason, "RANK_LATE");
  EXPECT_THAT(page.Reason().detail().ranks, ElementsAre(1));
  EXPECT_THAT(page.Reason().message(), HasSubstr("launch 5 of plan 'ar'"));
  // A later report changes nothing.
  EXPECT_TRUE(Report(1, 9, 0, DeadlineExceeded("it waited for rank 0"), plan).ok());
  EXPECT_THAT(page.Reason().detail().ranks, ElementsAre(1));
}

TEST_F(ClientPlacementTest, AMismatchNamesBothPlans) {
  Begin();
  const uint64_t a = PlanAll("a"), b = PlanAll("b", 64);
  const Status mismatch = InvalidArgument("another plan").WithDetail({.reason = "LAUNCH_MISMATCH"});
  Together(kWorld, [&](int rank) { return Report(rank, 3, 1 - rank, mismatch, rank == 0 ? a : b); });
  const Status reason = PageOf(0).Reason();
  EXPECT_EQ(reason.detail().reason, "LAUNCH_MISMATCH");
  EXPECT_THAT(reason.message(), HasSubstr("rank 0 launched plan 'a', rank 1 plan 'b'"));
  EXPECT_THAT(reason.detail().ranks, ElementsAre(1));
  EXPECT_THAT(reason.message(), HasSubstr("operands[0]"));
  EXPECT_NE(reason.detail().pid, 0);
}

TEST_F(ClientPlacementTest, ADelayBetweenUnlikePlansIsAMismatch) {
  Begin();
  const uint64_t a = PlanAll("a"), b = PlanAll("b");
  PageOf(0).SetLaunched(3, a);
  VerdictPage page = PageOf(1);
  page.SetLaunched(3, b);
  page.SetLaunched(4, a);
  EXPECT_TRUE(Report(0, 3, 1, DeadlineExceeded("it waited for rank 1"), a).ok());
  EXPECT_EQ(page.Reason().detail().reason, "LAUNCH_MISMATCH");
  EXPECT_THAT(page.Reason().detail().ranks, ElementsAre(1));
  EXPECT_THAT(page.Reason().message(), HasSubstr("launch 3: rank 0 launched plan 'a', rank 1 plan 'b'"));
}

TEST(UnlikePlansTest, NamesTheRankThatDiffersFromMost) {
  const auto of = [](std::vector<uint64_t> plan_ids) { return FindUnlikePlans(plan_ids); };
  const auto found = of({7, 0, 8, 8});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 0u);
  EXPECT_EQ(found->other, 2u);
  EXPECT_EQ(of({0, 7, 8})->rank, 2u) << "the lowest rank's of as many stands";
  EXPECT_FALSE(of({7, 0, 7}).has_value());
  EXPECT_FALSE(of({0, 0}).has_value());
}

TEST_F(ClientPlacementTest, AMismatchNamesTheRowsOfBothRanks) {
  Begin();
  const uint64_t plan = PlanAll("ar");
  const Status mismatch = InvalidArgument("another launch").WithDetail({.reason = "LAUNCH_MISMATCH"});
  Together(kWorld, [&](int rank) { return Report(rank, 3, 1 - rank, mismatch, plan, 0, 16 + rank); });
  const Status reason = PageOf(0).Reason();
  EXPECT_EQ(reason.detail().reason, "LAUNCH_MISMATCH");
  EXPECT_EQ(reason.detail().field, "rows");
  EXPECT_THAT(reason.detail().ranks, ElementsAre(1));
  EXPECT_THAT(reason.message(), HasSubstr("rank 1 launched rows 17, rank 0 rows 16"));
}

TEST_F(ClientPlacementTest, AMismatchOfTheSameRowsNamesNone) {
  Begin();
  const uint64_t plan = PlanAll("ar");
  const Status mismatch = InvalidArgument("another tag").WithDetail({.reason = "LAUNCH_MISMATCH"});
  Together(kWorld, [&](int rank) { return Report(rank, 3, 1 - rank, mismatch, plan, 0, 16); });
  const Status reason = PageOf(0).Reason();
  EXPECT_EQ(reason.detail().field, "");
  EXPECT_THAT(reason.message(), Not(HasSubstr("launched rows")));
}

TEST(UnlikeRowsTest, NamesTheRankThatDiffersFromMost) {
  using Report = GroupRecord::FailureReport;
  const auto of = [](uint64_t launch, uint64_t plan, int64_t rows) {
    return Report{launch, plan, 0, InvalidArgument("another launch"), rows};
  };
  const auto found = FindUnlikeRows({{0, of(4, 1, 7)}, {1, of(4, 1, 8)}, {2, of(4, 1, 8)}});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 0);
  EXPECT_EQ(found->other, 1);
  EXPECT_EQ(found->rows, 7);
  EXPECT_EQ(found->other_rows, 8);
  // Other launches and plans have rows of their own, and a plan of one shape has none.
  EXPECT_FALSE(FindUnlikeRows({{0, of(4, 1, 7)}, {1, of(5, 1, 8)}}).has_value());
  EXPECT_FALSE(FindUnlikeRows({{0, of(4, 1, 7)}, {1, of(4, 2, 8)}}).has_value());
  EXPECT_FALSE(FindUnlikeRows({{0, of(4, 1, -1)}, {1, of(4, 1, 8)}}).has_value());
  EXPECT_FALSE(FindUnlikeRows({}).has_value());
}

TEST_F(ClientPlacementTest, NonsenseReportsAreRefused) {
  Begin();
  const Status late = DeadlineExceeded("late");
  EXPECT_EQ(Report(0, 1, 1, late).code(), Code::kFailedPrecondition);  // no such plan yet
  PlanAll("ar");
  EXPECT_EQ(Report(0, 1, 7, late).code(), Code::kInvalidArgument);
  EXPECT_EQ(Report(0, 1, 0, late).code(), Code::kInvalidArgument);
  EXPECT_EQ(Report(0, 1, -1, late).code(), Code::kInvalidArgument);
  EXPECT_EQ(Report(0, 1, 1, Status::Ok()).code(), Code::kInvalidArgument);
  EXPECT_EQ(Report(0, 1, 1, late, 0, 0, -2).code(), Code::kInvalidArgument);
  EXPECT_EQ(PageOf(0).FirstAbortedLaunch(), 0u);
}

TEST(RootOfDelayTest, FollowsWaitsToTheirEnd) {
  using Report = GroupRecord::FailureReport;
  EXPECT_EQ(RootOfDelay({}), -1);
  EXPECT_EQ(RootOfDelay({{0, Report{4, 0, 2, {}}}}), 2);
  EXPECT_EQ(RootOfDelay({{0, Report{4, 0, 1, {}}}, {1, Report{4, 0, 3, {}}}}), 3);
  // Ranks that wait for each other: one of them.
  const int circle = RootOfDelay({{0, Report{4, 0, 1, {}}}, {1, Report{4, 0, 0, {}}}});
  EXPECT_TRUE(circle == 0 || circle == 1);
}

TEST_F(ClientPlacementTest, LaunchesByGrpcAreRefused) {
  Begin();
  v1::LaunchRequest request;
  request.set_plan_id(PlanAll("ar"));
  const Status refused = control->Launch(sessions[0], request).status();
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "CLIENT_PLACED");
}

TEST_F(ClientPlacementTest, APlanThatNeedsEnginesIsRefusedWithTheReason) {
  Begin();
  OpRequest request;
  request.op = Op::kEmpty;
  v1::PrepareRequest proto;
  proto.set_group_id(group);
  proto.set_key("empty");
  *proto.mutable_request() = OpRequestToProto(request);
  const auto replies = Together(kWorld, [&](int rank) {
    return control->Prepare(sessions[static_cast<size_t>(rank)], proto, Waiter::For(kWaitBudget));
  });
  for (const auto& reply : replies) {
    EXPECT_EQ(reply.status().code(), Code::kFailedPrecondition);
    EXPECT_EQ(reply.status().detail().reason, "NOT_ONE_KERNEL");
    EXPECT_EQ(reply.status().detail().field, "placement");
  }
}

TEST_F(ClientPlacementTest, OptionsOfAGroupGoBeforeTheConfiguration) {
  Start(kWorld);
  sessions = AttachAll(kWorld);
  const auto join = [&](const std::string& placement, const std::string& name) {
    return Together(kWorld, [&](int rank) {
      v1::JoinGroupRequest request = JoinRequest(kWorld, rank, name);
      (*request.mutable_options())["placement"] = placement;
      return control->JoinGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
    });
  };
  const auto wrong = join("gpu", "wrong");
  EXPECT_EQ(wrong[0].status().code(), Code::kInvalidArgument);
  const auto joined = join("client", "tp");
  ASSERT_TRUE(joined[0].ok()) << joined[0].status().ToString();
  group = joined[0]->group_id();
  const auto in_client = PrepareAll("ar");
  ASSERT_TRUE(in_client[0].ok());
  EXPECT_TRUE(in_client[0]->has_client());
  group = Join(sessions, "plain");
  const auto in_engine = PrepareAll("ar");
  ASSERT_TRUE(in_engine[0].ok());
  EXPECT_FALSE(in_engine[0]->has_client());
  EXPECT_THAT(in_engine[0]->plan().placement(), HasSubstr("engine: auto takes the engine"));
}

TEST_F(ClientPlacementTest, NothingIsLeftAfterManyRounds) {
  ControlOptions options;
  options.placement = plan::PlanPlacement::kClient;
  Start(kWorld, options);
  size_t before = 0;
  for (int round = 0; round < 50; ++round) {
    sessions = AttachAll(kWorld);
    group = Join(sessions);
    PlanAll("ar");
    // Members leave, or are lost.
    for (int rank = 0; rank < kWorld; ++rank) {
      if (round % 2 == 0) {
        EXPECT_TRUE(control->Detach(sessions[static_cast<size_t>(rank)], Waiter::For(kWaitBudget)).ok());
      } else {
        control->SessionLost(IdOf(rank), "its process ended");
      }
    }
    sessions.clear();
    lease.Forget();
    if (round == 1) before = OpenDescriptors();
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() <= before; })) << before;
}

}  // namespace
}  // namespace tandem::daemon
