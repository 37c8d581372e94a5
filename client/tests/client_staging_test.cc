// Operands of client-placed fused matmuls that TMA cannot address: which are copied, and how.
#include "client/lib/client_launch/cuda/client_staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"
#include "tandem/op_request.h"

namespace tandem::client {
namespace {

using testing::HasSubstr;

constexpr size_t kA = 0, kB = 1, kC = 2, kBias = 3;

std::byte* Address(size_t slot, size_t shift = 0) {
  return reinterpret_cast<std::byte*>(0x1'0000'0000 + 0x100'0000 * slot + shift);
}

Operand Tensor(Role role, std::vector<int64_t> shape, bool symmetric = false) {
  return {role, {DType::kBf16, std::move(shape), {}}, symmetric, -1};
}

class ClientStagingTest : public testing::Test {
 protected:
  void Make(Op op, bool symmetric_c = false) {
    const bool scatters = op == Op::kMatmulReduceScatter;
    OpRequest request;
    request.op = op;
    request.algorithm = Algorithm::kFused;
    request.operands = {Tensor(Role::kA, {2048, 128}), Tensor(Role::kB, {128, 256}),
                        Tensor(Role::kC, {scatters ? 1024 : 2048, 256}, symmetric_c),
                        Tensor(Role::kBias, {256})};
    plan::GroupContext group;
    group.topology = EmulatedTopology(2);
    group.fused_kernels = true;
    group.placement = plan::PlanPlacement::kClient;
    group.client_kernels = plan::ClientKernels::kFused;
    auto plan = plan::MakePlan(std::vector<OpRequest>(2, request), group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    std::vector<runtime::SlotLimit> limits;
    slots_.clear();
    for (size_t slot = 0; slot < request.operands.size(); ++slot) {
      limits.push_back({static_cast<uint64_t>(*BoundBytes(request, static_cast<int>(slot))),
                        request.operands[slot].symmetric});
      slots_.push_back({Address(slot), {}});
    }
    staging_ = std::make_unique<ClientStaging>(plan->programs[0], limits);
  }
  Result<ClientStaging::Staged> Prepared() {
    return staging_->PreparedFor(slots_, [this](size_t bytes) -> Result<std::shared_ptr<std::byte>> {
      allocated_.push_back(bytes);
      return std::shared_ptr<std::byte>(std::shared_ptr<void>(), Address(20 + allocated_.size()));
    });
  }

  std::unique_ptr<ClientStaging> staging_;
  std::vector<runtime::SlotAddress> slots_;
  std::vector<size_t> allocated_;
};

TEST_F(ClientStagingTest, AlignedOperandsStayWhereTheyAre) {
  Make(Op::kMatmulReduceScatter);
  slots_[kA].own = Address(kA, 16);
  slots_[kBias].own = Address(kBias, 2);  // which no TMA reads
  const auto staged = Prepared();
  ASSERT_TRUE(staged.ok()) << staged.status().ToString();
  EXPECT_EQ(staged->slots, slots_);
  EXPECT_TRUE(staged->before.empty());
  EXPECT_TRUE(staged->after.empty());
  EXPECT_TRUE(allocated_.empty());
}

TEST_F(ClientStagingTest, AnInputIsCopiedBeforeTheKernels) {
  Make(Op::kMatmulAllReduce);
  slots_[kB].own = Address(kB, 2);
  const auto staged = Prepared();
  ASSERT_TRUE(staged.ok()) << staged.status().ToString();
  ASSERT_EQ(staged->before.size(), 1u);
  EXPECT_EQ(staged->before[0].from, slots_[kB].own);
  EXPECT_EQ(staged->before[0].to, staged->slots[kB].own);
  EXPECT_EQ(staged->before[0].bytes, size_t{128} * 256 * 2);
  EXPECT_NE(staged->slots[kB].own, slots_[kB].own);
  EXPECT_EQ(staged->slots[kA].own, slots_[kA].own);
  EXPECT_TRUE(staged->after.empty());
}

TEST_F(ClientStagingTest, AnOutputIsCopiedBack) {
  Make(Op::kMatmulReduceScatter);
  slots_[kC].own = Address(kC, 8);
  const auto staged = Prepared();
  ASSERT_TRUE(staged.ok()) << staged.status().ToString();
  ASSERT_EQ(staged->before.size(), 1u);
  ASSERT_EQ(staged->after.size(), 1u);
  EXPECT_EQ(staged->after[0].to, slots_[kC].own);
  EXPECT_EQ(staged->after[0].from, staged->slots[kC].own);
  EXPECT_EQ(staged->after[0].bytes, size_t{1024} * 256 * 2);
}

TEST_F(ClientStagingTest, MemoryIsAllocatedOnce) {
  Make(Op::kMatmulReduceScatter);
  slots_[kA].own = Address(kA, 2);
  const auto first = Prepared();
  slots_[kA].own = Address(kA, 4);
  const auto second = Prepared();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first->slots[kA].own, second->slots[kA].own);
  EXPECT_EQ(second->before[0].from, Address(kA, 4));
  EXPECT_EQ(allocated_.size(), 1u);
}

TEST_F(ClientStagingTest, PeersWriteToSymmetricOutputs) {
  Make(Op::kMatmulAllReduce, /*symmetric_c=*/true);
  slots_[kC].own = Address(kC, 4);
  const Status refused = Prepared().status();
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("symmetric output"));
  EXPECT_EQ(refused.detail().field, "bindings[2]");
}

TEST_F(ClientStagingTest, AFailedAllocationIsTheLaunchs) {
  Make(Op::kMatmulReduceScatter);
  slots_[kA].own = Address(kA, 2);
  const auto staged = staging_->PreparedFor(
      slots_, [](size_t) -> Result<std::shared_ptr<std::byte>> { return ResourceExhausted("no memory"); });
  EXPECT_EQ(staged.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::client
