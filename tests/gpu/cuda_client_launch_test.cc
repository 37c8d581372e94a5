// Client-placed kernels (docs/client-placement.md): launches that take their number from counters in device
// memory, eager and in graphs, under random delays; how they give up; and faults planted to show that these
// tests can fail. Ranks share one process, and GPUs where there are fewer.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/client_launch/client_plan.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/collective_cases.h"
#include "tests/gpu/collective_test_hooks.h"
#include "tests/gpu/cuda_machine.h"
#include "tests/gpu/kernel_group.h"

namespace tandem::runtime {
namespace {

using cuda::AbortReason;
using cuda::Moved;

constexpr int kBlocksPerGpu = 120;
constexpr uint64_t kSecond = 1'000'000'000;

TestMachine& Machine() {
  static TestMachine* machine = MakeCudaMachine(plan::kMaxWorldSize, size_t{64} << 20).release();
  return *machine;
}

struct ClientLaunchCase {
  Algorithm algorithm = Algorithm::kOneShot;
  int64_t count = 0;
  int world = 2;
  Moved moved = Moved::kSumOfU32;

  bool dense() const { return moved != Moved::kSumOfU32; }
};

// The ranks of one all-reduce, each with its counters and its report.
class ClientLaunchRanks {
 public:
  explicit ClientLaunchRanks(const ClientLaunchCase& test)
      : test_(test), group_(&Machine(), RequestsOf(test), OptionsOf(test), ContextOf(test)) {
    EXPECT_TRUE(group_.status().ok()) << group_.status().ToString();
    const CollectiveArgs args = group_.Args(0, 0, 0);
    const auto* packets = args.As<PacketsArgs>();
    EXPECT_EQ(packets != nullptr && packets->dense, test.dense());
    for (int rank = 0; rank < test.world; ++rank) {
      Current(rank);
      EXPECT_TRUE(cuda::LoadTestHooks().ok());
      private_.push_back(Machine().Allocate(rank, sizeof(Private)));
      errors_.push_back(Machine().AllocateWord());
      cuda::ClientHalves halves = group_.halves(rank);
      auto launch = cuda::MakeClientLaunch(group_.Args(rank, 0, 0), halves);
      EXPECT_TRUE(launch.ok()) << launch.status().ToString();
      EXPECT_TRUE(cuda::Load(*launch).ok());
      launches_.push_back(*launch);
      group_states_.push_back(GroupStateOf(rank));
    }
  }

  KernelGroup& group() { return group_; }
  void SetTag(int rank, uint64_t tag) { group_states_[static_cast<size_t>(rank)].tag = tag; }
  void SetLimit(uint64_t ns) {
    for (cuda::GroupDeviceState& group_state : group_states_) group_state.timeout_ns = ns;
  }

  // The kernel alone.
  void Launch(int rank) {
    Current(rank);
    const auto r = static_cast<size_t>(rank);
    cuda::SetGroupState(launches_[r], group_states_[r]);
    const Status status = cuda::Enqueue(launches_[r], group_.stream(rank));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // New data, the kernel with random delays, and a comparison on the GPU.
  void Round(int rank, cuda::Fault fault) {
    Current(rank);
    const auto r = static_cast<size_t>(rank);
    CUstream stream = group_.stream(rank);
    const uint64_t* counter = group_states_[r].counters;
    Status status = cuda::LaunchFillNext(Data(rank, 0), test_.count, rank, counter, test_.moved, stream);
    cuda::SetGroupState(launches_[r], group_states_[r]);
    if (status.ok()) status = cuda::LaunchClientWithDelays(launches_[r], fault, stream);
    if (status.ok()) {
      status = cuda::LaunchCheckLast(Data(rank, 1), test_.count, test_.world, counter, test_.moved,
                                     reinterpret_cast<uint64_t*>(errors_[r]), stream);
    }
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  int64_t errors() const {
    int64_t sum = 0;
    for (const Word* word : errors_) sum += static_cast<int64_t>(word->load());
    return sum;
  }
  // The count that all counters of a rank have; -1 if they differ.
  int64_t Count(int rank) {
    const Private state = Read(rank);
    for (const uint64_t counter : state.counters) {
      if (counter != state.counters[0]) return -1;
    }
    return static_cast<int64_t>(state.counters[0]);
  }
  cuda::LaunchReport Report(int rank) { return Read(rank).report; }

 private:
  struct Private {
    uint64_t counters[cuda::kLaunchCounters];
    uint64_t failed, looked;
    cuda::LaunchReport report;
  };

  static std::vector<OpRequest> RequestsOf(const ClientLaunchCase& test) {
    const CollectiveCase collective{.op = test.moved == Moved::kGathered ? Op::kAllGather : Op::kAllReduce,
                                    .algorithm = test.algorithm,
                                    .dtype = test.moved == Moved::kSumOfF32 ? DType::kF32 : DType::kI32,
                                    .piece = {test.count}};
    return Requests(collective, test.world);
  }
  static KernelGroupOptions OptionsOf(const ClientLaunchCase& test) {
    const int gpus = CudaDeviceCount();
    return {.max_blocks = kBlocksPerGpu / ((test.world + gpus - 1) / gpus), .separate = false};
  }
  static plan::GroupContext ContextOf(const ClientLaunchCase& test) {
    plan::GroupContext context;
    context.topology = EmulatedTopology(test.world);
    context.packet_kernels = true;
    context.client_kernels = plan::ClientKernels::kProducts;
    if (test.dense()) context.placement = plan::PlanPlacement::kClient;
    return context;
  }
  void Current(int rank) { (void)Machine().backend(rank).MakeEvent(); }
  uint32_t* Data(int rank, int slot) { return reinterpret_cast<uint32_t*>(group_.Data(rank, slot, 0)); }
  cuda::GroupDeviceState GroupStateOf(int rank) {
    const auto r = static_cast<size_t>(rank);
    auto* state = reinterpret_cast<Private*>(private_[r].at[r]);
    cuda::GroupDeviceState group_state = {};
    group_state.counters = state->counters;
    group_state.failed = &state->failed;
    group_state.looked = &state->looked;
    group_state.report = &state->report;
    group_state.first_aborted_launch = reinterpret_cast<const uint64_t*>(group_.abort_word());
    group_state.own_words = group_.own_words(rank);
    group_state.words_per_peer = plan::kSignalsPerWriter;
    group_state.timeout_ns = 20 * kSecond;
    group_state.tag = 7;
    return group_state;
  }
  Private Read(int rank) {
    Private state;
    Machine().Download(&state, private_[static_cast<size_t>(rank)], rank, sizeof(state));
    return state;
  }

  const ClientLaunchCase test_;
  KernelGroup group_;
  std::vector<SharedMemory> private_;
  std::vector<Word*> errors_;
  std::vector<cuda::ClientKernelLaunch> launches_;
  std::vector<cuda::GroupDeviceState> group_states_;
};

constexpr ClientLaunchCase kCases[] = {
    {Algorithm::kOneShot, 3001, 2},
    {Algorithm::kOneShot, 60000, 4},
    {Algorithm::kTwoShot, 3001, 4},
    {Algorithm::kTwoShot, 200000, 2},
    {Algorithm::kLowLatency, 500, 2},
    {Algorithm::kLowLatency, 16384, 4},
    {Algorithm::kLowLatency, 30000, 2},
    {Algorithm::kLowLatency, 100003, 2},
    {Algorithm::kLowLatency, 100003, 4},
    {Algorithm::kLowLatency, 4100, 2, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 16384, 4, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 100003, 2, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 100003, 4, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 1 << 20, 2, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 500001, 4, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 5003, 8, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 200003, 8, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 4100, 2, Moved::kGathered},
    {Algorithm::kLowLatency, 16384, 4, Moved::kGathered},
    {Algorithm::kLowLatency, 100003, 3, Moved::kGathered},
    {Algorithm::kLowLatency, 1 << 20, 2, Moved::kGathered},
    {Algorithm::kLowLatency, 500001, 4, Moved::kGathered},
    {Algorithm::kLowLatency, 5003, 8, Moved::kGathered},
};

constexpr ClientLaunchCase kWaits[] = {
    {Algorithm::kOneShot},
    {Algorithm::kTwoShot},
    {Algorithm::kLowLatency},
    {Algorithm::kLowLatency, 0, 2, Moved::kSumOfF32},
    {Algorithm::kLowLatency, 0, 2, Moved::kGathered},
};

constexpr const char* kNames[] = {" ", " dense ", " gathered "};  // by Moved

// Wrong elements of `rounds` launches, and ranks that have not counted all of them; -1: blocked.
int64_t ErrorsOf(const ClientLaunchCase& test, int rounds, cuda::Fault fault) {
  ClientLaunchRanks ranks(test);
  const auto blocked = [&ranks] {
    ranks.group().abort_word()->store(1, std::memory_order_release);
    EXPECT_TRUE(ranks.group().Finish()) << "not even an abort ends it";
    return -1;
  };
  for (int round = 0; round < rounds; ++round) {
    for (int rank = 0; rank < test.world; ++rank) ranks.Round(rank, fault);
    if (round % 50 == 49 && !ranks.group().Finish()) return blocked();
  }
  if (!ranks.group().Finish()) return blocked();
  int64_t lost = 0;
  for (int rank = 0; rank < test.world; ++rank) lost += ranks.Count(rank) != rounds;
  return ranks.errors() + lost;
}

TEST(CudaClientLaunchTest, LaunchesHoldUnderRandomDelays) {
  for (const ClientLaunchCase& test : kCases) {
    EXPECT_EQ(ErrorsOf(test, 1000, cuda::Fault::kNone), 0)
        << AlgorithmName(test.algorithm) << kNames[static_cast<size_t>(test.moved)] << test.count
        << " W=" << test.world;
  }
}

TEST(CudaClientLaunchTest, PlantedFaultsAreFound) {
  EXPECT_NE(ErrorsOf({Algorithm::kOneShot, 30000, 4}, 200, cuda::Fault::kFlagBeforeData), 0);
  EXPECT_NE(ErrorsOf({Algorithm::kTwoShot, 30000, 4}, 200, cuda::Fault::kStaleLaunchNumber), 0);
  EXPECT_NE(ErrorsOf({Algorithm::kLowLatency, 4100, 4}, 200, cuda::Fault::kStaleLaunchNumber), 0);
  EXPECT_NE(
      ErrorsOf({Algorithm::kLowLatency, 4100, 4, Moved::kSumOfF32}, 200, cuda::Fault::kStaleLaunchNumber), 0);
  EXPECT_NE(
      ErrorsOf({Algorithm::kLowLatency, 410000, 4, Moved::kSumOfF32}, 200, cuda::Fault::kStaleLaunchNumber),
      0);
  EXPECT_NE(
      ErrorsOf({Algorithm::kLowLatency, 4100, 4, Moved::kGathered}, 200, cuda::Fault::kStaleLaunchNumber), 0);
}

// Grids of different sizes share the counters.
TEST(CudaClientLaunchTest, AllCountersAreEqualBehindEachLaunch) {
  for (const int64_t count : {int64_t{1}, int64_t{5000}, int64_t{60000}, int64_t{300000}}) {
    ClientLaunchRanks ranks({Algorithm::kOneShot, count, 2});
    for (int launch = 1; launch <= 5; ++launch) {
      for (int rank = 0; rank < 2; ++rank) ranks.Launch(rank);
      ASSERT_TRUE(ranks.group().Finish());
      for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.Count(rank), launch);
    }
  }
}

TEST(CudaClientLaunchTest, AVerdictEndsALaunchAndAllBehindIt) {
  for (ClientLaunchCase test :
       {ClientLaunchCase{Algorithm::kOneShot, 100000, 4}, ClientLaunchCase{Algorithm::kTwoShot, 100000, 4},
        ClientLaunchCase{Algorithm::kLowLatency, 4100, 4},
        ClientLaunchCase{Algorithm::kLowLatency, 4100, 4, Moved::kSumOfF32},
        ClientLaunchCase{Algorithm::kLowLatency, 410000, 4, Moved::kSumOfF32},
        ClientLaunchCase{Algorithm::kLowLatency, 4100, 4, Moved::kGathered}}) {
    ClientLaunchRanks ranks(test);
    for (int rank = 0; rank < 4; ++rank) ranks.Launch(rank);
    ASSERT_TRUE(ranks.group().Finish());
    // Rank 3 does not come again. Three launches wait for it.
    for (int rank = 0; rank < 3; ++rank) {
      for (int launch = 0; launch < 3; ++launch) ranks.Launch(rank);
    }
    EXPECT_FALSE(ranks.group().Finish(0.2));
    const auto start = std::chrono::steady_clock::now();
    ranks.group().abort_word()->store(2, std::memory_order_release);
    EXPECT_TRUE(ranks.group().Finish(1.0));
    const auto took = std::chrono::steady_clock::now() - start;
    std::printf("[ verdict  ] %s ended in %.3f ms\n", std::string(AlgorithmName(test.algorithm)).c_str(),
                std::chrono::duration<double, std::milli>(took).count());
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(static_cast<AbortReason>(ranks.Report(rank).kind), AbortReason::kCutOff);
      EXPECT_EQ(ranks.Report(rank).number, 2u);
    }
    EXPECT_EQ(ranks.Count(3), 1);
  }
}

// A verdict from a later launch on leaves this one alone.
TEST(CudaClientLaunchTest, AVerdictIsFromALaunchOn) {
  ClientLaunchRanks ranks({Algorithm::kTwoShot, 3001, 2});
  ranks.group().abort_word()->store(2, std::memory_order_release);
  ranks.Launch(0);
  EXPECT_FALSE(ranks.group().Finish(0.1));
  ranks.Launch(1);
  ASSERT_TRUE(ranks.group().Finish());
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(ranks.Count(rank), 1);
    EXPECT_EQ(ranks.Report(rank).kind, 0u);
  }
}

// Every thread of rank 0 waits when rank 1 comes. If each looked at the verdict in host memory, the reads
// would go one after another, for most of a millisecond.
TEST(CudaClientLaunchTest, APeerThatIsLateIsFollowedAtOnce) {
  for (const Moved moved : {Moved::kSumOfU32, Moved::kSumOfF32, Moved::kGathered}) {
    ClientLaunchRanks ranks({Algorithm::kLowLatency, 100003, 2, moved});
    std::vector<double> took_us;
    for (int round = 0; round < 11; ++round) {
      ranks.Launch(0);
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
      const auto start = std::chrono::steady_clock::now();
      ranks.Launch(1);
      ASSERT_TRUE(ranks.group().Finish());
      const auto took = std::chrono::steady_clock::now() - start;
      took_us.push_back(std::chrono::duration<double, std::micro>(took).count());
    }
    std::sort(took_us.begin(), took_us.end());
    std::printf("[ late     ] followed in %.0f us\n", took_us[5]);
    EXPECT_LT(took_us[5], 150) << kNames[static_cast<size_t>(moved)];
  }
}

TEST(CudaClientLaunchTest, ADeadlineNamesTheRankThatIsLate) {
  for (const ClientLaunchCase& test : kWaits) {
    const Algorithm algorithm = test.algorithm;
    ClientLaunchRanks ranks({algorithm, 4100, 4, test.moved});
    ranks.SetLimit(kSecond / 10);
    for (int rank : {0, 1, 3}) ranks.Launch(rank);
    ASSERT_TRUE(ranks.group().Finish(5));
    for (int rank : {0, 1, 3}) {
      const cuda::LaunchReport report = ranks.Report(rank);
      EXPECT_EQ(static_cast<AbortReason>(report.kind), AbortReason::kLate) << AlgorithmName(algorithm);
      EXPECT_EQ(report.number, 1u);
    }
    EXPECT_EQ(ranks.Report(0).peer, 2u) << AlgorithmName(algorithm);
  }
}

TEST(CudaClientLaunchTest, AnotherTagIsAMismatch) {
  for (const ClientLaunchCase& test : kWaits) {
    const Algorithm algorithm = test.algorithm;
    ClientLaunchRanks ranks({algorithm, 4100, 2, test.moved});
    ranks.SetLimit(2 * kSecond);
    ranks.SetTag(1, 8);
    for (int rank = 0; rank < 2; ++rank) ranks.Launch(rank);
    ASSERT_TRUE(ranks.group().Finish(5));
    const cuda::LaunchReport report = ranks.Report(0);
    EXPECT_EQ(static_cast<AbortReason>(report.kind), AbortReason::kMismatch) << AlgorithmName(algorithm);
    EXPECT_EQ(report.peer, 1u);
    EXPECT_EQ(report.seen, (uint64_t{1} << kLaunchTagBits) + 8);
  }
}

}  // namespace
}  // namespace tandem::runtime
