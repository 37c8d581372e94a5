// Collectives as one kernel a rank: every operation, type, size and place against a reference, bit by bit.
// Words and packets run under random delays, and end by abort. Planted faults show that these tests can fail.
// Worlds of up to eight ranks: more ranks than GPUs share them, with so few blocks that all fit together.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "common/op_tables.h"
#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/collective_cases.h"
#include "tests/gpu/collective_test_hooks.h"
#include "tests/gpu/cuda_machine.h"
#include "tests/gpu/kernel_group.h"

namespace tandem::runtime {
namespace {

// One block of the widest kernel fills an SM.
constexpr int kBlocksPerGpu = 120;

TestMachine& Machine() {
  static TestMachine* machine = MakeCudaMachine(plan::kMaxWorldSize, size_t{128} << 20).release();
  return *machine;
}

plan::GroupContext Context(int world, bool cube_mesh = false) {
  plan::GroupContext context;
  context.topology = EmulatedTopology(world);
  context.packet_kernels = true;
  for (int i = 0; cube_mesh && i < world; ++i) {
    context.topology.gpus[static_cast<size_t>(i)].switch_links = 0;
    context.topology.gpus[static_cast<size_t>(i)].fabric_state = "none";
    for (int j = 0; j < world; ++j) {
      const bool same_quad = i / 4 == j / 4 && i != j;
      context.topology.nvlinks[static_cast<size_t>(i)][static_cast<size_t>(j)] =
          same_quad || i == (j ^ 4) ? 1 : 0;
    }
  }
  return context;
}

int MostBlocks(int world) {
  const int gpus = CudaDeviceCount();
  return kBlocksPerGpu / ((world + gpus - 1) / gpus);
}

int cases_run = 0;

// Three launches back to back, on operands of their own.
void Check(const CollectiveCase& test, int world) {
  SCOPED_TRACE(Name(test, world));
  constexpr int kLaunches = 3;
  KernelGroup group(&Machine(), Requests(test, world),
                    {.max_blocks = MostBlocks(world), .launches = kLaunches, .shift = test.shift},
                    Context(world, test.cube_mesh));
  ASSERT_TRUE(group.status().ok()) << group.status().ToString();
  std::mt19937 random(static_cast<uint32_t>(world) + static_cast<uint32_t>(test.piece[0]));
  std::vector<Buffers> expected;
  for (int launch = 0; launch < kLaunches; ++launch) {
    Buffers in;
    for (int rank = 0; rank < world; ++rank) {
      const TensorSpec spec = Requests(test, world)[0].operands[0].spec;
      in.push_back(RandomElements(test.dtype, static_cast<size_t>(*SpanBytes(spec)), &random, launch == 1));
      SetInput(test, &group, rank, launch, in.back());
    }
    expected.push_back(Expected(test, std::move(in), group));
  }
  for (int launch = 0; launch < kLaunches; ++launch) {
    for (int rank = 0; rank < world; ++rank) {
      Status status = group.Launch(rank, static_cast<uint64_t>(launch) + 1, launch);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
  }
  ASSERT_TRUE(group.Finish()) << "blocked";
  for (int launch = 0; launch < kLaunches; ++launch) {
    std::vector<std::byte> first;
    for (int rank = 0; rank < world; ++rank) {
      const auto& want = expected[static_cast<size_t>(launch)][static_cast<size_t>(rank)];
      if (want.empty()) continue;
      std::vector<std::byte> got = GetOutput(test, &group, rank, launch);
      ASSERT_TRUE(Same(got, want, test.dtype)) << "launch " << launch << " rank " << rank;
      if (test.op != Op::kAllReduce) continue;
      if (rank == 0) first = got;
      ASSERT_EQ(got, first) << "rank " << rank << " has other bits than rank 0";
    }
  }
  EXPECT_TRUE(group.GuardsIntact());
  ++cases_run;
}

std::vector<int> Worlds() { return {2, 3, 4, 8}; }

TEST(CudaCollectiveTest, AllReducesOfEveryTypeAndSize) {
  for (int world : Worlds()) {
    for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot}) {
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32,
                          DType::kI64, DType::kU8}) {
        CollectiveCase test{.algorithm = algorithm, .dtype = dtype, .piece = {4099}};
        Check(test, world);
        if (HasFatalFailure()) return;
      }
      for (int64_t count :
           {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{257}, int64_t{65536}, int64_t{300001}}) {
        for (bool in_place : {false, true}) {
          for (int shift : {0, 1}) {
            CollectiveCase test{
                .algorithm = algorithm, .piece = {count}, .in_place = in_place, .shift = shift};
            test.symmetric = count == 257 || count == 65536;
            if (shift == 1) test.reduce_op = ReduceOp::kAvg;
            Check(test, world);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
  RecordProperty("cases", cases_run);
}

TEST(CudaCollectiveTest, ReductionsThatAreNoSums) {
  for (int world : Worlds()) {
    for (const auto& [reduce_op, name] : kNamedValues<ReduceOp>) {
      if (reduce_op == ReduceOp::kSum || reduce_op == ReduceOp::kAvg) continue;
      for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32,
                          DType::kI64, DType::kU8}) {
        if (IsFloating(dtype) && IsBitwise(reduce_op)) continue;
        for (Op op : {Op::kAllReduce, Op::kReduceScatter, Op::kReduce}) {
          for (int shift : {0, 1}) {
            CollectiveCase test{.op = op, .dtype = dtype, .piece = {1003}, .shift = shift};
            test.algorithm = op == Op::kAllReduce ? Algorithm::kTwoShot : Algorithm::kSm;
            if (op == Op::kAllReduce && shift == 1) test.algorithm = Algorithm::kOneShot;
            test.reduce_op = reduce_op;
            Check(test, world);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaCollectiveTest, LowLatencyOfEveryTypeAndSize) {
  for (int world : Worlds()) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBf16, DType::kF8E4M3, DType::kF8E5M2, DType::kI32,
                        DType::kI64, DType::kU8}) {
      for (int64_t count : {int64_t{1}, int64_t{8}, int64_t{1003}, int64_t{16384}}) {
        for (int shift : {0, 1}) {
          CollectiveCase test{
              .algorithm = Algorithm::kLowLatency, .dtype = dtype, .piece = {count}, .shift = shift};
          test.in_place = count == 1003;
          if (count == 16384 && DTypeBytes(dtype) > 4) continue;
          Check(test, world);
          if (HasFatalFailure()) return;
          if (count > 4000) continue;
          for (Op op : {Op::kAllGather, Op::kReduceScatter}) {
            test.op = op;
            Check(test, world);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST(CudaCollectiveTest, ExchangesOfEveryShape) {
  for (int world : Worlds()) {
    for (Op op : {Op::kAllGather, Op::kReduceScatter, Op::kAllToAll, Op::kBroadcast, Op::kReduce}) {
      for (const std::vector<int64_t>& piece :
           {std::vector<int64_t>{5}, std::vector<int64_t>{33, 24}, std::vector<int64_t>{64, 1024}}) {
        for (int dim = 0; dim < static_cast<int>(piece.size()); ++dim) {
          if (dim > 0 && (op == Op::kBroadcast || op == Op::kReduce)) continue;
          for (bool symmetric : {false, true}) {
            for (int shift : {0, 1}) {
              CollectiveCase test{.op = op, .algorithm = Algorithm::kSm, .piece = piece, .dim = dim};
              test.dtype = shift == 1 ? DType::kF32 : DType::kBf16;
              test.symmetric = symmetric;
              test.shift = shift;
              Check(test, world);
              if (HasFatalFailure()) return;
              if (op != Op::kAllGather && op != Op::kReduceScatter) continue;
              test.in_place = true;
              Check(test, world);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

TEST(CudaCollectiveTest, HybridCubeMeshOfEveryType) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kI32}) {
    for (int64_t count : {int64_t{1}, int64_t{4099}, int64_t{65536}}) {
      // Values whose sums are exact in any order: the mesh adds quads, the reference ranks.
      CollectiveCase test{
          .algorithm = Algorithm::kHybridCubeMesh, .dtype = dtype, .piece = {count}, .cube_mesh = true};
      KernelGroup group(&Machine(), Requests(test, 8), {.max_blocks = MostBlocks(8)}, Context(8, true));
      ASSERT_TRUE(group.status().ok()) << group.status().ToString();
      Buffers in;
      std::mt19937 random(static_cast<uint32_t>(count));
      for (int rank = 0; rank < 8; ++rank) {
        in.emplace_back(static_cast<size_t>(count) * DTypeBytes(dtype));
        for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
          const int value = static_cast<int>(random() % 64) - 32;
          if (IsFloating(dtype)) {
            StoreFromFloat(in.back().data(), dtype, i, static_cast<float>(value));
          } else {
            std::memcpy(in.back().data() + i * 4, &value, 4);
          }
        }
        group.Set(rank, 0, 0, in.back());
      }
      for (int rank = 0; rank < 8; ++rank) ASSERT_TRUE(group.Launch(rank, 1, 0).ok());
      ASSERT_TRUE(group.Finish()) << "blocked";
      const std::vector<std::byte> expected = Sum(in, dtype, 1.0f);
      for (int rank = 0; rank < 8; ++rank) EXPECT_TRUE(Same(group.Get(rank, 1, 0), expected, dtype));
    }
  }
}

// Elements that differ after `launches` launches under random delays, with data that is new in each; -1:
// blocked, until an abort.
int64_t ErrorsUnderDelays(Algorithm algorithm, int64_t count, int world, int launches, cuda::Fault fault) {
  CollectiveCase test{.algorithm = algorithm, .dtype = DType::kI32, .piece = {count}};
  KernelGroup group(&Machine(), Requests(test, world),
                    {.max_blocks = MostBlocks(world), .launches = launches, .separate = false},
                    Context(world));
  EXPECT_TRUE(group.status().ok()) << group.status().ToString();
  Word* errors = Machine().AllocateWord();
  // Without contention between checkers: 8 words apart, one a rank.
  std::vector<Word*> words(static_cast<size_t>(world), errors);
  for (size_t rank = 1; rank < words.size(); ++rank) words[rank] = Machine().AllocateWord();
  for (int rank = 0; rank < world; ++rank) {
    (void)Machine().backend(rank).MakeEvent();
    EXPECT_TRUE(cuda::LoadTestHooks().ok());
  }
  // A kernel that took an older launch's packets may run ahead and overwrite the present one's before a peer
  // has seen them: none would ever come.
  const auto blocked = [&group] {
    group.abort_word()->store(1, std::memory_order_release);
    EXPECT_TRUE(group.Finish()) << "not even an abort ends it";
    return -1;
  };
  constexpr int kBatch = 50;
  for (int launch = 0; launch < launches; ++launch) {
    const auto launch_number = static_cast<uint64_t>(launch) + 1;
    for (int rank = 0; rank < world; ++rank) {
      (void)Machine().backend(rank).MakeEvent();  // makes the rank's context current
      CUstream stream = group.stream(rank);
      auto* in = reinterpret_cast<uint32_t*>(group.Data(rank, 0, 0));
      auto* out = reinterpret_cast<uint32_t*>(group.Data(rank, 1, 0));
      Status status = cuda::LaunchFill(in, count, rank, launch_number, stream);
      const CollectiveArgs args = group.Args(rank, launch_number, 0);
      if (status.ok()) {
        status = algorithm == Algorithm::kLowLatency
                     ? cuda::LaunchPacketsWithDelays(*cuda::MakePacketsLaunch(args), fault, stream)
                     : cuda::LaunchPhasesWithDelays(*cuda::MakePhasesLaunch(args), fault, stream);
      }
      if (status.ok()) {
        status = cuda::LaunchCheckSum(out, count, 0, world, launch_number,
                                      reinterpret_cast<uint64_t*>(words[static_cast<size_t>(rank)]), stream);
      }
      EXPECT_TRUE(status.ok()) << status.ToString();
      if (!status.ok()) return -1;
    }
    if (launch % kBatch == kBatch - 1 && !group.Finish()) return blocked();
  }
  if (!group.Finish()) return blocked();
  int64_t sum = 0;
  for (Word* word : words) sum += static_cast<int64_t>(word->load());
  return sum;
}

TEST(CudaCollectiveTest, WordsAndPacketsHoldUnderRandomDelays) {
  struct Arm {
    Algorithm algorithm;
    int64_t count;
    int launches;
  };
  for (int world : {2, 4, 8}) {
    for (const Arm& arm : {Arm{Algorithm::kOneShot, 3001, 2500}, Arm{Algorithm::kOneShot, 60000, 500},
                           Arm{Algorithm::kTwoShot, 3001, 2500}, Arm{Algorithm::kTwoShot, 200000, 500},
                           Arm{Algorithm::kLowLatency, 500, 2500}, Arm{Algorithm::kLowLatency, 16384, 2500},
                           Arm{Algorithm::kLowLatency, 100003, 500}}) {
      EXPECT_EQ(ErrorsUnderDelays(arm.algorithm, arm.count, world, arm.launches, cuda::Fault::kNone), 0)
          << AlgorithmName(arm.algorithm) << " " << arm.count << " W=" << world;
    }
  }
}

TEST(CudaCollectiveTest, PlantedFaultsAreFound) {
  EXPECT_NE(ErrorsUnderDelays(Algorithm::kOneShot, 30000, 4, 200, cuda::Fault::kFlagBeforeData), 0);
  EXPECT_NE(ErrorsUnderDelays(Algorithm::kTwoShot, 30000, 4, 200, cuda::Fault::kFlagBeforeData), 0);
  EXPECT_NE(ErrorsUnderDelays(Algorithm::kOneShot, 30000, 4, 200, cuda::Fault::kStaleLaunchNumber), 0);
  EXPECT_NE(ErrorsUnderDelays(Algorithm::kLowLatency, 4000, 4, 200, cuda::Fault::kStaleLaunchNumber), 0);
}

TEST(CudaCollectiveTest, AbortEndsKernelsWithinASecond) {
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kLowLatency}) {
    CollectiveCase test{.algorithm = algorithm,
                        .piece = {algorithm == Algorithm::kLowLatency ? 4000 : 100000}};
    KernelGroup group(&Machine(), Requests(test, 4), {.max_blocks = MostBlocks(4)}, Context(4));
    ASSERT_TRUE(group.status().ok()) << group.status().ToString();
    // Rank 3 never comes.
    for (int rank = 0; rank < 3; ++rank) ASSERT_TRUE(group.Launch(rank, 1, 0).ok());
    EXPECT_FALSE(group.Finish(0.2));
    const auto start = std::chrono::steady_clock::now();
    group.abort_word()->store(1, std::memory_order_release);
    EXPECT_TRUE(group.Finish(1.0)) << AlgorithmName(algorithm);
    std::printf("[ abort    ] %s ended in %.3f ms\n", std::string(AlgorithmName(algorithm)).c_str(),
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
}

// A launch that is cancelled on all ranks before any of their kernels begins.
TEST(CudaCollectiveTest, AGuardThatIsRaisedLeavesTheLaunchOutAndTheNextRuns) {
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot, Algorithm::kLowLatency}) {
    CollectiveCase test{.algorithm = algorithm, .piece = {4000}};
    SCOPED_TRACE(AlgorithmName(algorithm));
    KernelGroup group(&Machine(), Requests(test, 2), {.max_blocks = MostBlocks(2), .launches = 3},
                      Context(2));
    ASSERT_TRUE(group.status().ok()) << group.status().ToString();
    Word* guard = group.machine().AllocateWord();
    guard->store(2, std::memory_order_release);
    std::mt19937 random(11);
    std::vector<Buffers> expected;
    Buffers before;
    for (int launch = 0; launch < 3; ++launch) {
      Buffers in;
      for (int rank = 0; rank < 2; ++rank) {
        in.push_back(RandomElements(test.dtype, group.Bytes(rank, 0), &random, false));
        group.Set(rank, 0, launch, in.back());
      }
      expected.push_back(Expected(test, std::move(in), group));
    }
    for (int rank = 0; rank < 2; ++rank) before.push_back(group.Get(rank, 1, 1));
    // The guard has reached launch number 2, and not launch number 3.
    for (int launch : {1, 2}) {
      for (int rank = 0; rank < 2; ++rank) {
        CollectiveArgs args = group.Args(rank, static_cast<uint64_t>(launch) + 1, launch);
        args.guard = {.word = guard, .value = static_cast<uint64_t>(launch) + 1};
        Status status = group.lane(rank).Collective(args);
        ASSERT_TRUE(status.ok()) << status.ToString();
      }
      ASSERT_TRUE(group.Finish()) << "blocked";
    }
    for (int rank = 0; rank < 2; ++rank) {
      const auto r = static_cast<size_t>(rank);
      EXPECT_EQ(group.Get(rank, 1, 1), before[r]) << "cancelled, and has written on rank " << rank;
      EXPECT_TRUE(Same(group.Get(rank, 1, 2), expected[2][r], test.dtype)) << "rank " << rank;
    }
    EXPECT_TRUE(group.GuardsIntact());
  }
}

}  // namespace
}  // namespace tandem::runtime
