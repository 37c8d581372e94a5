// The state that launches of a fused matmul with one set of addresses share, and the state of each; launches
// are recorded, not run.
#include "kernels/cuda/fused/fused_prepared.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/cuda/fused/fused_plan.h"

namespace tandem::cuda {
namespace {

std::vector<FusedMatmulParams> launched;
CUstream_st* const kStream = reinterpret_cast<CUstream_st*>(64);

TEST(FusedPreparedTest, LaunchesDifferInLaunchNumberAbortWordAndGuard) {
  launched.clear();
  const auto launch = [](const FusedMatmulParams& params, const FusedVariant& variant, int ctas,
                         CUstream_st* stream) {
    EXPECT_EQ(variant.tile_n, 224);
    EXPECT_EQ(ctas, 130);
    EXPECT_EQ(stream, kStream);
    launched.push_back(params);
    return launched.size() < 4 ? Status::Ok() : Internal("refused");
  };
  FusedMatmulParams params = {};
  params.units = 77;
  params.piece[3].a_slice = 5;
  FusedVariant variant = {};
  variant.tile_n = 224;
  std::unique_ptr<PreparedWork> prepared = std::make_unique<PreparedFused>(params, &variant, 130);
  const PreparedWork* const made = prepared.get();
  CollectiveArgs args;  // no product: what was made is not made again
  args.prepared = &prepared;
  Word guard{0}, abort{0};
  args.launch_number = 3;
  args.abort_word = &abort;
  ASSERT_TRUE(EnqueueFused(args, {}, kStream, launch).ok());
  args.guard = {.word = &guard, .value = 3};
  ASSERT_TRUE(EnqueueFused(args, {}, kStream, launch).ok());
  args.launch_number = 5;
  args.guard = {};
  args.abort_word = nullptr;
  ASSERT_TRUE(EnqueueFused(args, {}, kStream, launch).ok());
  EXPECT_EQ(prepared.get(), made);
  ASSERT_EQ(launched.size(), 3u);
  for (const FusedMatmulParams& each : launched) {
    EXPECT_EQ(each.units, 77);
    EXPECT_EQ(each.piece[3].a_slice, 5);
  }
  EXPECT_EQ(launched[0].launch_number, 3u);
  EXPECT_EQ(launched[0].guard_word, nullptr);
  EXPECT_EQ(launched[0].abort_word, reinterpret_cast<const uint64_t*>(&abort));
  EXPECT_EQ(launched[0].timeout_ns, kNoTimeLimit) << "the abort word ends its waits, or nothing";
  EXPECT_EQ(launched[2].timeout_ns, kUnabortedLimitNs) << "it has none";
  EXPECT_EQ(launched[1].launch_number, 3u);
  EXPECT_EQ(launched[1].guard_word, reinterpret_cast<const uint64_t*>(&guard));
  EXPECT_EQ(launched[1].guard_value, 3u);
  EXPECT_EQ(launched[2].launch_number, 5u);
  EXPECT_EQ(launched[2].guard_word, nullptr);
  EXPECT_EQ(launched[2].abort_word, nullptr);
  EXPECT_EQ(EnqueueFused(args, {}, kStream, launch).code(), Code::kInternal);
}

}  // namespace
}  // namespace tandem::cuda
