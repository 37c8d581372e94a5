// The parts of a client-placed launch on CUDA, without a GPU: the pieces of work in their order, and their
// places. Addresses are made up.
#include "client/lib/client_launch/cuda/cuda_client_work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "daemon/planner/planner.h"
#include "daemon/topology/topology.h"
#include "drivers/cuda/mock_cuda_driver.h"

namespace tandem::client {
namespace {

using cuda::ClientKernelLaunch;
using cuda::ClientPacketsLaunch;
using cuda::ClientPhasesLaunch;
using testing::_;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::NiceMock;
using testing::Return;

constexpr int kRank = 1;

std::byte* At(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }
std::byte* WorkspaceOf(int rank) { return At(0x1000'0000 + 0x1000'0000 * static_cast<uintptr_t>(rank)); }
std::byte* BulkOf(int rank) { return At(0x8000'0000 + 0x1000'0000 * static_cast<uintptr_t>(rank)); }
std::byte* SlotAt(size_t slot) { return At(0x1'0000'0000 + 0x100'0000 * slot); }

Operand Matrix(Role role, int64_t rows, int64_t columns) {
  return {role, {DType::kBf16, {rows, columns}, {}}, false, -1};
}

// A product of m rows, 64 columns and K = 128 on two ranks.
OpRequest Request(Op op, Algorithm algorithm, int64_t m) {
  const bool gathers = op == Op::kAllGatherMatmul, scatters = op == Op::kMatmulReduceScatter;
  OpRequest request;
  request.op = op;
  request.algorithm = algorithm;
  request.operands = {Matrix(Role::kA, gathers ? m / 2 : m, 128), Matrix(Role::kB, 128, 64),
                      Matrix(Role::kC, scatters ? m / 2 : m, 64)};
  return request;
}

class CudaClientWorkTest : public testing::Test {
 protected:
  CudaClientWorkTest() { ON_CALL(driver_, PointerGetAttribute(_, _, _)).WillByDefault(Return(Status::Ok())); }

  // Rank 1's work.
  void Make(const OpRequest& request) {
    plan::GroupContext group;
    group.topology = EmulatedTopology(2);
    group.packet_kernels = true;
    group.placement = plan::PlanPlacement::kClient;
    group.client_kernels = plan::ClientKernels::kFused;
    auto plan = plan::MakePlan(std::vector<OpRequest>(2, request), group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    Make(plan->programs[kRank], request, plan->workspace_bytes, plan->bulk_bytes);
  }
  void Make(const plan::RankProgram& program, const OpRequest& request, uint64_t half_bytes,
            uint64_t bulk_bytes) {
    ClientLaunchMemory memory;
    memory.half_bytes = (half_bytes + 255) / 256 * 256;
    memory.bulk_bytes = bulk_bytes;
    for (int rank = 0; rank < 2; ++rank) {
      const auto r = static_cast<size_t>(rank);
      memory.signals[r] = reinterpret_cast<Word*>(0x100000 + 0x100000 * r);
      memory.workspace[r] = WorkspaceOf(rank);
      memory.bulk[r] = BulkOf(rank);
    }
    std::vector<runtime::SlotLimit> limits;
    slots_.clear();
    for (size_t slot = 0; slot < request.operands.size(); ++slot) {
      limits.push_back({static_cast<uint64_t>(*BoundBytes(request, static_cast<int>(slot))), false});
      slots_.push_back({SlotAt(slot), {}});
    }
    auto made = CudaClientWork::Make(program, limits, memory);
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    work_ = *made;
  }
  // "product", "copy", "sum", "phases" or "packets", in the order of the launch.
  std::vector<std::string> Order() {
    auto steps = work_->PreparedFor(slots_, driver_);
    EXPECT_TRUE(steps.ok()) << steps.status().ToString();
    std::vector<std::string> order;
    steps_ = steps.ok() ? *steps : std::span<CudaClientStep>();
    for (const CudaClientStep& step : steps_) {
      if (const auto* kernel = std::get_if<ClientKernelLaunch>(&step)) {
        order.push_back(std::holds_alternative<ClientPacketsLaunch>(*kernel) ? "packets" : "phases");
      } else {
        order.push_back(std::holds_alternative<MatmulArgs>(step) ? "product"
                        : std::holds_alternative<CopyArgs>(step) ? "copy"
                                                                 : "sum");
      }
    }
    return order;
  }
  const MatmulArgs& Product(size_t step) const { return std::get<MatmulArgs>(steps_[step]); }
  template <typename Launch>
  const Launch& Kernel(size_t step) const {
    return std::get<Launch>(std::get<ClientKernelLaunch>(steps_[step]));
  }

  NiceMock<cuda::MockCudaDriver> driver_;
  std::vector<runtime::SlotAddress> slots_;
  std::shared_ptr<CudaClientWork> work_;
  std::span<CudaClientStep> steps_;
};

// The half of a launch is known on the device alone: what the product writes has one address.
TEST_F(CudaClientWorkTest, AProductStandsBeforeAReduceScatter) {
  Make(Request(Op::kMatmulReduceScatter, Algorithm::kUnfused, 262144));
  ASSERT_THAT(Order(), ElementsAre("product", "phases"));
  EXPECT_EQ(Product(0).a.data, SlotAt(0));
  EXPECT_EQ(Product(0).c.data, BulkOf(kRank));
  // Rank 1 pushes the slice of rank 0 into a half, and sums its own.
  const ClientPhasesLaunch& kernel = Kernel<ClientPhasesLaunch>(1);
  EXPECT_EQ(kernel.phases.pointer[0], BulkOf(kRank));
  EXPECT_EQ(kernel.phases.pointer[1], WorkspaceOf(0));
  EXPECT_EQ(kernel.halved[0] & 3u, 2u) << "the product has no half, the peer's inbox has";
}

TEST_F(CudaClientWorkTest, PacketsCarryAProduct) {
  Make(Request(Op::kMatmulReduceScatter, Algorithm::kLowLatency, 256));
  ASSERT_THAT(Order(), ElementsAre("product", "packets"));
  const ClientPacketsLaunch& kernel = Kernel<ClientPacketsLaunch>(1);
  EXPECT_TRUE(kernel.dense);
  EXPECT_EQ(kernel.packets.source[0], Product(0).c.data);
  EXPECT_EQ(kernel.packets.destination[kRank], SlotAt(2));
}

TEST_F(CudaClientWorkTest, AProductIsSummedWhereItLies) {
  Make(Request(Op::kMatmulAllReduce, Algorithm::kUnfused, 2048));
  ASSERT_THAT(Order(), ElementsAre("product", testing::AnyOf("phases", "packets")));
  EXPECT_EQ(Product(0).c.data, SlotAt(2));
}

// Peers write the gathered rows where the product reads them.
TEST_F(CudaClientWorkTest, AProductStandsBehindAGather) {
  Make(Request(Op::kAllGatherMatmul, Algorithm::kUnfused, 131072));
  ASSERT_THAT(Order(), ElementsAre("phases", "product"));
  EXPECT_EQ(Product(1).a.data, BulkOf(kRank));
  EXPECT_EQ(Product(1).c.data, SlotAt(2));
  const ClientPhasesLaunch& kernel = Kernel<ClientPhasesLaunch>(0);
  EXPECT_EQ(kernel.halved[0], 0u);
  EXPECT_GT(kernel.phases.phase[0].signals, 0) << "the entry";
}

TEST_F(CudaClientWorkTest, PacketsAreCopiedToWhereAProductReadsThem) {
  Make(Request(Op::kAllGatherMatmul, Algorithm::kLowLatency, 32));
  ASSERT_THAT(Order(), ElementsAre("packets", "product"));
  const ClientPacketsLaunch& kernel = Kernel<ClientPacketsLaunch>(0);
  EXPECT_EQ(Product(1).a.data, BulkOf(kRank));
  EXPECT_EQ(kernel.packets.destination[0], BulkOf(kRank));
}

TEST_F(CudaClientWorkTest, SumsAndCopiesStandBehindTheKernel) {
  OpRequest scatter = Request(Op::kMatmulReduceScatter, Algorithm::kUnfused, 64);
  scatter.operands.push_back({Role::kBias, {DType::kBf16, {64}, {}}, false, -1});
  Make(scatter);
  EXPECT_THAT(Order(), ElementsAre("product", testing::AnyOf("phases", "packets"), "sum"));
  OpRequest gather = Request(Op::kAllGatherMatmul, Algorithm::kUnfused, 131072);
  gather.operands.push_back(Matrix(Role::kGatheredA, 131072, 128));
  Make(gather);
  ASSERT_THAT(Order(), ElementsAre("phases", "product", "copy"));
  EXPECT_FALSE(std::get<CopyArgs>(steps_[2]).copy_engine) << "a capture may not record its calls";
  EXPECT_EQ(std::get<CopyArgs>(steps_[2]).dst.data, SlotAt(3));
}

// Each set of operands has its own parameters, and is looked at once.
TEST_F(CudaClientWorkTest, ParametersAreKeptForEachSetOfOperands) {
  Make(Request(Op::kMatmulAllReduce, Algorithm::kUnfused, 2048));
  EXPECT_CALL(driver_, PointerGetAttribute(_, _, _)).Times(2 * 3).WillRepeatedly(Return(Status::Ok()));
  const std::vector<runtime::SlotAddress> first = slots_;
  for (int launch = 0; launch < 3; ++launch) {
    slots_ = first;
    (void)Order();
    EXPECT_EQ(Product(0).a.data, SlotAt(0));
    slots_[0].own = SlotAt(7);
    (void)Order();
    EXPECT_EQ(Product(0).a.data, SlotAt(7));
  }
}

TEST_F(CudaClientWorkTest, OtherProgramsAreForEngines) {
  const OpRequest request = Request(Op::kMatmulReduceScatter, Algorithm::kPipeline, 64);
  plan::GroupContext group;
  group.topology = EmulatedTopology(2);
  auto plan = plan::MakePlan(std::vector<OpRequest>(2, request), group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  plan::RankProgram program = plan->programs[kRank];
  Make(program, request, program.workspace_bytes, program.bulk_bytes);
  Status refused = work_->PreparedFor(slots_, driver_).status();
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("other work than one kernel"));
  program.steps.clear();
  Make(program, request, program.workspace_bytes, program.bulk_bytes);
  refused = work_->PreparedFor(slots_, driver_).status();
  EXPECT_EQ(refused.code(), Code::kUnimplemented);
  EXPECT_THAT(refused.message(), HasSubstr("no kernel"));
}

}  // namespace
}  // namespace tandem::client
