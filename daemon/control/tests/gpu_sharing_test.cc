#include "daemon/control/base/gpu_sharing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tandem::daemon {
namespace {

using testing::HasSubstr;
using testing::Not;

MpsEndpoint At(const std::string& directory, uint64_t inode, bool answers = true) {
  return {.directory = directory, .answers = answers, .device = 1, .inode = inode};
}

TEST(PlacementTest, OneServerForAllIsFast) {
  // A container may know the directory by another name.
  GpuSharing placement = DescribeGpuSharing(true, {{"rank 0", At("/run/mps", 7), At("/run/mps", 7)},
                                                   {"rank 1", At("/mnt/mps", 7), At("/run/mps", 7)}});
  EXPECT_FALSE(placement.slow);
  EXPECT_THAT(placement.text, HasSubstr("share an MPS server"));
  EXPECT_THAT(placement.text, HasSubstr("12 us where it was measured (H200, two ranks)"));
  const GpuSharing alone = DescribeGpuSharing(true, {{"rank 0", At("/run/mps", 7), At("/run/mps", 7)}});
  EXPECT_THAT(alone.text, HasSubstr("8 us where it was measured (H200, one rank)"));
  EXPECT_TRUE(CheckGpuSharing(placement, OnSlowPlacement::kError).ok());
}

TEST(PlacementTest, NamesTheRanksThatTakeTurnsAndWhatItCosts) {
  GpuSharing placement =
      DescribeGpuSharing(true, {{"rank 0", At("/run/mps", 7), At("/run/mps", 7)},
                                {"rank 1", At("/tmp/nvidia-mps", 0, false), At("/run/mps", 7)},
                                {"rank 2", At("/run/other", 8), At("/run/mps", 7)}});
  EXPECT_TRUE(placement.slow);
  EXPECT_THAT(placement.text, Not(HasSubstr("rank 0")));
  EXPECT_THAT(placement.text,
              HasSubstr("rank 1's client runs without MPS (nothing answers at /tmp/nvidia-mps)"));
  EXPECT_THAT(placement.text,
              HasSubstr("rank 2's client runs under MPS at /run/other, its engine under MPS at /run/mps"));
  EXPECT_THAT(placement.text, HasSubstr("290 us"));
  EXPECT_TRUE(CheckGpuSharing(placement, OnSlowPlacement::kAllow).ok());
  EXPECT_TRUE(CheckGpuSharing(placement, OnSlowPlacement::kWarn).ok());
  Status refused = CheckGpuSharing(placement, OnSlowPlacement::kError);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_EQ(refused.detail().reason, "SLOW_PLACEMENT");
}

TEST(PlacementTest, WithoutAnyMpsItIsSlowToo) {
  GpuSharing placement = DescribeGpuSharing(
      true, {{"rank 0", At("/tmp/nvidia-mps", 3, false), At("/tmp/nvidia-mps", 3, false)}});
  EXPECT_TRUE(placement.slow);
}

TEST(PlacementTest, TheHostBackendKnowsNoMps) {
  GpuSharing placement = DescribeGpuSharing(false, {{"rank 0", {}, {}}});
  EXPECT_FALSE(placement.slow);
  EXPECT_EQ(placement.text, "daemon");
}

}  // namespace
}  // namespace tandem::daemon
