// File: skinny_race_fixture.h
//
// The skinny kernel in launches whose results are known to the bit: two ranks on one GPU.
#pragma once

#include <array>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/fused/fused_launch.h"
#include "kernels/cuda/skinny/skinny_matmul.h"
#include "program/program.h"
#include "tests/gpu/fused/hooked_gpu_test.h"

namespace tandem::cuda {

inline constexpr int kRanks = 2, kLaunches = 12, kWordsOfWriter = plan::kSignalsPerWriter;
inline constexpr int64_t kRows = 33,
                         kN = 520;  // of each rank's part: a ragged tile each way; ten CTAs a rank

using Matrix = std::vector<float>;

// Small whole numbers: their sums are exact in bf16.
inline Matrix Draw(int64_t count, std::mt19937& random) {
  Matrix values(static_cast<size_t>(count));
  for (float& value : values) value = static_cast<float>(random() % 3) - 1;
  return values;
}

// rows × K times the transpose of kN × K, added to `sum`.
inline void Multiply(const float* a, const Matrix& b, int64_t rows, int64_t k, float* sum) {
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t n = 0; n < kN; ++n) {
      for (int64_t i = 0; i < k; ++i) sum[m * kN + n] += a[m * k + i] * b[static_cast<size_t>(n * k + i)];
    }
  }
}

struct SkinnyForm {
  SkinnyKind kind;
  bool one_step;  // see SkinnyLayout
};

class SkinnyRaceTest : public HookedGpuTest, public testing::WithParamInterface<SkinnyForm> {
 protected:
  struct Rank {
    std::unique_ptr<Lane> lane;
    std::unique_ptr<Event> ended;
    std::byte *a = nullptr, *b = nullptr, *c = nullptr, *state = nullptr;
    std::array<std::byte*, 2> area{};  // by parity of the launch number
    uint64_t* words = nullptr;         // by writer
    Matrix expected;
  };

  // Ranks of the parameter's kind, of operands of `k` columns.
  void MakeRanks(int64_t k) {
    auto layout = MakeSkinnyLayout(GetParam().kind, kRanks, kRanks * kRows, kN, k, 2, 2, false);
    ASSERT_TRUE(layout);
    layout_ = *layout;
    layout_.one_step = GetParam().one_step;
    for (Rank& rank : ranks_) {
      rank.lane = std::move(*backend_->MakeLane(0));
      rank.ended = std::move(*backend_->MakeEvent());
      rank.a = Take(kRanks * kRows * k * 2);
      rank.b = Take(kN * k * 2);
      rank.c = Take(kRanks * kRows * kN * 2);
      rank.state = Take(kFusedStateBytes);
      for (std::byte*& area : rank.area) area = Take(layout_.area_bytes());
      rank.words = reinterpret_cast<uint64_t*>(Take(kRanks * kWordsOfWriter * 8));
    }
    guard_ = reinterpret_cast<uint64_t*>(Take(sizeof(uint64_t)));
  }
  bool EndsWithin(const Rank& rank, std::chrono::milliseconds time) {
    return HookedGpuTest::EndsWithin(*rank.ended, time);
  }
  bool IsRight(const Rank& rank) {
    std::vector<std::byte> bytes(rank.expected.size() * 2);
    Move(bytes.data(), rank.c, bytes.size());
    for (size_t i = 0; i < rank.expected.size(); ++i) {
      if (LoadAsFloat(bytes.data(), DType::kBf16, i) != rank.expected[i]) return false;
    }
    return true;
  }

  // The operands of both ranks, and the use of the product.
  struct Operands {
    std::array<Matrix, kRanks> a, b, expected;
  };
  Operands DrawOperands(uint32_t seed) const {
    std::mt19937 random(seed);
    const int64_t k = layout_.k;
    const bool gathers = GetParam().kind == SkinnyKind::kGather;
    Operands drawn;
    Matrix sum(kRanks * kRows * kN);
    for (size_t r = 0; r < kRanks; ++r) {
      drawn.a[r] = Draw((gathers ? 1 : kRanks) * kRows * k, random);
      drawn.b[r] = Draw(kN * k, random);
      if (!gathers) Multiply(drawn.a[r].data(), drawn.b[r], kRanks * kRows, k, sum.data());
    }
    for (size_t r = 0; r < kRanks; ++r) {
      drawn.expected[r] = sum;
      if (gathers) {
        for (size_t s = 0; s < kRanks; ++s)
          Multiply(drawn.a[s].data(), drawn.b[r], kRows, k, &drawn.expected[r][s * kRows * kN]);
      } else if (GetParam().kind == SkinnyKind::kScatter) {
        const auto part = static_cast<int64_t>(kRows * kN), rank = static_cast<int64_t>(r);
        drawn.expected[r].assign(sum.begin() + rank * part, sum.begin() + (rank + 1) * part);
      }
    }
    return drawn;
  }
  // New operands for both ranks.
  void UploadOperands(uint32_t seed) {
    Operands drawn = DrawOperands(seed);
    for (size_t r = 0; r < kRanks; ++r) {
      Upload(ranks_[r].a, drawn.a[r]);
      Upload(ranks_[r].b, drawn.b[r]);
      ranks_[r].expected = std::move(drawn.expected[r]);
    }
  }
  SkinnyMatmul MatmulOf(int r, uint64_t launch_number) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    SkinnyMatmul matmul;
    matmul.layout = layout_;
    matmul.b_along_n = false;
    matmul.rank = r;
    matmul.a = rank.a;
    matmul.b = rank.b;
    matmul.c = rank.c;
    matmul.a_pitch = matmul.b_pitch = layout_.k;
    matmul.c_pitch = kN;
    for (size_t peer = 0; peer < kRanks; ++peer) {
      matmul.area[peer] = ranks_[peer].area[launch_number & 1];
      matmul.words[peer] = ranks_[peer].words + r * kWordsOfWriter;
      matmul.arrived[peer] = rank.words + peer * kWordsOfWriter;
    }
    matmul.launch_number = launch_number;
    matmul.abort_word = reinterpret_cast<const uint64_t*>(const_cast<uint32_t*>(HostWord(2)));
    matmul.state = rank.state;
    return matmul;
  }
  void Enqueue(int r, uint64_t launch_number, FusedFault fault, uint64_t timeout_ns = 20'000'000'000,
               bool guarded = false) {
    SkinnyMatmul matmul = MatmulOf(r, launch_number);
    matmul.timeout_ns = timeout_ns;
    if (guarded) {
      matmul.guard_word = guard_;
      matmul.guard_value = launch_number;
    }
    Rank& rank = ranks_[static_cast<size_t>(r)];
    ASSERT_TRUE(backend_->MakeEvent().ok());
    auto params = MakeSkinnyParams(matmul);
    ASSERT_TRUE(params.ok()) << params.status().ToString();
    if (launch_number % 2 == 1) {  // shards so short are pushed at the start; these in turn, as long ones are
      params->first_units = 1;
      params->cycles_per_unit = 3000;
    }
    const SkinnyVariant variant = HookedSkinny(fault);
    ASSERT_EQ(variant.tile_n, layout_.tile_n);
    ASSERT_TRUE(LaunchSkinny(*params, variant, layout_.ctas(), stream(rank.lane)).ok());
    ASSERT_TRUE(rank.lane->Record(rank.ended.get()).ok());
  }
  // Launches with data of their own, of which each rank comes late in turn: the results that were wrong in
  // all.
  int CountWrong(FusedFault fault) {
    MakeRanks(512);
    int wrong = 0;
    for (int i = 0; i < kLaunches && !HasFatalFailure(); ++i) {
      UploadOperands(static_cast<uint32_t>(i) + 1);
      const int first = i & 1;
      ++launch_number_;
      Enqueue(first, launch_number_, fault);
      const bool early =
          EndsWithin(ranks_[static_cast<size_t>(first)], std::chrono::milliseconds(i % 4 == 0 ? 20 : 2));
      EXPECT_FALSE(early && fault == FusedFault::kNone) << "launch " << i << " ended before its peer came";
      Enqueue(1 - first, launch_number_, fault);
      for (Rank& rank : ranks_) Sync(rank.lane);
      for (Rank& rank : ranks_) wrong += IsRight(rank) ? 0 : 1;
    }
    return wrong;
  }

  SkinnyLayout layout_;
  std::array<Rank, kRanks> ranks_;
  uint64_t* guard_ = nullptr;
  uint64_t launch_number_ = 0;
};

inline std::string FormName(const testing::TestParamInfo<SkinnyForm>& form) {
  constexpr const char* kNames[] = {"Gather", "Scatter", "AllReduce"};
  return std::string(kNames[static_cast<size_t>(form.param.kind)]) + (form.param.one_step ? "InOneStep" : "");
}
inline constexpr SkinnyForm kForms[] = {{SkinnyKind::kGather, false},
                                        {SkinnyKind::kScatter, false},
                                        {SkinnyKind::kAllReduce, false},
                                        {SkinnyKind::kAllReduce, true}};

}  // namespace tandem::cuda
