// The requests of `tandemctl tune`, and its statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/tandemctl/tune_options.h"
#include "client/tandemctl/tune_setup.h"
#include "client/tandemctl/tuning_views.h"

namespace tandem::ctl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> Names(const std::vector<TuneCandidate>& candidates) {
  std::vector<std::string> names;
  for (const TuneCandidate& candidate : candidates) names.push_back(candidate.Name());
  return names;
}

constexpr int kWorld = 4;

TuneCase Case(const std::string& op, const std::string& shape, const std::string& dtype = "bf16") {
  TuneCase one;
  one.what.op = op;
  one.what.dtype = dtype;
  one.shape = shape;
  return one;
}

std::vector<std::vector<int64_t>> Shapes(const TuneCase& one) {
  Result<OpRequest> request = TuneRequest(one, kWorld);
  EXPECT_TRUE(request.ok()) << request.status().ToString();
  std::vector<std::vector<int64_t>> shapes;
  if (!request.ok()) return shapes;
  for (const Operand& operand : request->operands) shapes.push_back(operand.spec.shape);
  return shapes;
}

using Shape = std::vector<int64_t>;

TEST(TuneSetup, TheShapeIsThatOfTheWholeProduct) {
  EXPECT_THAT(Shapes(Case("all_gather_matmul", "64,32,16")),
              ElementsAre(Shape{16, 16}, Shape{16, 32}, Shape{64, 32}));
  EXPECT_THAT(Shapes(Case("matmul_reduce_scatter", "64x32x16")),
              ElementsAre(Shape{64, 16}, Shape{16, 32}, Shape{16, 32}));
  EXPECT_THAT(Shapes(Case("matmul_all_reduce", "64x32x16")),
              ElementsAre(Shape{64, 16}, Shape{16, 32}, Shape{64, 32}));
  EXPECT_THAT(Shapes(Case("all_reduce", "1000", "f32")), ElementsAre(Shape{1000}, Shape{1000}));
  TuneCase row_wise = Case("all_gather_matmul", "64x32x16", "f8e4m3");
  row_wise.scales = "row_wise";
  EXPECT_THAT(Shapes(row_wise),
              ElementsAre(Shape{16, 16}, Shape{16, 32}, Shape{64, 32}, Shape{16, 1}, Shape{1, 32}));
  // By blocks they lie as cuBLASLt reads them: nothing is arranged anew.
  TuneCase blocks = Case("all_gather_matmul", "64x160x640", "f8e4m3");
  blocks.scales = "block_wise";
  EXPECT_THAT(Shapes(blocks),
              ElementsAre(Shape{16, 640}, Shape{640, 160}, Shape{64, 160}, Shape{16, 5}, Shape{5, 2}));
  Result<OpRequest> request = TuneRequest(blocks, kWorld);
  EXPECT_EQ(request->operands[3].spec.strides, (Shape{1, 16}));
  EXPECT_EQ(request->operands[4].spec.strides, (Shape{1, 8}));
}

TEST(TuneSetup, WhatCannotBeTunedIsRefused) {
  EXPECT_THAT(TuneRequest(Case("barrier", "1"), kWorld).status().message(), HasSubstr("no choice"));
  EXPECT_THAT(TuneRequest(Case("all_gather_matmul", "64x32"), kWorld).status().message(), HasSubstr("MxNxK"));
  EXPECT_THAT(TuneRequest(Case("all_gather_matmul", "63x32x16"), kWorld).status().message(),
              HasSubstr("divisible"));
  TuneCase scaled = Case("all_reduce", "64");
  scaled.scales = "row_wise";
  EXPECT_FALSE(TuneRequest(scaled, kWorld).ok());
  scaled = Case("all_gather_matmul", "64x32x16");
  scaled.scales = "block_wise";
  EXPECT_THAT(TuneRequest(scaled, kWorld).status().message(), HasSubstr("fp8"));
  scaled.what.dtype = "f8e4m3";
  scaled.scales = "by_the_yard";
  EXPECT_THAT(TuneRequest(scaled, kWorld).status().message(), HasSubstr("block_wise"));
  EXPECT_FALSE(TuneRequest(Case("all_reduce", "64"), 1).ok());
  EXPECT_FALSE(TuneRequest(Case("all_reduce", "64"), 9).ok());
}

TEST(TuneSetup, CandidatesAreReadAndNamed) {
  auto parsed = ParseCandidates("ring:8x2,pipeline:x3,ring:4,unfused,ring:8x2", Op::kAllGatherMatmul);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_THAT(Names(*parsed), ElementsAre("ring 8x2", "pipeline x3", "ring 4", "unfused"));
  for (const char* wrong :
       {"", "ring:", "ring:x", "ring:8x2x", "ring:-8", "one_shot", "rong", "ring,,unfused"}) {
    EXPECT_FALSE(ParseCandidates(wrong, Op::kAllGatherMatmul).ok()) << wrong;
  }
}

TEST(TuneSetup, ByDefaultAllAreTriedButThoseOnRequestOnly) {
  EXPECT_THAT(
      Names(DefaultCandidates(Op::kMatmulReduceScatter)),
      ElementsAre("pipeline", "pipeline x3", "pipeline x4", "fused", "low_latency", "unfused", "nccl"));
  EXPECT_THAT(Names(DefaultCandidates(Op::kMatmulAllReduce)),
              ElementsAre("fused", "low_latency", "unfused", "nccl"));
  EXPECT_TRUE(ParseCandidates("tiled_two_shot:x4", Op::kMatmulAllReduce).ok()) << "by name";
  EXPECT_THAT(Names(DefaultCandidates(Op::kAllReduce)),
              ElementsAre("one_shot", "two_shot", "hybrid_cube_mesh", "copy_engine", "low_latency", "nccl"));
}

TEST(TuneOptions, AFileHasACaseForEachShapeOfEachLine) {
  auto cases = ParseTuneCases(
      "# the layers\n\n--op all_gather_matmul --shape 64,32,16 128x32x16  # two\n"
      "  --op=matmul_reduce_scatter --dtype f8e4m3 --scales row_wise --slow-accumulation --shape 64,32,16 "
      "--candidates ring,unfused\n"
      "--op all_reduce --dtype f32 --symmetric --shape 1000",
      "f");
  ASSERT_TRUE(cases.ok()) << cases.status().ToString();
  std::vector<std::string> names;
  for (const TuneCase& one : *cases) names.push_back(one.Name());
  EXPECT_THAT(names, ElementsAre("all_gather_matmul 64x32x16 bf16", "all_gather_matmul 128x32x16 bf16",
                                 "matmul_reduce_scatter 64x32x16 f8e4m3 row_wise slow_accumulation",
                                 "all_reduce 1000 f32 symmetric"));
  EXPECT_EQ((*cases)[2].candidates, "ring,unfused");
  EXPECT_EQ((*cases)[3].candidates, "") << "a line says nothing of the next";
}

// As jobs call them: B's columns are contiguous, and the sum is what was asked for.
TEST(TuneSetup, Float8LiesAsProductsTakeIt) {
  for (bool slow : {false, true}) {
    TuneCase one;
    one.what.op = "all_gather_matmul";
    one.what.dtype = "f8e4m3";
    one.what.slow_accumulation = slow;
    one.shape = "64x32x16";
    auto request = TuneRequest(one, 4);
    ASSERT_TRUE(request.ok()) << request.status().ToString();
    EXPECT_EQ(request->fast_accumulation, !slow);
    EXPECT_THAT(request->operands[1].spec.shape, ElementsAre(16, 32));
    EXPECT_THAT(request->operands[1].spec.strides, ElementsAre(1, 16));
  }
}

TEST(TuneOptions, ALineThatIsNoneIsNamedByItsNumber) {
  const std::string good = "--op all_reduce --shape 64\n";
  ASSERT_TRUE(ParseTuneCases(good, "f").ok());
  const auto refusal = [](const std::string& text) { return ParseTuneCases(text, "f").status().message(); };
  EXPECT_THAT(refusal(good + "--op all_reduce"), HasSubstr("f:2: --shape is required"));
  EXPECT_THAT(refusal(good + "\n--shape 64"), HasSubstr("f:3: --op is required"));
  EXPECT_THAT(refusal("--op all_reduce --shape 64 --world 4"), HasSubstr("f:1: "));
  EXPECT_THAT(refusal("--help"), HasSubstr("f:1: "));
  EXPECT_THAT(refusal("# nothing\n"), HasSubstr("f has no case"));
}

TEST(TuneSetup, RoundsAreSummarised) {
  admin::v1::TuningCandidate candidate;
  Summarise({9, 1, 5, 3, 7, 2, 8, 4, 6, 10}, &candidate);
  EXPECT_EQ(candidate.samples(), 10);
  EXPECT_EQ(candidate.median_us(), 5.5);
  EXPECT_EQ(candidate.p10_us(), 1);
  EXPECT_EQ(candidate.p90_us(), 9);
  Summarise({4}, &candidate);
  EXPECT_EQ(candidate.median_us(), 4);
  EXPECT_EQ(candidate.p10_us(), 4);
  EXPECT_EQ(candidate.p90_us(), 4);
  EXPECT_EQ(BatchOf(10), 200);
  EXPECT_EQ(BatchOf(1000), 6);
  EXPECT_EQ(BatchOf(1e6), 1);
}

TEST(TuneSetup, ARefusalIsCutToItsReason) {
  EXPECT_EQ(
      ShortRefusal("rank 0: key 'c1' of group 'tune': all_gather_matmul cannot run by fused: needs Hopper "
                   "(pipeline: possible; ring: possible)",
                   Op::kAllGatherMatmul),
      "needs Hopper");
  EXPECT_EQ(ShortRefusal("something \n else", Op::kAllReduce), "something ? else");
  EXPECT_EQ(ShortRefusal(std::string(1000, 'x'), Op::kAllReduce).size(), 256u);
}

TEST(TuningViews, AnEntryShowsItsCandidatesAndWhyOthersWereNot) {
  admin::v1::ListTuningReply reply;
  EXPECT_THAT(TuningText(reply), HasSubstr("nothing has been measured"));
  auto* entry = reply.add_entries();
  entry->set_id("0123456789abcdef");
  entry->set_op(static_cast<uint32_t>(Op::kAllGatherMatmul));
  for (int64_t extent : {64, 32, 16}) entry->add_shape(extent);
  entry->set_types("bf16 x bf16 -> bf16");
  entry->set_world_size(4);
  auto* ring = entry->add_candidates();
  ring->set_algorithm(static_cast<uint32_t>(Algorithm::kRing));
  ring->set_steps(8);
  Summarise({20}, ring);
  auto* slow = entry->add_candidates();
  slow->set_algorithm(static_cast<uint32_t>(Algorithm::kUnfused));
  Summarise({30}, slow);
  auto* fused = entry->add_candidates();
  fused->set_algorithm(static_cast<uint32_t>(Algorithm::kFused));
  fused->set_refused("needs Hopper");
  reply.add_refused_files("bad.toml: format 7");
  const std::string list = TuningText(reply);
  for (const char* word :
       {"0123456789abcdef", "64x32x16", "ring 8", "20.0 us", "not used: bad.toml: format 7"}) {
    EXPECT_THAT(list, HasSubstr(word));
  }
  const std::string text = TuningEntryText(reply.entries(0));
  for (const char* word : {"ring 8", "1.50", "needs Hopper"}) EXPECT_THAT(text, HasSubstr(word));
}

}  // namespace
}  // namespace tandem::ctl
