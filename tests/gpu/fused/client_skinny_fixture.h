// File: client_skinny_fixture.h
//
// The skinny kernel as clients launch it (docs/client-placement.md): two ranks on one GPU, each with its
// counters, its report and a stream.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "kernels/cuda/client_launch/client_plan.h"
#include "kernels/cuda/skinny/client_skinny.h"
#include "tests/gpu/fused/skinny_race_fixture.h"

namespace tandem::cuda {

class ClientSkinnyTest : public SkinnyRaceTest {
 protected:
  static constexpr uint64_t kTag = 7, kSecond = 1'000'000'000;
  // Private memory of a rank, as the client library lays it out.
  struct Private {
    uint64_t counters[kLaunchCounters];
    uint64_t failed, looked;
    uint64_t pushed[kPushedUnits];
  };

  void MakeClientRanks(int64_t k = 512) {
    MakeRanks(k);
    if (HasFatalFailure()) return;
    for (const FusedFault fault : {FusedFault::kNone, FusedFault::kFlagBeforeData, FusedFault::kMissingWait,
                                   FusedFault::kStaleLaunchNumber}) {
      hooked_.push_back(HookedClientSkinny(fault));
      ASSERT_TRUE(LoadSkinnyVariant(hooked_.back()).ok());
    }
    half_bytes_ = static_cast<uint64_t>(ranks_[0].area[1] - ranks_[0].area[0]);
    for (size_t r = 0; r < kRanks; ++r) {
      ASSERT_EQ(ranks_[r].area[1] - ranks_[r].area[0], ranks_[0].area[1] - ranks_[0].area[0]);
      private_[r] = reinterpret_cast<Private*>(Take(sizeof(Private)));
      const Private zero = {};
      Move(private_[r], &zero, sizeof(zero));
      const std::vector<uint64_t> no_words(kRanks * kWordsOfWriter);
      Move(ranks_[r].words, no_words.data(), no_words.size() * sizeof(uint64_t));
      *Report(static_cast<int>(r)) = {};
    }
    auto matmul = MatmulOf(0, 0);
    auto found = FindSkinnyVariant(matmul, ClientSkinnyVariants());
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    plain_ = *found;
    ASSERT_TRUE(LoadSkinnyVariant(*plain_).ok());
  }

  LaunchReport* Report(int rank) const {
    return reinterpret_cast<LaunchReport*>(static_cast<std::byte*>(page_) + 2048 + 128 * rank);
  }
  AbortReason AbortReasonOf(int rank) const {
    return static_cast<AbortReason>(*const_cast<const volatile uint64_t*>(&Report(rank)->kind));
  }
  void SetVerdict(uint64_t from) {
    reinterpret_cast<Word*>(const_cast<uint32_t*>(HostWord(2)))->store(from, std::memory_order_release);
  }

  GroupDeviceState GroupStateOf(int rank, uint64_t timeout_ns) const {
    const auto r = static_cast<size_t>(rank);
    GroupDeviceState group_state = {};
    group_state.counters = private_[r]->counters;
    group_state.failed = &private_[r]->failed;
    group_state.looked = &private_[r]->looked;
    group_state.pushed = private_[r]->pushed;
    group_state.first_aborted_launch = reinterpret_cast<const uint64_t*>(const_cast<uint32_t*>(HostWord(2)));
    group_state.report = Report(rank);
    group_state.own_words = ranks_[r].words;
    group_state.words_per_peer = kWordsOfWriter;
    group_state.timeout_ns = timeout_ns;
    group_state.tag = tags_[r];
    return group_state;
  }
  // The kernel on the rank's stream; `slow`: shards leave in turn, as long ones do.
  void LaunchOn(int rank, const SkinnyVariant& variant, bool slow = false,
                uint64_t timeout_ns = 20 * kSecond) {
    ASSERT_TRUE(backend_->MakeEvent().ok());
    auto kernel = MakeClientSkinny(MatmulOf(rank, 0), variant, half_bytes_);
    ASSERT_TRUE(kernel.ok()) << kernel.status().ToString();
    kernel->launch.group_state = GroupStateOf(rank, timeout_ns);
    if (slow) {
      kernel->launch.first_units = 1;
      kernel->launch.cycles_per_unit = 3000;
    }
    const Status status = LaunchClientSkinny(*kernel, stream(StreamOf(rank)));
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  // The product's kernel, and the rank's event behind it.
  void Launch(int rank, uint64_t timeout_ns = 20 * kSecond) {
    LaunchOn(rank, *plain_, false, timeout_ns);
    ASSERT_TRUE(StreamOf(rank)->Record(ranks_[static_cast<size_t>(rank)].ended.get()).ok());
  }
  void LaunchHooked(int rank, FusedFault fault, bool slow) {
    LaunchOn(rank, hooked_[static_cast<size_t>(fault)], slow);
    ASSERT_TRUE(StreamOf(rank)->Record(ranks_[static_cast<size_t>(rank)].ended.get()).ok());
  }
  bool Ends(int rank, int milliseconds) {
    return EndsWithin(ranks_[static_cast<size_t>(rank)], std::chrono::milliseconds(milliseconds));
  }
  const std::unique_ptr<Lane>& StreamOf(int rank) const { return ranks_[static_cast<size_t>(rank)].lane; }

  // The number that all counters of a rank have; -1 if they differ.
  int64_t Count(int rank) {
    Private state;
    Move(&state, private_[static_cast<size_t>(rank)], sizeof(state));
    for (const uint64_t counter : state.counters) {
      if (counter != state.counters[0]) return -1;
    }
    return static_cast<int64_t>(state.counters[0]);
  }
  // The words that `writer` has written at `reader`.
  std::vector<uint64_t> WordsAt(int reader, int writer) {
    std::vector<uint64_t> words(kWordsOfWriter);
    Move(words.data(), ranks_[static_cast<size_t>(reader)].words + writer * kWordsOfWriter,
         words.size() * sizeof(uint64_t));
    return words;
  }
  // Both halves of a rank's exchange area.
  std::vector<std::byte> AreaAt(int rank) {
    std::vector<std::byte> bytes(2 * half_bytes_);
    Move(bytes.data(), ranks_[static_cast<size_t>(rank)].area[0], bytes.size());
    return bytes;
  }
  bool BothAreRight() { return IsRight(ranks_[0]) && IsRight(ranks_[1]); }
  void ClearResults() {
    for (const Rank& rank : ranks_) {
      const std::vector<std::byte> bytes(rank.expected.size() * 2, std::byte{0x7F});
      Move(rank.c, bytes.data(), bytes.size());
    }
  }

  std::vector<SkinnyVariant> hooked_;  // by fault
  const SkinnyVariant* plain_ = nullptr;
  uint64_t half_bytes_ = 0;
  std::array<Private*, kRanks> private_{};
  std::array<uint64_t, kRanks> tags_{kTag, kTag};
};

}  // namespace tandem::cuda
