// Client-placed launches with local work around their kernel (docs/client-placement.md): products by cuBLASLt
// before a reduction and behind a gather, with sums and copies, eager and in graphs, compared with a plain
// reference. Ranks share one process, and GPUs where there are fewer.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/gpu/client_product_ranks.h"
#include "tests/gpu/cuda_machine.h"

namespace tandem::runtime {
namespace {

using cuda::AbortReason;

TestMachine& Machine() {
  static TestMachine* machine = [] {
    // Ranks wait for one another: their streams need hardware queues of their own.
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return MakeCudaMachine(4, size_t{128} << 20).release();
  }();
  return *machine;
}

constexpr Op kScatter = Op::kMatmulReduceScatter, kReduce = Op::kMatmulAllReduce,
             kGather = Op::kAllGatherMatmul;
constexpr Algorithm kUnfused = Algorithm::kUnfused, kLowLatency = Algorithm::kLowLatency,
                    kFused = Algorithm::kFused;
constexpr DType kBf16 = DType::kBf16, kF16 = DType::kF16, kF32 = DType::kF32;

std::vector<ProductCase> CasesOf(int w) {
  return {
      {kScatter, kLowLatency, w, 48, 256, 512},
      {kScatter, kUnfused, w, 160, 512, 256},
      {kScatter, kUnfused, w, 1024, 1024, 64},
      {kScatter, kUnfused, w, 48, 256, 128, 1, kF16, kF16},
      {kScatter, kUnfused, w, 48, 256, 128, 0, kBf16, kBf16, true},
      {kScatter, kLowLatency, w, 16, 72, 64, 0, kBf16, kF32, true},
      {kScatter, kUnfused, w, 64, 128, 128, 0, kF32, kF32, false, false, false},
      {kReduce, kLowLatency, w, 33, 256, 512},
      {kReduce, kUnfused, w, 154, 512, 256},
      {kReduce, kUnfused, w, 1024, 1024, 64},
      {kReduce, kUnfused, w, 20, 96, 64, 0, kF16, kF32, true},
      {kGather, kLowLatency, w, 48, 256, 512},
      {kGather, kLowLatency, w, 64, 128, 96, 0, kBf16, kBf16, true, true},
      {kGather, kUnfused, w, 1024, 256, 512},
      {kGather, kUnfused, w, 2048, 64, 512, 0, kF16, kF16, false, true},
      {kGather, kUnfused, w, 40, 72, 256, 1, kBf16, kBf16, true},
      {kGather, kUnfused, w, 512, 64, 1024, 0, kF32, kF32, false, false, false},
  };
}

std::vector<ProductCase> FusedCasesOf(int w) {
  return {
      {kScatter, kFused, w, 2048, 264, 64},
      {kScatter, kFused, w, 2048, 512, 72, 0, kBf16, kBf16, true, false, false},
      {kScatter, kFused, w, 1536, 256, 256, 0, kF16, kF32},
      {kReduce, kFused, w, 2048, 264, 64},
      {kReduce, kFused, w, 1544, 512, 72, 0, kBf16, kBf16, true},
      {kGather, kFused, w, 2048, 264, 64},
      {kGather, kFused, w, 1536, 256, 256, 0, kF16, kF16, true, true, false},
  };
}

bool HasFusedKernel(const plan::OperationPlan& plan) {
  for (const plan::Step& step : plan.programs[0].steps) {
    const auto* collective = std::get_if<plan::CollectiveStep>(&step.work);
    if (collective != nullptr && plan::IsFusedKernel(*collective)) return true;
  }
  return false;
}

// The same launches again and again: what one leaves in the bulk area, the next one writes over.
void LaunchEagerly(const ProductCase& test) {
  SCOPED_TRACE(test.name());
  ClientProductRanks ranks(&Machine(), test);
  ASSERT_TRUE(ranks.status().ok()) << ranks.status().ToString();
  EXPECT_EQ(HasFusedKernel(ranks.plan()), test.algorithm == kFused);
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    ranks.SpoilOutputs();
    for (int set = 0; set < ClientProductRanks::kSets; ++set) {
      for (int rank = 0; rank < test.world; ++rank) {
        const Status launched = ranks.Launch(rank, set);
        ASSERT_TRUE(launched.ok()) << launched.ToString();
      }
    }
    ASSERT_TRUE(ranks.Finish()) << plan::ListProgram(ranks.plan().programs[0]);
    ASSERT_EQ(ranks.Compare(), "") << "round " << round << "\n"
                                   << plan::ListProgram(ranks.plan().programs[0]);
  }
  for (int rank = 0; rank < test.world; ++rank) {
    EXPECT_EQ(ranks.Count(rank), kRounds * ClientProductRanks::kSets);
    EXPECT_EQ(ranks.Report(rank).kind, 0u);
  }
}

// A graph of three launches on each rank, replayed, between eager launches.
void LaunchInGraphs(const ProductCase& test) {
  SCOPED_TRACE(test.name());
  ClientProductRanks ranks(&Machine(), test);
  ASSERT_TRUE(ranks.status().ok()) << ranks.status().ToString();
  std::vector<cudaGraphExec_t> graphs;
  for (int rank = 0; rank < test.world; ++rank) {
    ranks.Enter(rank);
    cudaStream_t stream = ranks.stream(rank);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int set = 0; set < ClientProductRanks::kSets; ++set) {
      const Status launched = ranks.Launch(rank, set);
      EXPECT_TRUE(launched.ok()) << launched.ToString();
    }
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    graphs.emplace_back();
    ASSERT_EQ(cudaGraphInstantiate(&graphs.back(), graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphUpload(graphs.back(), stream), cudaSuccess);
    (void)cudaGraphDestroy(graph);
  }
  ASSERT_TRUE(ranks.Finish());
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    ranks.SpoilOutputs();
    for (int rank = 0; rank < test.world; ++rank) {
      const Status launched = ranks.Launch(rank, round % ClientProductRanks::kSets);
      ASSERT_TRUE(launched.ok()) << launched.ToString();
      ASSERT_EQ(cudaGraphLaunch(graphs[static_cast<size_t>(rank)], ranks.stream(rank)), cudaSuccess);
    }
    ASSERT_TRUE(ranks.Finish());
    ASSERT_EQ(ranks.Compare(), "") << "round " << round;
  }
  for (int rank = 0; rank < test.world; ++rank)
    EXPECT_EQ(ranks.Count(rank), kRounds * (ClientProductRanks::kSets + 1));
  for (cudaGraphExec_t graph : graphs) (void)cudaGraphExecDestroy(graph);
}

class CudaClientProductTest : public testing::TestWithParam<int> {};

TEST_P(CudaClientProductTest, EagerLaunchesAreRight) {
  for (const ProductCase& test : CasesOf(GetParam())) LaunchEagerly(test);
}

TEST_P(CudaClientProductTest, ReplayedLaunchesAreRight) {
  for (const ProductCase& test : CasesOf(GetParam())) LaunchInGraphs(test);
}

TEST_P(CudaClientProductTest, EagerFusedLaunchesAreRight) {
  for (const ProductCase& test : FusedCasesOf(GetParam())) LaunchEagerly(test);
}

TEST_P(CudaClientProductTest, ReplayedFusedLaunchesAreRight) {
  for (const ProductCase& test : FusedCasesOf(GetParam())) LaunchInGraphs(test);
}

void Abort(const ProductCase& test) {
  SCOPED_TRACE(test.name());
  ClientProductRanks ranks(&Machine(), test);
  ASSERT_TRUE(ranks.status().ok()) << ranks.status().ToString();
  for (int rank = 0; rank < test.world; ++rank) ASSERT_TRUE(ranks.Launch(rank, 0).ok());
  ASSERT_TRUE(ranks.Finish());
  ranks.SetLimit(100'000'000);
  for (int set = 0; set < ClientProductRanks::kSets; ++set) ASSERT_TRUE(ranks.Launch(0, set).ok());
  ASSERT_TRUE(ranks.Finish(5));
  const cuda::LaunchReport report = ranks.Report(0);
  EXPECT_EQ(static_cast<AbortReason>(report.kind), AbortReason::kLate);
  EXPECT_EQ(report.number, 2u);
  EXPECT_EQ(ranks.Count(0), 1);
}

// A peer that does not come: the kernel gives up, the work around it and the launches behind it end.
TEST_P(CudaClientProductTest, ALaunchThatGivesUpHoldsNothing) {
  for (const Op op : {kScatter, kReduce, kGather}) {
    for (const Algorithm algorithm : {kUnfused, kLowLatency})
      Abort({op, algorithm, GetParam(), 64, 256, 128});
  }
  // By one kernel with its sum, and by one behind it.
  for (const int64_t n : {256, 260}) {
    ProductCase test{kReduce, kLowLatency, GetParam(), 64, n, 128};
    test.norm = true;
    Abort(test);
  }
}

// Peers that do not come to the handshake: nothing is multiplied or sent, and the launches behind end.
TEST_P(CudaClientProductTest, AFusedLaunchThatMeetsNobodySendsNothing) {
  for (const Op op : {kScatter, kReduce, kGather}) {
    const ProductCase test{op, kFused, GetParam(), 2048, 256, 64};
    SCOPED_TRACE(test.name());
    ClientProductRanks ranks(&Machine(), test);
    ASSERT_TRUE(ranks.status().ok()) << ranks.status().ToString();
    ranks.SetLimit(100'000'000);
    for (int set = 0; set < ClientProductRanks::kSets; ++set) ASSERT_TRUE(ranks.Launch(0, set).ok());
    ASSERT_TRUE(ranks.Finish(5));
    EXPECT_EQ(static_cast<AbortReason>(ranks.Report(0).kind), AbortReason::kLate);
    EXPECT_EQ(ranks.Report(0).number, 1u);
    EXPECT_EQ(ranks.Count(0), 0);
    for (int peer = 1; peer < test.world; ++peer) {
      for (int index = 0; index < plan::kSignalsPerWriter; ++index)
        ASSERT_EQ(ranks.FusedWord(peer, 0, index), 0u) << "peer " << peer << " word " << index;
    }
  }
}

// Peers that meet and then compute nothing: the kernel gives up in its sums, and announces no sum.
TEST_P(CudaClientProductTest, AFusedKernelThatGivesUpTellsNobody) {
  const ProductCase test{kReduce, kFused, GetParam(), 2048, 256, 64};
  ClientProductRanks ranks(&Machine(), test);
  ASSERT_TRUE(ranks.status().ok()) << ranks.status().ToString();
  for (int rank = 0; rank < test.world; ++rank) ASSERT_TRUE(ranks.Launch(rank, 0).ok());
  ASSERT_TRUE(ranks.Finish());
  ASSERT_EQ(ranks.Report(0).kind, 0u);
  const int words = ranks.plan().programs[0].signal_count;
  int reported = 0;  // words that rank 0 writes when all goes well
  for (int index = 0; index < words; ++index) reported += ranks.FusedWord(1, 0, index) != 0 ? 1 : 0;
  ASSERT_GE(reported, 2) << "a part, and a sum";

  ranks.SetLimit(100'000'000);
  for (int rank = 1; rank < test.world; ++rank)
    ASSERT_TRUE(ranks.Launch(rank, 1, ClientProductRanks::Part::kMeeting).ok());
  ASSERT_TRUE(ranks.Launch(0, 1).ok());
  ASSERT_TRUE(ranks.Finish(5));
  const cuda::LaunchReport report = ranks.Report(0);
  EXPECT_EQ(static_cast<AbortReason>(report.kind), AbortReason::kLate);
  EXPECT_EQ(report.number, 2u);
  EXPECT_GT(report.peer, 0u);
  int left = 0;
  for (int index = 0; index < words; ++index) left += ranks.FusedWord(1, 0, index) != 0 ? 1 : 0;
  EXPECT_LT(left, reported);  // its part may have gone, its sum has not
  // Whatever is queued behind ends, and counts nothing.
  ASSERT_TRUE(ranks.Launch(0, 2).ok());
  ASSERT_TRUE(ranks.Finish(5));
  EXPECT_EQ(ranks.Count(0), 2);
}

INSTANTIATE_TEST_SUITE_P(Worlds, CudaClientProductTest, testing::Values(2, 4));

}  // namespace
}  // namespace tandem::runtime
