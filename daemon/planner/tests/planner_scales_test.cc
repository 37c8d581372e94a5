// Scales by blocks: what their shapes mean, what is refused and why, and who takes them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/tests/planner_fixtures.h"

namespace tandem::plan {
namespace {

using testing::HasSubstr;

// Two blocks of K, two of N.
OpRequest BlockGather() {
  return Request(Op::kAllGatherMatmul,
                 {Tensor(Role::kA, DType::kF8E4M3, {3, 200}), Tensor(Role::kB, DType::kF8E4M3, {200, 130}),
                  Tensor(Role::kC, DType::kBf16, {12, 130}), Tensor(Role::kScaleA, DType::kF32, {3, 2}),
                  Tensor(Role::kScaleB, DType::kF32, {2, 2})});
}

TEST(BlockScales, TheirShapesSayWhoHasThem) {
  const auto mode = [](const OpRequest& request) {
    auto plan = PlanOf(request, SwitchGroup(4));
    return plan.ok() ? plan->scale_mode : plan.status().ToString();
  };
  OpRequest gather = BlockGather();
  EXPECT_EQ(mode(gather), "block_wise_sharded");
  gather.operands[3].spec.shape = {12, 2};
  EXPECT_EQ(mode(gather), "block_wise_replicated");
  gather.operands[4].spec.shape = {2, 130};  // by column
  EXPECT_EQ(mode(gather), "block_wise_replicated");
  OpRequest reduce = BlockGather();
  reduce.op = Op::kMatmulAllReduce;
  reduce.operands[2].spec.shape = {3, 130};
  EXPECT_EQ(mode(reduce), "block_wise");
  // One block of K: A's are one a row either way, and B's say which it is.
  OpRequest one = BlockGather();
  one.operands[0].spec.shape = {3, 128};
  one.operands[1].spec.shape = {128, 130};
  one.operands[3].spec.shape = {3, 1};
  one.operands[4].spec.shape = {1, 2};
  EXPECT_EQ(mode(one), "block_wise_sharded");
  one.operands[4].spec.shape = {1, 130};
  EXPECT_EQ(mode(one), "row_wise_sharded");
  // Gathering along K, a shard of one block: what is a row's scale and what a block's is B's to say.
  OpRequest along_k = BlockGather();
  along_k.dim = 1;
  along_k.operands[0].spec.shape = {3, 128};
  along_k.operands[1].spec.shape = {512, 130};
  along_k.operands[2].spec.shape = {3, 130};
  along_k.operands[3].spec.shape = {3, 1};
  along_k.operands[4].spec.shape = {4, 2};
  EXPECT_EQ(mode(along_k), "block_wise_sharded");
  along_k.operands[3].spec.shape = {3, 4};
  EXPECT_EQ(mode(along_k), "block_wise_replicated");
}

TEST(BlockScales, AreChecked) {
  const auto shape = [](int slot, std::vector<int64_t> extents) {
    return [slot, extents](OpRequest* r) { r->operands[static_cast<size_t>(slot)].spec.shape = extents; };
  };
  ExpectRefused(BlockGather(), shape(4, {3, 2}), "operands[4].shape",
                "[3, 2] is neither one element, nor [1, 130], nor by blocks [2, 2] or [2, 130]");
  ExpectRefused(BlockGather(), shape(3, {3, 3}), "operands[3].shape",
                "[3, 3] is not [3, 2] or [12, 2], as B's scales by blocks");
  ExpectRefused(BlockGather(), shape(3, {3, 1}), "operands[3].shape", "[3, 1] is not [3, 2] or [12, 2]");
  ExpectRefused(BlockGather(), shape(3, {}), "operands[3].shape", "as B's scales by blocks demand");
  ExpectRefused(BlockGather(), shape(4, {1, 130}), "operands[3].shape",
                "scales by blocks need B's by blocks");
  ExpectRefused(BlockGather(), shape(4, {1}), "operands[3].shape", "scales by blocks need B's by blocks");
  ExpectRefused(
      BlockGather(), [](OpRequest* r) { r->operands[4].spec.dtype = DType::kBf16; }, "operands[4].dtype",
      "f32");
  ExpectRefused(
      BlockGather(), [](OpRequest* r) { r->operands[3].spec.dtype = DType::kBf16; }, "operands[3].dtype",
      "f32");
  ExpectRefused(
      BlockGather(), [](OpRequest* r) { r->operands.erase(r->operands.begin() + 3); }, "operands[3].shape",
      "need an operand of role scale_a");
  // Several B: all by blocks, or none.
  OpRequest two = BlockGather();
  for (int slot : {1, 2, 4}) two.operands.push_back(two.operands[static_cast<size_t>(slot)]);
  ExpectRefused(two, shape(7, {1, 130}), "operands[7].shape", "must be by blocks");
  // Shards that end within a block.
  OpRequest along_k = BlockGather();
  along_k.dim = 1;
  along_k.operands[0].spec.shape = {3, 128};
  along_k.operands[1].spec.shape = {512, 130};
  along_k.operands[2].spec.shape = {3, 130};
  along_k.operands[3].spec.shape = {3, 1};
  along_k.operands[4].spec.shape = {4, 2};
  ExpectRefused(
      along_k,
      [](OpRequest* r) {
        r->operands[0].spec.shape = {3, 100};
        r->operands[1].spec.shape = {400, 130};
      },
      "operands[0].shape", "a multiple of 128");
}

TEST(BlockScales, FusedKernelsTakeThemWhenAsked) {
  OpRequest request = BlockGather();
  request.operands[0].spec = {DType::kF8E4M3, {2048, 7168}, {}};
  request.operands[1].spec = {DType::kF8E4M3, {7168, 4096}, {1, 7168}};
  request.operands[2].spec = {DType::kBf16, {8192, 4096}, {}};
  request.operands[3].spec = {DType::kF32, {2048, 56}, {1, 2048}};
  request.operands[4].spec = {DType::kF32, {56, 32}, {1, 56}};
  GroupContext group = SwitchGroup(4);
  group.packet_kernels = group.fused_kernels = group.fused_by_choice = true;
  const auto chosen = PlanOf(request, group);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  EXPECT_NE(chosen->algorithm, Algorithm::kFused) << "nobody has measured it";
  request.algorithm = Algorithm::kFused;
  const auto asked = PlanOf(request, group);
  ASSERT_TRUE(asked.ok()) << asked.status().ToString();
  EXPECT_EQ(asked->algorithm, Algorithm::kFused);
}

}  // namespace
}  // namespace tandem::plan
