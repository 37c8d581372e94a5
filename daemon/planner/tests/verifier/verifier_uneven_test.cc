// Fused all-reduces of any number of rows: how they are cut, that their programs are proven and right, and
// that nobody gets them unasked.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "daemon/planner/cost/measured.h"
#include "daemon/planner/families/skinny.h"
#include "daemon/planner/problem/fused_checks.h"
#include "daemon/planner/tests/reference/reference_cases.h"
#include "daemon/planner/tests/reference/reference_ops.h"

namespace tandem::plan {
namespace {

OpRequest AllReduce(int64_t m, int64_t n, int64_t k, DType out, bool symmetric = false) {
  OpRequest r;
  r.op = Op::kMatmulAllReduce;
  r.algorithm = Algorithm::kFused;
  r.operands = {MakeOperand(Role::kA, DType::kBf16, {m, k}), MakeOperand(Role::kB, DType::kBf16, {k, n}),
                MakeOperand(Role::kC, out, {m, n}, symmetric)};
  return r;
}

GroupContext UnevenGroup(int world) {
  GroupContext group = ReferenceSwitchGroup(world);
  group.fused_kernels = true;
  return group;
}

std::string Check(const OpRequest& request, int world, const CheckOptions& options,
                  OperationPlan* plan = nullptr) {
  return CheckRequests(std::vector<OpRequest>(static_cast<size_t>(world), request), UnevenGroup(world),
                       options, plan);
}

// Every row belongs to one part, parts are of kernel rows but the last where that costs little, and there is
// a word for each band.
TEST(UnevenRows, AreCutIntoPartsThatHoldThemAll) {
  for (int world = 2; world <= 8; ++world) {
    for (int64_t m : {1, 2, 7, 9, 37, 129, 1037, 2047, 4001, 8192, 8229, 16385, 70001}) {
      for (int64_t n : {8, 8192}) {
        const FusedTileCut cut = CutFusedTiles(m, n, world);
        int64_t rows = 0, whole = 0, parts = 0;
        for (int owner = 0; owner < world; ++owner) {
          const Range range = cut.Rows(owner);
          if (range.length == 0) continue;
          EXPECT_EQ(range.begin, owner * cut.rows);
          EXPECT_EQ(range.length, std::min(cut.rows, m - range.begin));
          rows += range.length;
          whole += range.length == cut.rows;
          ++parts;
        }
        EXPECT_EQ(rows, m) << world << " ranks";
        EXPECT_EQ(parts, cut.parts());
        EXPECT_GE(whole + 1, cut.parts());
        if (cut.rows != (m + world - 1) / world) {
          EXPECT_EQ(cut.rows % 128, 0);
          EXPECT_LE(world * cut.rows - m, m / 8);
        }
        EXPECT_EQ(cut.bands > 1, n > 1024 && !IsOneFusedWave(cut.parts(), cut.rows, n))
            << m << " " << n << " " << world;
        EXPECT_LE(cut.bands, 16);
      }
    }
  }
  EXPECT_EQ(CutFusedTiles(8200, 8192, 2).rows, 4100);
  EXPECT_EQ(CutFusedTiles(8229, 8192, 2).rows, 4224) << "whole tiles of the kernel";
  EXPECT_EQ(CutFusedTiles(8229, 8192, 2).Rows(1).length, 8229 - 4224);
  EXPECT_EQ(CutFusedTiles(4097, 256, 2).bands, 1) << "a single wave hides nothing";
  // About a wave of tiles a band.
  EXPECT_EQ(CutFusedTiles(2048, 8192, 4).bands, 4);
  EXPECT_EQ(CutFusedTiles(4096, 8192, 4).bands, 8);
  EXPECT_EQ(CutFusedTiles(16384, 8192, 4).bands, 8) << "no narrower";
  EXPECT_EQ(CutFusedTiles(16384, 65536, 4).bands, 16) << "no more words";
}

// Short parts, and owners of none. bf16 is the skinny kernel, f32 the other.
TEST(UnevenRows, ArePlannedForAnyNumberOfRanks) {
  CheckOptions options;
  options.seeds = {1};
  options.launches = 2;
  for (int world = 2; world <= 8; ++world) {
    for (int64_t m : {1, 2, 3, world - 1, world + 1, 2 * world - 1, 2 * world + 1, 37}) {
      for (DType out : {DType::kBf16, DType::kF32}) {
        for (bool symmetric : {false, true}) {
          if (symmetric && (world % 3 != 2 || m > 9)) continue;
          OpRequest r = AllReduce(m, 8, 8, out, symmetric);
          r.operands.push_back(MakeOperand(Role::kBias, DType::kF32, {8}));
          OperationPlan plan;
          ASSERT_EQ(Check(r, world, options, &plan), "")
              << m << " rows, " << world << " ranks, " << DTypeName(out);
          EXPECT_EQ(plan.reason.find("skinny") != std::string::npos, out == DType::kBf16);
          EXPECT_EQ(plan.lanes, 1);
          EXPECT_TRUE(plan.deterministic);
        }
      }
    }
  }
}

// fp8 with a factor for each row, and leading dimensions.
TEST(UnevenRows, HaveScalesOfTheirOwn) {
  for (int world : {2, 3, 4}) {
    for (DType out : {DType::kBf16, DType::kF32}) {
      OpRequest r = AllReduce(1, 16, 16, out);
      r.operands = {MakeOperand(Role::kA, DType::kF8E4M3, {1, 7, 16}),
                    MakeOperand(Role::kB, DType::kF8E4M3, {16, 16}, false, {1, 16}),
                    MakeOperand(Role::kC, out, {1, 7, 16}),
                    MakeOperand(Role::kScaleA, DType::kF32, {1, 7, 1}),
                    MakeOperand(Role::kScaleB, DType::kF32, {1, 16}),
                    MakeOperand(Role::kResultScale, DType::kF32, {1})};
      r.fast_accumulation = true;
      if (world == 2) r.operands.pop_back();
      EXPECT_EQ(Check(r, world, {}), "") << world << " " << DTypeName(out);
    }
  }
}

// More than a wave, a short part and none: proven, not computed.
TEST(UnevenRows, AreProvenBeyondAWave) {
  struct Large {
    int world;
    int64_t m, n;
    int parts;
  };
  const Large all[] = {
      {2, 8229, 8192, 2}, {3, 8192, 8192, 3}, {8, 16391, 1024, 8}, {2, 1037, 65536, 2}, {8, 9, 65536, 5}};
  for (const Large& large : all) {
    for (bool symmetric : {false, true}) {
      CheckOptions options;
      options.seeds = {};
      options.verify_queues = {0, 2, 3};
      OperationPlan plan;
      ASSERT_EQ(Check(AllReduce(large.m, large.n, 8, DType::kF32, symmetric), large.world, options, &plan),
                "")
          << large.m;
      EXPECT_EQ(plan.lanes, 2);
      EXPECT_EQ(plan.steps, large.parts) << large.m;
    }
  }
}

TEST(UnevenRows, LayOutSkinnyWithShortPartsLast) {
  const auto layout = MakeSkinnyLayout(SkinnyKind::kAllReduce, 4, 9, 64, 64, 2, 2, false);
  ASSERT_TRUE(layout.has_value());
  EXPECT_EQ(layout->rows, 3);
  std::vector<int64_t> rows;
  for (int rank = 0; rank < 4; ++rank) rows.push_back(layout->rows_of(rank));
  EXPECT_EQ(rows, (std::vector<int64_t>{3, 3, 3, 0}));
  EXPECT_EQ(layout->first_row(3), 9);
  EXPECT_EQ(MakeSkinnyLayout(SkinnyKind::kAllReduce, 4, 10, 64, 64, 2, 2, false)->rows_of(3), 1);
  EXPECT_EQ(MakeSkinnyLayout(SkinnyKind::kAllReduce, 8, 3, 64, 64, 2, 2, false)->rows_of(3), 0);
  EXPECT_FALSE(MakeSkinnyLayout(SkinnyKind::kScatter, 4, 9, 64, 64, 2, 2, false).has_value());
  EXPECT_FALSE(MakeSkinnyLayout(SkinnyKind::kGather, 4, 9, 64, 64, 2, 2, false).has_value());
  EXPECT_FALSE(MakeSkinnyLayout(SkinnyKind::kAllReduce, 4, 1025, 64, 64, 2, 2, false).has_value());
}

// A time of another shape is none of this one.
TEST(UnevenRows, RunWhenTheyAreAskedForOrMeasuredThemselves) {
  GroupContext group = UnevenGroup(2);
  group.fused_by_choice = true;
  group.gpu_model = "a GPU";
  const auto plan_of = [&group](int64_t m) {
    OpRequest r = AllReduce(m, 8192, 8192, DType::kBf16);
    r.algorithm = Algorithm::kAuto;
    return *MakePlan(std::vector<OpRequest>(2, r), group);
  };
  const auto reason_of = [](const OperationPlan& plan) {
    for (const RefusedAlgorithm& refused : plan.refused) {
      if (refused.algorithm == Algorithm::kFused) return refused.reason;
    }
    return std::string("chosen");
  };
  const std::string unequal = "runs when it is asked for: with parts of unequal rows nobody has measured it";
  EXPECT_EQ(reason_of(plan_of(4097)), unequal);
  EXPECT_EQ(reason_of(plan_of(4096)).find("unequal"), std::string::npos);

  TuningTable table;
  group.tuning = &table;
  const auto measure = [&](int64_t m) {
    OpRequest r = AllReduce(m, 8192, 8192, DType::kBf16);
    r.algorithm = Algorithm::kAuto;
    TuningEntry entry = *Unmeasured(std::vector<OpRequest>(2, r), group);
    entry.measured_at = "2026-01-31T12:00:00Z";
    entry.version = "0.1.0";
    entry.candidates.resize(2);
    entry.candidates[0].algorithm = Algorithm::kFused;
    entry.candidates[1].algorithm = Algorithm::kUnfused;
    for (size_t i = 0; i < 2; ++i) {
      TuningCandidate& candidate = entry.candidates[i];
      candidate.median_us = candidate.p10_us = candidate.p90_us = 100.0 * static_cast<double>(i + 1);
      candidate.samples = 9;
    }
    ASSERT_TRUE(CheckTuningEntry(&entry).ok());
    table.Put(entry);
  };
  measure(4096);
  EXPECT_EQ(plan_of(4096).algorithm, Algorithm::kFused);
  const OperationPlan near = plan_of(4097);
  EXPECT_EQ(near.algorithm, Algorithm::kUnfused);
  EXPECT_NE(reason_of(near).find(unequal), std::string::npos) << reason_of(near);
  // A requested algorithm runs.
  EXPECT_EQ(MakePlan(std::vector<OpRequest>(2, AllReduce(4097, 8192, 8192, DType::kBf16)), group)->algorithm,
            Algorithm::kFused);
}

}  // namespace
}  // namespace tandem::plan
