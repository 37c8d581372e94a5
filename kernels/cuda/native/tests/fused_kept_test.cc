// When a launch passes its tables and when it points to kept ones, with launches that are only written down.
#include "kernels/cuda/native/fused_kept.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>

namespace tandem::cuda {
namespace {

using testing::ElementsAre;

std::vector<std::string> calls;
Status keeps;  // what a copy returns
const FusedTables* copied_to = nullptr;
CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(64);

class FusedKeptTest : public testing::Test {
 protected:
  FusedKeptTest() {
    calls.clear();
    keeps = Status::Ok();
    copied_to = nullptr;
    calls_.launch = [](const FusedMatmulParams& params, const FusedVariant&, int ctas, CUstream_st* stream) {
      EXPECT_EQ(stream, kStream);
      EXPECT_EQ(ctas, 130);
      EXPECT_EQ(params.units, 77);
      calls.push_back("launch " + std::to_string(params.epoch));
      return Status::Ok();
    };
    calls_.launch_kept = [](const FusedKept& kept, const FusedVariant&, int ctas, CUstream_st* stream) {
      EXPECT_EQ(stream, kStream);
      EXPECT_EQ(ctas, 130);
      EXPECT_EQ(kept.scalars.units, 77);
      EXPECT_EQ(kept.scalars.guard_value, kept.scalars.epoch + 1);
      EXPECT_EQ(kept.scalars.abort_word, reinterpret_cast<const uint64_t*>(0x700));
      EXPECT_EQ(kept.tables, copied_to);
      calls.push_back("kept " + std::to_string(kept.scalars.epoch));
      return Status::Ok();
    };
    calls_.keep = [](const FusedTables& tables, FusedTables* to, CUstream_st* stream) {
      EXPECT_EQ(stream, kStream);
      EXPECT_EQ(tables.piece[3].a_slice, 5);
      copied_to = to;
      calls.push_back("copy");
      return keeps;
    };
    params_.units = 77;
    params_.k_blocks = 24;
    variant_.cluster_m = 2;
    variant_.cluster_n = 1;
    params_.piece[3].a_slice = 5;
  }
  std::unique_ptr<PreparedFused> Make() { return std::make_unique<PreparedFused>(params_, &variant_, 130); }
  std::vector<std::string> Launch(PreparedFused& prepared, const std::shared_ptr<KeptTables>& kept) {
    calls.clear();
    ++epoch_;
    status_ = prepared.Enqueue({.epoch = epoch_,
                                .abort_word = reinterpret_cast<const uint64_t*>(0x700),
                                .guard_word = nullptr,
                                .guard_value = epoch_ + 1},
                               kept, kStream, calls_);
    return calls;
  }

  FusedCalls calls_;
  FusedMatmulParams params_ = {};
  FusedVariant variant_ = {};
  uint64_t epoch_ = 0;
  Status status_;
  // Never read or written here.
  static constexpr size_t kBytes = 2 * sizeof(FusedTables) + 100;
  std::byte* const memory_ = reinterpret_cast<std::byte*>(0x100000);
  std::shared_ptr<KeptTables> kept_ = std::make_shared<KeptTables>(memory_, kBytes);
};

TEST_F(FusedKeptTest, ALaunchThatComesAgainPointsToTablesThatWereCopiedOnce) {
  auto prepared = Make();
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("launch 1"));
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("launch 2"));
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("copy", "kept 3"));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(copied_to), memory_);
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("kept 4"));
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("kept 5"));
  // Not on a stream that is not ordered behind the copy.
  EXPECT_THAT(Launch(*prepared, std::make_shared<KeptTables>(memory_, kBytes)), ElementsAre("launch 6"));
  EXPECT_THAT(Launch(*prepared, nullptr), ElementsAre("launch 7"));
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("kept 8"));
}

TEST_F(FusedKeptTest, KernelsThatRunLongGetTablesByValue) {
  for (const auto& [blocks, kept] : {std::pair{48, true}, {49, false}}) {  // two tiles a CTA
    params_.k_blocks = blocks;
    auto prepared = Make();
    for (int i = 0; i < PreparedFused::kByValue; ++i) Launch(*prepared, kept_);
    EXPECT_EQ(Launch(*prepared, kept_).front() == "copy", kept) << blocks;
  }
}

TEST_F(FusedKeptTest, WithoutAPlaceTablesGoByValueUntilOneIsGivenBack) {
  std::array<std::unique_ptr<PreparedFused>, 3> prepared{Make(), Make(), Make()};
  for (auto& each : prepared) {
    for (int i = 0; i < PreparedFused::kByValue; ++i) Launch(*each, kept_);
  }
  EXPECT_THAT(Launch(*prepared[0], kept_), ElementsAre("copy", "kept 7"));
  EXPECT_THAT(Launch(*prepared[1], kept_), ElementsAre("copy", "kept 8"));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(copied_to), memory_ + sizeof(FusedTables));
  EXPECT_THAT(Launch(*prepared[2], kept_), ElementsAre("launch 9"));
  prepared[0].reset();
  EXPECT_THAT(Launch(*prepared[2], kept_), ElementsAre("copy", "kept 10"));
  EXPECT_EQ(reinterpret_cast<const std::byte*>(copied_to), memory_);
  // The places' owner may be gone first.
  kept_.reset();
  prepared[1].reset();
}

TEST_F(FusedKeptTest, ACopyThatFailsFailsTheLaunchAndKeepsNoPlace) {
  auto prepared = Make();
  for (int i = 0; i < PreparedFused::kByValue; ++i) Launch(*prepared, kept_);
  keeps = Internal("no");
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("copy"));
  EXPECT_EQ(status_.code(), Code::kInternal);
  keeps = Status::Ok();
  EXPECT_THAT(Launch(*prepared, kept_), ElementsAre("copy", "kept 4"));
  EXPECT_TRUE(status_.ok());
  EXPECT_EQ(reinterpret_cast<const std::byte*>(copied_to), memory_);
}

}  // namespace
}  // namespace tandem::cuda
