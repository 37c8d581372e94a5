// The state that a backend keeps of a fused matmul: found at the next launch with the same addresses,
// separate for the two halves of workspace, and for as many sets of addresses as are kept.
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <vector>

#include "daemon/planner/planner.h"
#include "runtime/executor/executor.h"
#include "runtime/executor/tests/kernel_backend.h"

namespace tandem::runtime {
namespace {

struct CountedWork : PreparedWork {
  explicit CountedWork(int n) : number(n) {}
  int number;
};

// Keeps a number for each piece of work, and notes the one that it finds at each launch.
class KeepingLane : public Lane {
 public:
  Status WriteWord(Word*, uint64_t) override { return Status::Ok(); }
  Status WaitWord(const Word*, uint64_t) override { return Status::Ok(); }
  Status Copy(const CopyArgs&) override { return Status::Ok(); }
  Status Matmul(const MatmulArgs&) override { return Unimplemented("the kernel runs"); }
  Status Reduce(const ReduceArgs&) override { return Unimplemented("the kernel runs"); }
  Status Norm(const NormArgs&) override { return Unimplemented("none"); }
  Status Nccl(const NcclArgs&) override { return Unimplemented("none"); }
  Status Collective(const CollectiveArgs& args) override {
    if (*args.prepared == nullptr) *args.prepared = std::make_unique<CountedWork>(++made_);
    found.push_back(static_cast<CountedWork&>(**args.prepared).number);
    addresses.push_back(args.As<SkinnyArgs>() != nullptr ? args.As<SkinnyArgs>()->matmul.a.data
                                                         : args.As<FusedArgs>()->parts.front().matmul.a.data);
    return Status::Ok();
  }
  Status Record(Event*) override { return Status::Ok(); }
  Status Wait(Event*) override { return Status::Ok(); }

  std::vector<int> found;
  std::vector<const void*> addresses;

 private:
  int made_ = 0;
};

// Tests a product cut into parts, whose sums are f32, and one of few rows.
class PreparedTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Kernels, PreparedTest, testing::Bool());

TEST_P(PreparedTest, IsKeptForAHalfAndEachSetOfAddresses) {
  const bool skinny = GetParam();
  OpRequest request;
  request.op = Op::kMatmulReduceScatter;
  request.algorithm = Algorithm::kFused;
  for (auto [role, shape] :
       {std::pair(Role::kA, std::vector<int64_t>{64, 64}), {Role::kB, {64, 64}}, {Role::kC, {32, 64}}}) {
    Operand operand;
    operand.role = role;
    operand.spec.dtype = DType::kBf16;
    operand.spec.shape = shape;
    request.operands.push_back(operand);
  }
  if (!skinny) request.operands[2].spec.dtype = DType::kF32;
  plan::GroupContext group;
  group.topology = EmulatedTopology(2);
  group.fused_kernels = true;
  auto plan = plan::MakePlan(std::vector<OpRequest>(2, request), group);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const plan::RankProgram& program = plan->programs[0];
  constexpr size_t kArea = size_t{1} << 20;
  ProgramLimits limits{.rank = 0,
                       .world_size = 2,
                       .workspace_bytes = program.workspace_bytes,
                       .bulk_bytes = program.bulk_bytes,
                       .slots = {3, {kArea, false}}};
  auto compiled = CompiledProgram::Compile(program, limits);
  ASSERT_TRUE(compiled.ok()) << compiled.status().ToString();
  KernelBackend backend;
  ASSERT_TRUE((*compiled)->Prepare(backend).ok());
  KeepingLane lane;
  Executor executor(&backend, {&lane});

  // Addresses are only passed on.
  const auto at = [](uintptr_t address) { return reinterpret_cast<std::byte*>(address); };
  LaunchContext context;
  context.bulk.fill(at(kArea));
  context.signals.fill(reinterpret_cast<Word*>(at(2 * kArea)));
  std::vector<SlotAddress> slots(3);
  for (SlotAddress& slot : slots) slot.own = at(3 * kArea);
  context.slots = slots;
  const auto launch = [&] {
    ++context.launch_number;
    context.workspace.fill(at((4 + context.launch_number % 2) * kArea));
    const Status status = executor.Enqueue(**compiled, context);
    EXPECT_TRUE(status.ok()) << status.ToString();
  };
  for (int i = 0; i < 4; ++i) launch();
  EXPECT_EQ(lane.found, (std::vector<int>{1, 2, 1, 2}));
  slots[0].own = at(6 * kArea);  // another A
  for (int i = 0; i < 4; ++i) launch();
  EXPECT_EQ(lane.found, (std::vector<int>{1, 2, 1, 2, 3, 4, 3, 4}));
  const int64_t first = skinny ? 0 : 32 * 64 * 2;  // the peer's slice
  EXPECT_EQ(lane.addresses.back(), static_cast<const std::byte*>(at(6 * kArea)) + first);
  context.signals.fill(reinterpret_cast<Word*>(at(7 * kArea)));  // words of a new generation
  launch();
  EXPECT_EQ(lane.found.back(), 5);
  launch();
  EXPECT_EQ(lane.found.back(), 6);

  // Layers that share a plan find theirs again, while there are not too many.
  const auto all_layers = [&](int layers) {
    const size_t before = lane.found.size();
    for (int layer = 0; layer < layers; ++layer) {
      slots[1].own = at((10 + static_cast<uintptr_t>(layer)) * kArea);
      launch();
      launch();
    }
    return std::vector<int>(lane.found.begin() + static_cast<std::ptrdiff_t>(before), lane.found.end());
  };
  const std::vector<int> once = all_layers(40);
  EXPECT_EQ(once.back(), 86);
  EXPECT_EQ(all_layers(40), once);
  (void)all_layers(70);
  EXPECT_NE(all_layers(1), std::vector<int>(once.begin(), once.begin() + 2));
}

}  // namespace
}  // namespace tandem::runtime
