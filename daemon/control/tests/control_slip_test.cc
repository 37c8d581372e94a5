// Ranks that make other calls than their peers, in the control plane: renewals of groups whose launches
// engines run, and prepares beside launches.
#include <gmock/gmock.h>

#include <atomic>
#include <future>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/control/tests/client_fixture.h"
#include "ipc/arrival_table.h"

namespace tandem::daemon {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Step = engine::v1::RenewGroup;

class SlipTest : public ClientPlacementTest {
 protected:
  // Both ranks' libraries renew engines, but for rank 1's if it is `older`.
  void BeginOnEngines(bool older = false) {
    Start(kWorld);
    engines->keeps = true;
    engines->before = [this](int gpu, const engine::v1::Command& command) {
      std::lock_guard lock(mutex_);
      if (command.has_renew_group()) renewals_.emplace_back(gpu, command.renew_group().step());
      if (command.has_fail_launch()) failures_.emplace_back(gpu, command.fail_launch());
    };
    sessions = AttachAll(kWorld);
    group = JoinAs("slips", [&](int rank, v1::JoinGroupRequest* request) {
      request->set_renews_engines(!older || rank == 0);
      (*request->mutable_options())["order"] = "same";
    });
  }
  Result<v1::RenewGroupReply> Renew(int rank, v1::RenewGroupRequest::Step step,
                                    milliseconds wait_budget = kWaitBudget) {
    v1::RenewGroupRequest request;
    request.set_group_id(group);
    request.set_step(step);
    return control->RenewGroup(sessions[static_cast<size_t>(rank)], request, Waiter::For(wait_budget));
  }
  std::vector<std::pair<int, int>> Renewals() {
    std::lock_guard lock(mutex_);
    return renewals_;
  }
  ArrivalTable Arrivals() {
    const auto holdings = engines->HoldingsOf(0);
    const auto& fds = holdings->fds.at({engine::v1::Held::ARRIVALS, group});
    return std::move(*ArrivalTable::Map(fds.at(0)->get(), kWorld));
  }
  Result<v1::PrepareReply> Prepare(int rank, const v1::PrepareRequest& request) {
    return control->Prepare(sessions[static_cast<size_t>(rank)], request, Waiter::For(kWaitBudget));
  }

  std::mutex mutex_;
  std::vector<std::pair<int, int>> renewals_;
  std::vector<std::pair<int, engine::v1::FailLaunch>> failures_;
};

TEST_F(SlipTest, EnginesGoOnOnceAllHaveStopped) {
  BeginOnEngines();
  for (int gpu = 0; gpu < kWorld; ++gpu) EXPECT_TRUE(engines->HoldingsOf(gpu)->groups.contains(group));
  const auto stopped =
      Together(kWorld, [&](int rank) { return Renew(rank, v1::RenewGroupRequest::STOPPED); });
  for (const auto& reply : stopped) ASSERT_TRUE(reply.ok()) << reply.status().ToString();
  const auto seen = Renewals();
  int stalls = 0, stops = 0, resumes = 0;
  for (const auto& [gpu, step] : seen) {
    stalls += step == Step::STALL;
    stops += step == Step::STOP;
    resumes += step == Step::RESUME;
    EXPECT_TRUE(step != Step::RESUME || stops == kWorld) << "no engine goes on before all have stopped";
    EXPECT_TRUE(step != Step::STOP || resumes == 0);
  }
  EXPECT_EQ(stalls, kWorld);
  EXPECT_EQ(stops, kWorld);
  EXPECT_EQ(resumes, kWorld);
  const auto ready = Together(kWorld, [&](int rank) { return Renew(rank, v1::RenewGroupRequest::READY); });
  for (const auto& reply : ready) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
}

TEST_F(SlipTest, AnEngineThatFailsHasAllRanksBeginAgain) {
  BeginOnEngines();
  engines->fail = [](int gpu, const engine::v1::Command& command) {
    return gpu == 1 && command.has_renew_group() ? NotFound("no group") : Status::Ok();
  };
  const auto stopped =
      Together(kWorld, [&](int rank) { return Renew(rank, v1::RenewGroupRequest::STOPPED); });
  for (const auto& reply : stopped)
    EXPECT_EQ(reply.status().code(), Code::kAborted) << reply.status().ToString();
}

TEST_F(SlipTest, AGroupWithAnOlderLibraryDoesNotStall) {
  BeginOnEngines(/*older=*/true);
  EXPECT_EQ(Renew(0, v1::RenewGroupRequest::STOPPED).status().code(), Code::kFailedPrecondition);
  EXPECT_TRUE(Renewals().empty());
}

TEST_F(SlipTest, APrepareBesideALaunchFailsForWhatDiffers) {
  BeginOnEngines();
  const auto plans = PrepareAll("sum");
  ASSERT_TRUE(plans[0].ok()) << plans[0].status().ToString();
  const uint64_t plan = plans[0]->plan().plan_id();
  Arrivals().Arrive(0, 0, 0, 1);
  const auto reported = Prepare(1, AllReduce(group, "another", 64));
  EXPECT_EQ(reported.status().detail().reason, "FIELD_MISMATCH") << reported.status().ToString();
  EXPECT_THAT(reported.status().detail().ranks, ElementsAre(1));
  EXPECT_THAT(reported.status().message(),
              HasSubstr("rank 1 prepares 'another' while rank 0 waits in launch 1 of 'sum'"));
  const auto event = NextOfKind(sessions[0], v1::Event::GROUP_STALLED);
  EXPECT_TRUE(event.ok()) << event.status().ToString();
  // All engines know why before the engine of the rank that does not come decides.
  ASSERT_EQ(failures_.size(), 3u);
  for (size_t i = 0; i < failures_.size(); ++i) {
    EXPECT_EQ(failures_[i].second.plan_id(), plan);
    EXPECT_EQ(failures_[i].second.launch(), 1u);
    EXPECT_EQ(failures_[i].second.decides(), i == 2);
  }
  EXPECT_EQ(failures_[2].first, 1);
  // The key is free again, for the rank that has not come as well.
  for (const auto& reply : PrepareAll("another", 64)) EXPECT_TRUE(reply.ok()) << reply.status().ToString();
}

TEST_F(SlipTest, APrepareGoesOnBesideALaunchThatItsRankHasMade) {
  BeginOnEngines();
  ASSERT_TRUE(PrepareAll("sum")[0].ok());
  engines->fail = [](int, const engine::v1::Command& command) {
    const bool decides = command.has_fail_launch() && command.fail_launch().decides();
    return decides ? FailedPrecondition("it has been made") : Status::Ok();
  };
  Arrivals().Arrive(0, 0, 0, 1);
  auto waits =
      std::async(std::launch::async, [&] { return Prepare(1, AllReduce(group, "another", 64)).status(); });
  const auto end = Waiter::Clock::now() + kWaitBudget;
  const auto refused = [&] {
    std::lock_guard lock(mutex_);
    return failures_.size() >= 3;
  };
  while (!refused() && Waiter::Clock::now() < end) std::this_thread::yield();
  ASSERT_TRUE(refused());
  EXPECT_TRUE(Prepare(0, AllReduce(group, "another", 64)).ok());
  EXPECT_TRUE(waits.get().ok());
}

// Groups whose launches the clients make, with the count of each rank's launches on its page.
class ClientSlipTest : public SlipTest {
 protected:
  // An ordered group, and a plan of it.
  void BeginOrdered() {
    ControlOptions options;
    options.placement = plan::PlanPlacement::kClient;
    Start(kWorld, options);
    sessions = AttachAll(kWorld);
    group = JoinAs("slips", [](int, v1::JoinGroupRequest* request) {
      request->set_renews_engines(true);
      (*request->mutable_options())["order"] = "same";
    });
    plan = PlanAll("sum");
  }
  // Rank 1's prepare of a plan that rank 0 does not ask for.
  Status PrepareAlone(uint64_t next_launch, milliseconds wait_budget) {
    v1::PrepareRequest request = AllReduce(group, "another", 64);
    request.set_next_client_launch(next_launch);
    return control->Prepare(sessions[1], request, Waiter::For(wait_budget)).status();
  }

  uint64_t plan = 0;
};

TEST_F(ClientSlipTest, APrepareBesideALaunchThatItsRankHasNotMadeFails) {
  BeginOrdered();
  VerdictPage page = PageOf(0);
  const uint64_t other = PlanAll("other", 32);
  page.SetLaunched(1, other);
  page.SetLaunched(2, plan);
  page.SetLaunched(3, other);  // behind it on the stream
  const Status reported = PrepareAlone(2, kWaitBudget);
  EXPECT_EQ(reported.detail().reason, "FIELD_MISMATCH") << reported.ToString();
  EXPECT_THAT(reported.detail().ranks, ElementsAre(1));
  EXPECT_NE(reported.detail().pid, 0);
  EXPECT_THAT(reported.message(),
              HasSubstr("rank 1 prepares 'another' while rank 0 waits in launch 2 of 'sum'"));
  // The launches under way hear the same.
  EXPECT_TRUE(page.Aborts(2));
  EXPECT_EQ(page.Reason().detail().reason, "FIELD_MISMATCH");
}

TEST_F(ClientSlipTest, ALaunchOfAnUnknownPlanIsNamedWithoutAField) {
  BeginOrdered();
  PageOf(0).SetLaunched(1, 0);
  const Status reported = PrepareAlone(1, kWaitBudget);
  EXPECT_EQ(reported.detail().reason, "DESYNC") << reported.ToString();
  EXPECT_THAT(reported.message(), HasSubstr("rank 0 waits in launch 1"));
}

TEST_F(ClientSlipTest, APrepareWaitsBesideLaunchesThatAllHaveMadeOrNobodyCounts) {
  BeginOrdered();
  constexpr milliseconds kSeveralLooks{500};
  VerdictPage page = PageOf(0), own = PageOf(1);
  page.SetLaunched(1, plan);
  EXPECT_EQ(PrepareAlone(2, kSeveralLooks).detail().reason, "RANK_LATE") << "all have made it";
  EXPECT_EQ(PrepareAlone(0, kSeveralLooks).detail().reason, "RANK_LATE") << "rank 1 does not know";
  own.SetLaunched(1, plan);
  EXPECT_EQ(PrepareAlone(1, kSeveralLooks).detail().reason, "RANK_LATE")
      << "another thread has made it meanwhile";
  page.SetLaunched(0, 0);
  EXPECT_EQ(PrepareAlone(1, kSeveralLooks).detail().reason, "RANK_LATE") << "rank 0 does not know";
  EXPECT_FALSE(page.Aborts(1));
}

TEST_F(ClientSlipTest, AVerdictSaysWhatTheLateRankPrepares) {
  BeginOrdered();
  std::atomic<bool> waits = false;
  Waiter waiter = Waiter::For(kWaitBudget);
  waiter.cancelled = [&] {
    waits = true;
    return false;
  };
  auto prepare = std::async(std::launch::async, [&] {
    return control->Prepare(sessions[1], AllReduce(group, "another", 64), waiter).status();
  });
  ASSERT_TRUE(Eventually([&] { return waits.load(); }));
  EXPECT_TRUE(Report(0, 5, 1, DeadlineExceeded("it waited for rank 1"), plan).ok());
  const Status reason = PageOf(0).Reason();
  EXPECT_EQ(reason.detail().reason, "RANK_LATE");
  EXPECT_THAT(reason.message(), HasSubstr("rank 1 had not arrived; it prepares 'another'"));
  EXPECT_TRUE(Prepare(0, AllReduce(group, "another", 64)).ok());
  EXPECT_TRUE(prepare.get().ok());
}

}  // namespace
}  // namespace tandem::daemon
