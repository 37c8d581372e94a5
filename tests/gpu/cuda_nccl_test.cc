// NCCL through the backend. Bad ids are refused. A call whose peer never arrives, and a communicator whose
// peer never joins, end by an abort. The cost of a grouped call for its thread is compared: on the
// communicator that does not block, and on the child that does (nccl.blocking).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/cuda/collectives/nccl_communicator.h"
#include "kernels/cuda/cuda_backend.h"
#include "program/program.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kLong(20);

bool DoneWithin(const Event& event, std::chrono::milliseconds limit) {
  auto deadline = Clock::now() + limit;
  while (!event.Done()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

// Two ranks on two GPUs, each with a communicator, a lane, memory and an event.
class TwoRanks {
 public:
  explicit TwoRanks(const char* blocking) {
    options_.world_size = 2;
    options_.unique_id = *MakeNcclUniqueId();
    options_.config["nccl.blocking"] = blocking;
  }
  void Join(int rank) {
    Rank& of = ranks_[rank];
    of.backend = std::move(*MakeCudaBackend({.device = rank}));
    options_.rank = rank;
    auto communicator = of.backend->MakeCommunicator(options_);
    ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
    of.communicator = std::move(*communicator);
    size_t bytes = of.backend->SegmentGranularity();
    auto fd = of.backend->AllocateSegment(bytes);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    of.segment = std::move(*of.backend->MapSegment(fd->get(), bytes));
    of.lane = std::move(*of.backend->MakeLane(0));
    of.event = std::move(*of.backend->MakeEvent());
  }
  // As engines wait for it: by asking, so that no launch waits for the peer.
  bool AwaitReady() {
    auto deadline = Clock::now() + kLong;
    while (Clock::now() < deadline) {
      auto first = ranks_[0].communicator->Ready(), second = ranks_[1].communicator->Ready();
      if (!first.ok() || !second.ok()) return false;
      if (*first && *second) return true;
      std::this_thread::yield();
    }
    return false;
  }
  Status Call(int rank, plan::NcclKind kind) {
    NcclArgs args;
    args.kind = kind;
    args.in = args.out = {ranks_[rank].segment->data(), DType::kF32, {1000}, {1}};
    if (kind == plan::NcclKind::kAllToAll) args.out.data += 8192;
    args.communicator = ranks_[rank].communicator.get();
    return ranks_[rank].lane->Nccl(args);
  }
  Status Enqueue(int rank, plan::NcclKind kind = plan::NcclKind::kAllReduce) {
    Status status = Call(rank, kind);
    return status.ok() ? ranks_[rank].lane->Record(ranks_[rank].event.get()) : status;
  }
  // Each rank on a separate thread, as in engines.
  void Together(const std::function<Status(int)>& what) {
    auto peer = std::async(std::launch::async, [&] { return what(1); });
    Status status = what(0);
    Status peer_status = peer.get();
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_TRUE(peer_status.ok()) << peer_status.ToString();
    ASSERT_TRUE(DoneWithin(*ranks_[0].event, kLong));
    ASSERT_TRUE(DoneWithin(*ranks_[1].event, kLong));
  }
  Event& event(int rank) { return *ranks_[rank].event; }
  Communicator& communicator(int rank) { return *ranks_[rank].communicator; }

 private:
  struct Rank {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<Communicator> communicator;
    std::unique_ptr<Segment> segment;
    std::unique_ptr<Lane> lane;
    std::unique_ptr<Event> event;
  };
  CommunicatorOptions options_;
  Rank ranks_[2];
};

TEST(CudaNcclTest, BadOptionsAreRefused) {
  auto backend = MakeCudaBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  CommunicatorOptions options;
  options.unique_id = "short";
  EXPECT_EQ((*backend)->MakeCommunicator(options).status().code(), Code::kInvalidArgument);
  options.unique_id = *MakeNcclUniqueId();
  options.rank = 1;
  EXPECT_EQ((*backend)->MakeCommunicator(options).status().code(), Code::kInvalidArgument);
}

// The parameter is nccl.blocking.
class CudaNcclAbortTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs";
  }
};

TEST_P(CudaNcclAbortTest, EndsACollectiveWhosePeerNeverComes) {
  TwoRanks ranks(GetParam());
  for (int rank : {0, 1}) ASSERT_NO_FATAL_FAILURE(ranks.Join(rank));
  // Once together, then rank 0 alone.
  ASSERT_NO_FATAL_FAILURE(ranks.Together([&](int rank) { return ranks.Enqueue(rank); }));
  Status status = ranks.Enqueue(0);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(DoneWithin(ranks.event(0), std::chrono::milliseconds(200)));
  auto begun = Clock::now();
  ranks.communicator(0).Abort();
  EXPECT_TRUE(DoneWithin(ranks.event(0), kLong));
  std::printf("MEASURED nccl.blocking %s: abort to the stream's end %.1f ms\n", GetParam(),
              std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
  EXPECT_EQ(ranks.Enqueue(0).code(), Code::kAborted);
}

// The first call of a communicator connects: with a peer that is silent it blocks inside NCCL, or on its
// thread.
TEST_P(CudaNcclAbortTest, EndsTheFirstCallWhosePeerNeverMakesIts) {
  TwoRanks ranks(GetParam());
  for (int rank : {0, 1}) ASSERT_NO_FATAL_FAILURE(ranks.Join(rank));
  ASSERT_TRUE(ranks.AwaitReady());
  auto call = std::async(std::launch::async, [&] { return ranks.Enqueue(0); });
  call.wait_for(std::chrono::milliseconds(300));  // into NCCL; earlier is right too
  ranks.communicator(0).Abort();
  ASSERT_EQ(call.wait_for(kLong), std::future_status::ready) << "the call does not end";
  // A call that had been enqueued before the abort ends on the stream.
  if (Status status = call.get(); status.ok()) {
    EXPECT_TRUE(DoneWithin(ranks.event(0), kLong));
  } else {
    EXPECT_EQ(status.code(), Code::kAborted) << status.ToString();
  }
  EXPECT_EQ(ranks.Enqueue(0).code(), Code::kAborted);
}

TEST_P(CudaNcclAbortTest, EndsACommunicatorWhosePeerNeverJoins) {
  TwoRanks ranks(GetParam());
  ASSERT_NO_FATAL_FAILURE(ranks.Join(0));
  auto ready = ranks.communicator(0).Ready();
  ASSERT_TRUE(ready.ok()) << ready.status().ToString();
  EXPECT_FALSE(*ready);
  auto call = std::async(std::launch::async, [&] { return ranks.Enqueue(0); });
  call.wait_for(std::chrono::milliseconds(300));
  ranks.communicator(0).Abort();
  ASSERT_EQ(call.wait_for(kLong), std::future_status::ready) << "the call does not end";
  EXPECT_EQ(call.get().code(), Code::kAborted);
  EXPECT_EQ(ranks.communicator(0).Ready().status().code(), Code::kAborted);
}

INSTANTIATE_TEST_SUITE_P(Blocking, CudaNcclAbortTest, testing::Values("0", "1"),
                         [](const auto& info) { return info.param[0] == '1' ? "Child" : "Parent"; });

// The median microseconds that rank 0's thread spends in a call, warm; the calls are too few to fill a
// stream.
double MicrosecondsOfACall(const char* blocking, plan::NcclKind kind) {
  constexpr int kWarm = 20, kCalls = 200;
  TwoRanks ranks(blocking);
  for (int rank : {0, 1}) ranks.Join(rank);
  if (testing::Test::HasFatalFailure() || !ranks.AwaitReady()) return 0;
  std::vector<double> took[2];
  ranks.Together([&](int rank) {
    for (int i = 0; i < kWarm + kCalls; ++i) {
      auto begun = Clock::now();
      Status status = ranks.Call(rank, kind);
      if (!status.ok()) return status;
      if (i >= kWarm)
        took[rank].push_back(std::chrono::duration<double, std::micro>(Clock::now() - begun).count());
    }
    return ranks.Enqueue(rank, kind);
  });
  if (took[0].size() != kCalls) return 0;
  std::nth_element(took[0].begin(), took[0].begin() + kCalls / 2, took[0].end());
  return took[0][kCalls / 2];
}

// The purpose of nccl.blocking. Without it NCCL makes a thread for each call.
TEST(CudaNcclTest, ACallOfTheChildCostsLessThanOneOfTheParent) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs";
  for (auto [kind, name] :
       {std::pair{plan::NcclKind::kAllReduce, "all_reduce"}, {plan::NcclKind::kAllToAll, "all_to_all"}}) {
    double parent = MicrosecondsOfACall("0", kind), child = MicrosecondsOfACall("1", kind);
    std::printf("MEASURED %s, us a call: nccl.blocking 0 %.1f, nccl.blocking 1 %.1f\n", name, parent, child);
    ASSERT_GT(parent, 0);
    ASSERT_GT(child, 0);
    EXPECT_LT(child, parent);
  }
}

}  // namespace

// How many aborts are under way when the last test is over, and how long until there is none.
void AwaitAborts() {
  const int left = cuda::NcclCommunicator::AbortsUnderWay();
  const auto begun = Clock::now();
  while (cuda::NcclCommunicator::AbortsUnderWay() != 0 && Clock::now() - begun < kLong) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::printf("MEASURED after the last test: %d aborts under way, %d of them after %.0f ms\n", left,
              cuda::NcclCommunicator::AbortsUnderWay(),
              std::chrono::duration<double, std::milli>(Clock::now() - begun).count());
}

}  // namespace tandem

// Ends as tandem-engine does, by _Exit. An abort may outlive its communicator, on a thread inside NCCL, and
// NCCL has threads that serve proxies for peers in this process. exit() would remove the CUDA driver's and
// NCCL's state while these threads use it. The process died so by SIGSEGV, with every test passed: see NCCL's
// issue 1013.
int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  tandem::AwaitAborts();
  std::fflush(nullptr);
  std::_Exit(failed);
}
