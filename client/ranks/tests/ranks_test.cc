// Requests as JSON, and the line to a child process.
#include <gtest/gtest.h>
#include <signal.h>

#include "client/ranks/job_key.h"
#include "client/ranks/request_json.h"
#include "client/ranks/worker_process.h"

namespace tandem {
namespace {

constexpr int kWaitBudgetMs = 60000;

TEST(RequestJson, GivesTheRequestBack) {
  OpRequest request;
  request.op = Op::kMatmulReduceScatter;
  request.operands = {{Role::kA, {DType::kF8E4M3, {8, 4}, {4, 1}}, true, -1},
                      {Role::kB, {DType::kF8E5M2, {4, 16}, {}}, false, -1},
                      {Role::kC, {DType::kBf16, {4, 16}, {}}, false, 0}};
  request.dim = -1;
  request.reduce_op = ReduceOp::kAvg;
  request.root = 1;
  request.wire = WireType::kF32;
  request.fast_accumulation = false;
  request.low_contention = true;
  request.chunk_pivot = 3;
  request.transfers = {{false, 1, 2}};
  request.algorithm = Algorithm::kRing;
  request.steps = 4;
  request.lanes = 2;
  request.on_unfused = OnUnfused::kError;
  request.determinism = Determinism::kBatch;
  request.rounding = Rounding::kModel;
  request.restartable = true;
  request.placement = PlanPlacement::kClient;
  request.autotune = true;
  Result<OpRequest> back = RequestFromJson(nlohmann::json::parse(RequestToJson(request).dump()));
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_EQ(*back, request);
  EXPECT_EQ(*RequestFromJson(RequestToJson(OpRequest{})), OpRequest{});
  EXPECT_FALSE(RequestFromJson({{"op", "all_deduce"}}).ok());
}

TEST(JobKey, IsDrawnAnewEachTime) {
  auto first = RandomJobKey(), second = RandomJobKey();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->size(), 32u);
  EXPECT_EQ(first->find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(*first, *second);
}

TEST(WorkerProcess, CarriesLinesBothWaysAndTellsTheEnd) {
  auto worker = WorkerProcess::Start("/bin/sh", {"sh", "-c", "read line <&3; echo \"$line\" >&4; exit 7"});
  ASSERT_TRUE(worker.ok()) << worker.status().ToString();
  EXPECT_TRUE((*worker)->Tell({{"case", 5}}));
  auto heard = (*worker)->Hear(kWaitBudgetMs);
  ASSERT_TRUE(heard.ok()) << heard.status().ToString();
  EXPECT_EQ((*heard)["case"], 5);
  const Status end = (*worker)->Hear(kWaitBudgetMs).status();
  EXPECT_EQ(end.code(), Code::kUnavailable);
  EXPECT_EQ(end.message(), "ended with 7");
}

TEST(WorkerProcess, ASilentOneIsLateAndAKilledOneIsNamed) {
  auto worker = WorkerProcess::Start("/bin/sh", {"sh", "-c", "read line <&3"});
  ASSERT_TRUE(worker.ok());
  EXPECT_EQ((*worker)->Hear(10).status().code(), Code::kDeadlineExceeded);
  (*worker)->Kill();
  EXPECT_EQ((*worker)->Hear(kWaitBudgetMs).status().message(), "was ended by signal 9");
  EXPECT_FALSE(WorkerProcess::Start("/no/such/program", {"x"}).ok());
}

TEST(WorkerProcess, ThoseThatDoNotQuitAreKilled) {
  std::vector<std::unique_ptr<WorkerProcess>> workers;
  for (const char* script :
       {"read line <&3; echo \"$line\" >&4", "read line <&3; while :; do read line <&3 || sleep 1; done"}) {
    auto worker = WorkerProcess::Start("/bin/sh", {"sh", "-c", script});
    ASSERT_TRUE(worker.ok());
    workers.push_back(*std::move(worker));
  }
  const pid_t stubborn = workers[1]->pid();
  QuitWorkers(&workers, 100);
  EXPECT_TRUE(workers.empty());
  EXPECT_EQ(::kill(stubborn, 0), -1) << "killed and reaped";
}

}  // namespace
}  // namespace tandem
