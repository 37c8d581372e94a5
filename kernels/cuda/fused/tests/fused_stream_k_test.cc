// Tiles that clusters share: every stage of every unit is computed once, and none waits for who may not have
// begun.
#include "kernels/cuda/fused/fused_stream_k.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace tandem::cuda {
namespace {

// Returns the objection to `split`; empty: none.
std::string Fault(const StreamKSplit& split) {
  std::vector<std::vector<int>> taken(static_cast<size_t>(split.units),
                                      std::vector<int>(static_cast<size_t>(split.k_blocks)));
  std::map<int, int> left;  // by segment: the unit whose sums it leaves
  for (int segment = 0; segment < split.segments; ++segment) {
    StreamKPart parts[2];
    const int count = PartsOf(split, segment, parts);
    for (int i = 0; i < count; ++i) {
      const StreamKPart& part = parts[i];
      const int unit = part.unit - split.from;
      if (unit < 0 || unit >= split.units) return "a unit that is not shared";
      if (part.blocks < 2 || part.first_block < 0 || part.first_block + part.blocks > split.k_blocks)
        return "stages out of range";
      for (int block = part.first_block; block < part.first_block + part.blocks; ++block) {
        ++taken[static_cast<size_t>(unit)][static_cast<size_t>(block)];
      }
      if (part.finishes != (part.first_block + part.blocks == split.k_blocks))
        return "who finishes is not who has the last stages";
      if (!part.finishes) {
        if (i > 0) return "it finishes a unit before it leaves what others wait for";
        if (!left.emplace(segment, unit).second) return "one area for two sums";
        continue;
      }
      if (part.peer_ctas > kMaxPeerCtas) return "too many peer_ctas";
      int stages = part.blocks;
      for (int peer_cta = segment - part.peer_ctas; peer_cta < segment; ++peer_cta) {
        if (left.count(peer_cta) == 0 || left[peer_cta] != unit)
          return "it waits for sums that nobody leaves";
        left.erase(peer_cta);
        StreamKPart of_peer_cta[2];
        PartsOf(split, peer_cta, of_peer_cta);
        stages += of_peer_cta[0].blocks;
      }
      if (stages != split.k_blocks) return "sums are missing";
    }
  }
  if (!left.empty()) return "sums that nobody adds";
  for (const auto& unit : taken) {
    for (int times : unit) {
      if (times != 1) return "a stage is computed " + std::to_string(times) + " times";
    }
  }
  return "";
}

TEST(SplitLastWave, EveryStageIsComputedOnceAndNoneWaitsForALaterSegment) {
  int shared = 0;
  for (int64_t clusters : {1, 2, 3, 5, 6, 64, 65, 66, 130, 132, 144}) {
    for (int64_t units = 1; units <= 3 * clusters; ++units) {
      for (int64_t k_blocks : {1, 2, 3, 7, 12, 16, 63, 64, 112, 128}) {
        const StreamKSplit split = SplitLastWave(units, clusters, k_blocks, 256, 0);
        if (split.units == 0) continue;
        ++shared;
        ASSERT_EQ(split.from + split.units, units);
        ASSERT_EQ(split.from % clusters, 0);
        ASSERT_LE(split.segments, clusters);
        ASSERT_LT(split.blocks, split.k_blocks) << "nothing is saved";
        ASSERT_EQ(Fault(split), "") << units << " units, " << clusters << " clusters, " << k_blocks
                                    << " stages";
      }
    }
  }
  EXPECT_GT(shared, 1000);
}

TEST(SplitLastWave, SharesWhereItSavesMoreThanItCosts) {
  // 8192×7168 in tiles of 128×256 on 66 clusters of two: 38 units of a last wave.
  const StreamKSplit split = SplitLastWave(896, 66, 128, 256);
  EXPECT_EQ(split.from, 858);
  EXPECT_EQ(split.units, 38);
  EXPECT_EQ(split.blocks, 74);
  EXPECT_EQ(split.segments, 66);
  EXPECT_EQ(SplitLastWave(858, 66, 128, 256).units, 0) << "no last wave";
  EXPECT_EQ(SplitLastWave(64, 66, 128, 256).units, 0) << "nearly all clusters have one";
  EXPECT_EQ(SplitLastWave(38, 66, 16, 256).units, 0) << "tiles are short";
  // One unit is not cut into more parts than are summed.
  EXPECT_LE(SplitLastWave(67, 66, 128, 256).segments, kMaxPeerCtas);
  EXPECT_EQ(SplitLastWave(5, 0, 128, 256).units, 0);
}

TEST(WavesOf, CountsASharedWaveByItsSegments) {
  EXPECT_DOUBLE_EQ(WavesOf(896, 66, 128, 256, false), 14);
  EXPECT_DOUBLE_EQ(WavesOf(896, 66, 128, 256, true), 13 + (74 + kPartCost) / 128.0);
  EXPECT_DOUBLE_EQ(WavesOf(858, 66, 128, 256, true), 13);
}

}  // namespace
}  // namespace tandem::cuda
