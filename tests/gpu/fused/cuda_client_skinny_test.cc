// Products of few rows as clients launch them: launch after launch in both halves of workspace, between
// collectives, in graphs, under random pauses. Planted faults show that these tests can fail.
#include "drivers/cuda/cuda_driver.h"
#include "tests/gpu/fused/client_skinny_fixture.h"

namespace tandem::cuda {
namespace {

TEST_P(ClientSkinnyTest, OneLaunchIsRight) {
  MakeClientRanks();
  UploadOperands(1);
  ClearResults();
  for (int rank = 0; rank < kRanks; ++rank) Launch(rank);
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(Ends(rank, 5000)) << "rank " << rank;
    EXPECT_EQ(AbortReasonOf(rank), AbortReason::kNone);
    EXPECT_EQ(Count(rank), 1);
    EXPECT_TRUE(IsRight(ranks_[static_cast<size_t>(rank)])) << "rank " << rank;
  }
}

// Each launch has other data and another half than the one before.
TEST_P(ClientSkinnyTest, LaunchAfterLaunchIsRight) {
  MakeClientRanks();
  for (int launch = 1; launch <= 6 && !HasFatalFailure(); ++launch) {
    UploadOperands(static_cast<uint32_t>(launch));
    ClearResults();
    for (int rank = 0; rank < kRanks; ++rank) Launch(rank);
    for (int rank = 0; rank < kRanks; ++rank) ASSERT_TRUE(Ends(rank, 5000)) << "launch " << launch;
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(Count(rank), launch);
    EXPECT_TRUE(BothAreRight()) << "launch " << launch;
  }
}

// Without the host in between: a rank may be one launch ahead.
TEST_P(ClientSkinnyTest, LaunchesFollowOneAnother) {
  MakeClientRanks();
  UploadOperands(3);
  ClearResults();
  constexpr int kInARow = 200;
  for (int launch = 0; launch < kInARow; ++launch) {
    for (int rank = 0; rank < kRanks; ++rank) Launch((rank + launch) % kRanks);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    ASSERT_TRUE(Ends(rank, 20'000));
    EXPECT_EQ(Count(rank), kInARow);
  }
  EXPECT_TRUE(BothAreRight());
}

// An all-reduce of packets between two products: one sequence of numbers, kernels of 10 blocks and of 3.
class ClientMixTest : public ClientSkinnyTest {
 protected:
  static constexpr int64_t kCount = 700;
  static constexpr size_t kPacketBytes = size_t{64} << 10;

  void MakeCollective() {
    for (size_t r = 0; r < kRanks; ++r) {
      in_[r] = Take(kCount * 4);
      out_[r] = Take(kCount * 4);
      packets_[r] = Take(2 * kPacketBytes);
      const std::vector<std::byte> zero(2 * kPacketBytes);
      Move(packets_[r], zero.data(), zero.size());
      std::vector<float> values(kCount, static_cast<float>(r + 1));
      Move(in_[r], values.data(), values.size() * sizeof(float));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      CollectiveArgs args;
      args.dtype = DType::kF32;
      args.blocks = 3;
      args.rank = rank;
      args.world_size = kRanks;
      auto& packets = args.work.emplace<PacketsArgs>();
      packets.exchange = plan::PacketExchange::kSum;
      packets.packet_bytes = kPacketBytes;
      for (size_t peer = 0; peer < kRanks; ++peer) {
        packets.pieces.push_back(kCount);
        packets.source.push_back({in_[r], DType::kF32, {kCount}, {1}});
        packets.destination.push_back({out_[r], DType::kF32, {kCount}, {1}});
        packets.packets.push_back(packets_[peer]);
      }
      ClientHalves halves;
      for (size_t peer = 0; peer < kRanks; ++peer) halves.workspace[peer] = ranks_[peer].area[0];
      halves.half_bytes = half_bytes_;
      auto made = MakeClientLaunch(args, halves);
      ASSERT_TRUE(made.ok()) << made.status().ToString();
      ASSERT_TRUE(backend_->MakeEvent().ok());
      ASSERT_TRUE(Load(*made).ok());
      SetGroupState(*made, GroupStateOf(rank, 20 * kSecond));
      collectives_.push_back(*made);
    }
  }
  void AllReduce(int rank) {
    ASSERT_TRUE(backend_->MakeEvent().ok());
    const Status status = cuda::Enqueue(collectives_[static_cast<size_t>(rank)], stream(StreamOf(rank)));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  bool AllReduceIsRight(int rank) {
    std::vector<float> sums(kCount);
    Move(sums.data(), out_[static_cast<size_t>(rank)], sums.size() * sizeof(float));
    return std::all_of(sums.begin(), sums.end(), [](float sum) { return sum == 3.0f; });
  }

  std::array<std::byte*, kRanks> in_{}, out_{}, packets_{};
  std::vector<ClientKernelLaunch> collectives_;
};

TEST_P(ClientMixTest, CollectivesBetweenProductsShareTheirNumbers) {
  MakeClientRanks();
  MakeCollective();
  int64_t launches = 0;
  for (int round = 0; round < 20 && !HasFatalFailure(); ++round) {
    UploadOperands(static_cast<uint32_t>(round) + 1);
    ClearResults();
    // One, two or three kernels a round, so that each has either parity.
    for (int rank = 0; rank < kRanks; ++rank) {
      if (round % 3 == 1) AllReduce(rank);
      Launch(rank);
      if (round % 3 != 0) AllReduce(rank);
      ASSERT_TRUE(StreamOf(rank)->Record(ranks_[static_cast<size_t>(rank)].ended.get()).ok());
    }
    launches += round % 3 == 0 ? 1 : round % 3 == 1 ? 3 : 2;
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(Ends(rank, 5000)) << "round " << round;
      EXPECT_EQ(Count(rank), launches);
      EXPECT_EQ(AbortReasonOf(rank), AbortReason::kNone);
      EXPECT_TRUE(round == 0 || AllReduceIsRight(rank));
    }
    EXPECT_TRUE(BothAreRight()) << "round " << round;
  }
}

// A graph of three kernels, replayed: a replay has other numbers and begins with the other half.
TEST_P(ClientMixTest, AGraphIsReplayed) {
  MakeClientRanks();
  MakeCollective();
  std::array<CUgraphExec, kRanks> replays{};
  for (int rank = 0; rank < kRanks; ++rank) {
    const CUstream captured = stream(StreamOf(rank));
    ASSERT_TRUE(backend_->MakeEvent().ok());
    ASSERT_TRUE(driver_->StreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED).ok());
    LaunchOn(rank, *plain_);
    AllReduce(rank);
    LaunchOn(rank, *plain_);
    auto graph = driver_->StreamEndCapture(captured);
    ASSERT_TRUE(graph.ok()) << graph.status().ToString();
    auto replay = driver_->GraphInstantiate(*graph, 0);
    ASSERT_TRUE(replay.ok()) << replay.status().ToString();
    replays[static_cast<size_t>(rank)] = *replay;
    EXPECT_TRUE(driver_->GraphDestroy(*graph).ok());
  }
  int64_t launches = 0;
  for (int round = 0; round < 30 && !HasFatalFailure(); ++round) {
    UploadOperands(static_cast<uint32_t>(round) + 1);
    ClearResults();
    // One rank may launch eagerly what the other replays.
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(backend_->MakeEvent().ok());
      if (round % 3 == 2 && rank == round % 2) {
        LaunchOn(rank, *plain_);
        AllReduce(rank);
        LaunchOn(rank, *plain_);
      } else {
        ASSERT_TRUE(driver_->GraphLaunch(replays[static_cast<size_t>(rank)], stream(StreamOf(rank))).ok());
      }
      ASSERT_TRUE(StreamOf(rank)->Record(ranks_[static_cast<size_t>(rank)].ended.get()).ok());
    }
    launches += 3;
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_TRUE(Ends(rank, 5000)) << "round " << round;
      EXPECT_EQ(Count(rank), launches);
      EXPECT_TRUE(AllReduceIsRight(rank));
    }
    EXPECT_TRUE(BothAreRight()) << "round " << round;
  }
  for (CUgraphExec replay : replays) EXPECT_TRUE(driver_->GraphExecDestroy(replay).ok());
}

// Launches with pauses, of which each rank comes late in turn: those whose results are wrong, or that end
// without their peer.
class ClientPauseTest : public ClientSkinnyTest {
 protected:
  int CountWrongLaunches(FusedFault fault) {
    MakeClientRanks();
    int wrong = 0;
    for (int i = 0; i < kLaunches && !HasFatalFailure(); ++i) {
      UploadOperands(static_cast<uint32_t>(i) + 1);
      ClearResults();
      const int first = i & 1;
      const bool slow = (i & 2) != 0;
      LaunchHooked(first, fault, slow);
      const bool early = Ends(first, i % 4 == 0 ? 20 : 2);
      EXPECT_FALSE(early && fault == FusedFault::kNone) << "launch " << i << " ended before its peer came";
      LaunchHooked(1 - first, fault, slow);
      for (Rank& rank : ranks_) Sync(rank.lane);
      for (int rank = 0; rank < kRanks; ++rank) {
        const bool right =
            IsRight(ranks_[static_cast<size_t>(rank)]) && AbortReasonOf(rank) == AbortReason::kNone;
        wrong += right ? 0 : 1;
      }
    }
    return wrong;
  }
};

TEST_P(ClientPauseTest, IsRightUnderRandomPauses) { EXPECT_EQ(CountWrongLaunches(FusedFault::kNone), 0); }

TEST_P(ClientPauseTest, AFlagBeforeItsDataIsFound) {
  EXPECT_GT(CountWrongLaunches(FusedFault::kFlagBeforeData), 0);
}

TEST_P(ClientPauseTest, AMissingWaitIsFound) {
  tags_.fill(0);  // as words are that nobody has written
  EXPECT_GT(CountWrongLaunches(FusedFault::kMissingWait), 0);
}

TEST_P(ClientPauseTest, AStaleLaunchIsFound) {
  EXPECT_GT(CountWrongLaunches(FusedFault::kStaleLaunchNumber), 0);
}

// Thousands of launches with pauses, one behind the other; data change from launch to launch and are compared
// on the GPU.
class ClientLongTest : public ClientSkinnyTest {
 protected:
  static constexpr uint32_t kSets = 3;  // of data, in turn: what is one or two launches old is wrong
  static constexpr int kMany = 4000, kBatch = 250;

  struct Stashed {
    std::byte* at = nullptr;
    int64_t count = 0;
  };

  void Stash() {
    differences_ = reinterpret_cast<uint64_t*>(Take(sizeof(uint64_t)));
    const uint64_t none = 0;
    Move(differences_, &none, sizeof(none));
    for (uint32_t set = 0; set < kSets; ++set) {
      const Operands drawn = DrawOperands(set + 1);
      for (size_t r = 0; r < kRanks; ++r) {
        size_t i = 0;
        for (const Matrix* values : {&drawn.a[r], &drawn.b[r], &drawn.expected[r]}) {
          Stashed& stashed = stashes_[set][r][i++];
          stashed = {Take(values->size() * 2), static_cast<int64_t>(values->size())};
          Upload(stashed.at, *values);
        }
      }
    }
  }
  void Round(int rank, int launch) {
    const auto r = static_cast<size_t>(rank);
    const auto& stash = stashes_[static_cast<size_t>(launch) % kSets][r];
    const std::array<std::byte*, 2> operands{ranks_[r].a, ranks_[r].b};
    for (size_t i = 0; i < operands.size(); ++i) {
      const CopyArgs copy{{{stash[i].at, DType::kBf16, {stash[i].count}, {1}},
                           {operands[i], DType::kBf16, {stash[i].count}, {1}}}};
      ASSERT_TRUE(StreamOf(rank)->Copy(copy).ok());
    }
    LaunchHooked(rank, FusedFault::kNone, launch % 2 == 0);
    ASSERT_TRUE(LaunchCountDifferent(ranks_[r].c, stash[2].at, static_cast<size_t>(stash[2].count) * 2,
                                     differences_, stream(StreamOf(rank)))
                    .ok());
  }

  std::array<std::array<std::array<Stashed, 3>, kRanks>, kSets> stashes_;
  uint64_t* differences_ = nullptr;
};

TEST_P(ClientLongTest, ThousandsOfLaunchesAreRight) {
  MakeClientRanks();
  Stash();
  ASSERT_TRUE(LoadCountDifferent().ok());
  for (int launch = 0; launch < kMany && !HasFatalFailure(); ++launch) {
    for (int rank = 0; rank < kRanks; ++rank) Round((rank + launch) % kRanks, launch);
    if (launch % kBatch != kBatch - 1) continue;
    for (Rank& rank : ranks_) Sync(rank.lane);
    if (AbortReasonOf(0) != AbortReason::kNone || AbortReasonOf(1) != AbortReason::kNone) break;
  }
  for (Rank& rank : ranks_) Sync(rank.lane);
  uint64_t differences = 0;
  Move(&differences, differences_, sizeof(differences));
  EXPECT_EQ(differences, 0u);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(Count(rank), kMany);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ClientSkinnyTest, testing::ValuesIn(kForms), FormName);
INSTANTIATE_TEST_SUITE_P(Kinds, ClientMixTest, testing::ValuesIn(kForms), FormName);
INSTANTIATE_TEST_SUITE_P(Kinds, ClientPauseTest, testing::ValuesIn(kForms), FormName);
INSTANTIATE_TEST_SUITE_P(Kinds, ClientLongTest, testing::ValuesIn(kForms), FormName);

}  // namespace
}  // namespace tandem::cuda
