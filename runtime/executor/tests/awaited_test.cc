// The rank that a launch waits for is found by the kernels' words where kernels run, not by the steps that
// they replace.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <vector>

#include "daemon/planner/planner.h"
#include "program/kernel_phases.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/tests/kernel_backend.h"

namespace tandem::runtime {
namespace {

constexpr int kRank = 1;

class AwaitedTest : public testing::Test {
 protected:
  // Plans `request` for `world` ranks and compiles the program of rank 1, its first collective being
  // `collective_`.
  void Make(const OpRequest& request, int world) {
    plan::GroupContext group;
    group.topology = EmulatedTopology(world);
    group.fused_kernels = group.packet_kernels = true;
    auto plan = plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(world), request), group);
    ASSERT_TRUE(plan.ok()) << plan.status().ToString();
    const plan::RankProgram& program = plan->programs[kRank];
    for (const plan::Step& step : program.steps) {
      if (const auto* collective = std::get_if<plan::CollectiveStep>(&step.work)) collective_ = *collective;
    }
    ProgramLimits limits{.rank = kRank,
                         .world_size = world,
                         .workspace_bytes = program.workspace_bytes,
                         .bulk_bytes = program.bulk_bytes,
                         .slots = {request.operands.size(), {size_t{1} << 24, false}}};
    auto compiled = CompiledProgram::Compile(program, limits);
    ASSERT_TRUE(compiled.ok()) << compiled.status().ToString();
    program_ = *std::move(compiled);
  }
  void Prepare() { ASSERT_TRUE(program_->Prepare(backend_).ok()); }

  static uint32_t WordOf(int writer, int index) {
    return static_cast<uint32_t>(writer * plan::kSignalsPerWriter + index);
  }
  // Only these words have not arrived.
  uint8_t Without(const std::set<uint32_t>& missing) const {
    return program_->AwaitedRanks([&](uint32_t word) { return !missing.contains(word); });
  }
  // Only these have.
  uint8_t With(const std::set<uint32_t>& come) const {
    return program_->AwaitedRanks([&](uint32_t word) { return come.contains(word); });
  }

  KernelBackend backend_;
  plan::CollectiveStep collective_;
  std::unique_ptr<CompiledProgram> program_;
};

OpRequest AllReduce(int64_t elements, Algorithm algorithm) {
  OpRequest request;
  request.op = Op::kAllReduce;
  request.algorithm = algorithm;
  for (Role role : {Role::kInput, Role::kOutput}) {
    request.operands.push_back({role, {DType::kF32, {elements}, {}}, false, -1});
  }
  return request;
}

OpRequest Matmul(Op op, DType out, int64_t a_rows, int64_t c_rows) {
  OpRequest request;
  request.op = op;
  request.algorithm = Algorithm::kFused;
  request.operands = {{Role::kA, {DType::kBf16, {a_rows, 64}, {}}, false, -1},
                      {Role::kB, {DType::kBf16, {64, 512}, {}}, false, -1},
                      {Role::kC, {out, {c_rows, 512}, {}}, false, -1}};
  return request;
}

TEST_F(AwaitedTest, AKernelOfPhasesWaitsInEachOfItsBlocks) {
  Make(AllReduce(1 << 20, Algorithm::kTwoShot), 3);
  // Not prepared, it runs by its steps, whose words are others.
  EXPECT_EQ(Without({WordOf(2, 1)}), 0b100);
  Prepare();
  ASSERT_GT(collective_.blocks, 2);
  EXPECT_EQ(Without({WordOf(2, 1)}), 0);
  for (int index : {0, 1}) {
    const int word = plan::KernelWordIndex(collective_, index) + 2 * plan::kKernelWordStride;
    EXPECT_EQ(Without({WordOf(0, word)}), 0b001);
    EXPECT_EQ(Without({WordOf(2, word)}), 0b100);
    EXPECT_EQ(Without({WordOf(kRank, word)}), 0);
  }
  EXPECT_EQ(With({}), 0b101);
  EXPECT_FALSE(program_->AwaitsPackets());
}

TEST_F(AwaitedTest, AKernelForSkinnyWaitsForAWordOfEachTile) {
  struct Case {
    Op op;
    int world;
    int64_t a_rows, c_rows;
    int words;
  };
  for (const Case& test : {Case{Op::kMatmulReduceScatter, 2, 32, 16, 8},
                           {Op::kMatmulAllReduce, 4, 64, 64, 16},  // a partial sum of each tile, then its sum
                           {Op::kMatmulAllReduce, 2, 32, 32, 8},   // both in one step
                           {Op::kAllGatherMatmul, 2, 16, 32, 1}}) {
    SCOPED_TRACE(OpName(test.op));
    Make(Matmul(test.op, DType::kBf16, test.a_rows, test.c_rows), test.world);
    Prepare();
    ASSERT_TRUE(collective_.skinny.has_value());
    int words = 0;
    while (Without({WordOf(0, collective_.first_signal + words)}) != 0) ++words;
    EXPECT_EQ(words, test.words);
    EXPECT_EQ(With({}), ((1 << test.world) - 1) & ~(1 << kRank));
  }
}

TEST_F(AwaitedTest, AFusedProductWaitsForTheWordsOfItsSteps) {
  Make(Matmul(Op::kAllGatherMatmul, DType::kF32, 64, 192), 3);
  Prepare();
  EXPECT_FALSE(collective_.skinny.has_value());
  EXPECT_EQ(Without({WordOf(2, 0)}), 0b100);
  EXPECT_EQ(With({}), 0b101);
}

TEST_F(AwaitedTest, PacketsHaveNoWords) {
  Make(AllReduce(64, Algorithm::kLowLatency), 3);
  EXPECT_EQ(With({}), 0b101);
  EXPECT_FALSE(program_->AwaitsPackets());
  EXPECT_EQ(program_->AwaitedPackets([](uint64_t) { return false; }), 0);
  Prepare();
  EXPECT_EQ(With({}), 0);
  EXPECT_TRUE(program_->AwaitsPackets());
}

// Each writer has a slot in the half; 64 floats are 32 packets.
TEST_F(AwaitedTest, AKernelOfPacketsWaitsForTheFirstAndTheLastOfEachWriter) {
  Make(AllReduce(64, Algorithm::kLowLatency), 3);
  Prepare();
  const uint64_t slot = plan::kPacketHalfBytes / 16 / 3;
  const auto without = [&](std::set<uint64_t> missing) {
    return program_->AwaitedPackets([&](uint64_t packet) { return !missing.contains(packet); });
  };
  EXPECT_EQ(without({}), 0);
  EXPECT_EQ(without({0}), 0b001);
  EXPECT_EQ(without({31}), 0b001);
  EXPECT_EQ(without({32}), 0);
  EXPECT_EQ(without({slot, slot + 31}), 0) << "the rank's own slot";
  EXPECT_EQ(without({2 * slot}), 0b100);
  EXPECT_EQ(without({0, 2 * slot + 31}), 0b101);
}

// The sums are sent once all parts have come: who has not sent its part is missed, not who waits for it.
TEST_F(AwaitedTest, AKernelOfTwoExchangesWaitsForTheFirstOneFirst) {
  Make(AllReduce(64 << 10, Algorithm::kLowLatency), 4);
  Prepare();
  ASSERT_EQ(collective_.shots, 2) << "a larger tensor is exchanged twice";
  const uint64_t slot = plan::kPacketHalfBytes / 16 / 8, packets = (64 << 10) / 4 / 2;
  const auto without = [&](std::set<uint64_t> missing) {
    return program_->AwaitedPackets([&](uint64_t packet) { return !missing.contains(packet); });
  };
  EXPECT_EQ(without({}), 0);
  EXPECT_EQ(without({3 * slot + packets - 1, (4 + 2) * slot}), 0b1000);
  EXPECT_EQ(without({(4 + 2) * slot}), 0b0100);
}

}  // namespace
}  // namespace tandem::runtime
