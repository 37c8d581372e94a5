// How many calls of the driver a launch takes on CUDA lanes, with and without words that go out together:
// calls of about a microsecond each are most of a small launch. The driver and cuBLASLt are mocked; a sum's
// kernel counts as one call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/planner/planner.h"
#include "drivers/cublaslt/mock_cublas_lt.h"
#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "runtime/executor/executor.h"

namespace tandem::runtime {
namespace {

using testing::_;
using testing::NiceMock;
using testing::Return;

constexpr size_t kArea = size_t{1} << 20;

// A CUDA lane whose kernels are only counted.
class CountingLane : public Lane {
 public:
  CountingLane(std::unique_ptr<cuda::CudaLane> lane, int* calls) : lane_(std::move(lane)), calls_(calls) {}
  Status WriteWord(Word* word, uint64_t value) override { return lane_->WriteWord(word, value); }
  Status WaitWord(const Word* word, uint64_t value) override { return lane_->WaitWord(word, value); }
  Status Copy(const CopyArgs& args) override { return lane_->Copy(args); }
  Status Matmul(const MatmulArgs& args) override { return lane_->Matmul(args); }
  Status Reduce(const ReduceArgs&) override {
    ++*calls_;
    return lane_->FlushWords();
  }
  Status Norm(const NormArgs&) override { return Unimplemented("not counted"); }
  Status Nccl(const NcclArgs&) override { return Unimplemented("not counted"); }
  Status Record(Event* event) override { return lane_->Record(event); }
  Status Wait(Event* event) override { return lane_->Wait(event); }
  void HoldWords() override { lane_->HoldWords(); }
  Status FlushWords() override { return lane_->FlushWords(); }

 private:
  std::unique_ptr<cuda::CudaLane> lane_;
  int* calls_;
};

// Makes events only.
class EventBackend : public Backend {
 public:
  explicit EventBackend(std::shared_ptr<cuda::CudaDevice> device) : device_(std::move(device)) {}
  std::string Name() const override { return "events"; }
  Result<UniqueFd> AllocateSegment(size_t) override { return Unimplemented(""); }
  size_t SegmentGranularity() const override { return kArea; }
  Result<std::unique_ptr<Segment>> MapSegment(int, size_t) override { return Unimplemented(""); }
  Result<std::unique_ptr<Segment>> ImportMemory(int, size_t) override { return Unimplemented(""); }
  Result<std::unique_ptr<Lane>> MakeLane(int) override { return Unimplemented(""); }
  Result<std::unique_ptr<Event>> MakeEvent() override {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<cuda::CudaEvent> event, cuda::CudaEvent::Create(device_));
    return std::unique_ptr<Event>(std::move(event));
  }
  Result<std::unique_ptr<Communicator>> MakeCommunicator(const CommunicatorOptions&) override {
    return Unimplemented("");
  }
  size_t MemoryBytes() const override { return 0; }

 private:
  std::shared_ptr<cuda::CudaDevice> device_;
};

OpRequest Request(Op op, Algorithm algorithm, std::vector<std::pair<Role, std::vector<int64_t>>> operands) {
  OpRequest request;
  request.op = op;
  request.algorithm = algorithm;
  for (auto& [role, shape] : operands) {
    Operand operand;
    operand.role = role;
    operand.spec.dtype = DType::kBf16;
    operand.spec.shape = shape;
    request.operands.push_back(operand);
  }
  return request;
}

OpRequest GatherMatmul(Algorithm algorithm, int64_t rows) {
  return Request(Op::kAllGatherMatmul, algorithm,
                 {{Role::kA, {rows, 64}}, {Role::kB, {64, 64}}, {Role::kC, {-1, 64}}});
}

// Calls for one launch of rank 0's program as the engine makes a timed one: the program between two events,
// then the completion's words.
int CallsOf(OpRequest request, int world, bool hold, bool idle = false) {
  for (Operand& operand : request.operands) {
    if (operand.spec.shape[0] < 0) operand.spec.shape[0] = request.operands[0].spec.shape[0] * world;
  }
  NiceMock<cuda::MockCudaDriver> driver;
  int calls = 0;
  auto count = [&calls](auto&&...) {
    ++calls;
    return Status::Ok();
  };
  cuda::MakeUsable(driver, size_t{2} << 20, nullptr, nullptr, reinterpret_cast<CUevent>(8));
  ON_CALL(driver, StreamWriteValue64(_, _, _)).WillByDefault(count);
  ON_CALL(driver, StreamWaitValue64(_, _, _, _)).WillByDefault(count);
  ON_CALL(driver, StreamBatchMemOp(_, _, _)).WillByDefault(count);
  ON_CALL(driver, EventRecord(_, _)).WillByDefault(count);
  ON_CALL(driver, StreamWaitEvent(_, _)).WillByDefault(count);
  ON_CALL(driver, MemcpyBesideKernelsAsync(_, _, _, _)).WillByDefault(count);
  auto device = *cuda::CudaDevice::Create(&driver, 0);
  NiceMock<cuda::MockCublasLt> lt;
  ON_CALL(lt, Run(_, _, _, _, _, _)).WillByDefault(count);
  auto chooser = std::make_shared<cuda::MatmulChooser>(device, &lt, 1);

  plan::GroupContext group;
  group.topology = EmulatedTopology(world);
  auto plan = plan::MakePlan(std::vector<OpRequest>(static_cast<size_t>(world), request), group);
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  const plan::RankProgram& program = plan->programs[0];
  ProgramLimits limits{.rank = 0,
                       .world_size = world,
                       .workspace_bytes = program.workspace_bytes,
                       .bulk_bytes = program.bulk_bytes,
                       .slots = {}};
  for (size_t slot = 0; slot < request.operands.size(); ++slot) limits.slots.push_back({kArea, false});
  auto compiled = CompiledProgram::Compile(program, limits);
  EXPECT_TRUE(compiled.ok()) << compiled.status().ToString();

  std::vector<std::unique_ptr<Lane>> owned;
  std::vector<Lane*> lanes;
  for (int lane = 0; lane < program.lanes; ++lane) {
    owned.push_back(std::make_unique<CountingLane>(*cuda::CudaLane::Create(device, chooser, 0), &calls));
    if (hold) owned.back()->HoldWords();
    lanes.push_back(owned.back().get());
  }
  EventBackend backend(device);
  Executor executor(&backend, lanes);
  LaunchContext context;
  context.launch_number = 1;
  context.lanes_idle = idle;
  auto* memory = reinterpret_cast<std::byte*>(kArea);  // addresses are only passed on
  context.workspace.fill(memory);
  context.bulk.fill(memory);
  context.signals.fill(reinterpret_cast<Word*>(memory));
  std::vector<SlotAddress> slots(request.operands.size());
  for (SlotAddress& slot : slots) slot.own = memory;
  context.slots = slots;
  auto start = *backend.MakeEvent(), end = *backend.MakeEvent();
  calls = 0;
  EXPECT_TRUE(lanes[0]->Record(start.get()).ok());
  Status status = executor.Enqueue(**compiled, context);
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(lanes[0]->WriteWord(reinterpret_cast<Word*>(memory), 1).ok());
  EXPECT_TRUE(lanes[0]->WriteWord(reinterpret_cast<Word*>(memory), 1).ok());
  EXPECT_TRUE(lanes[0]->Record(end.get()).ok());
  EXPECT_TRUE(lanes[0]->FlushWords().ok());
  return calls;
}

struct Counts {
  int single, held;
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.single << " calls one by one, " << counts.held << " with words together";
}
Counts CountsOf(const OpRequest& request, int world) {
  return {CallsOf(request, world, false), CallsOf(request, world, true)};
}

// Most signals there stand alone between copies: what is saved is the completion's call and the waits before
// a sum.
TEST(DriverCallsTest, OfEachPipeline) {
  EXPECT_EQ(CountsOf(GatherMatmul(Algorithm::kPipeline, 64), 2), (Counts{13, 12}));
  EXPECT_EQ(CountsOf(GatherMatmul(Algorithm::kPipeline, 64), 4), (Counts{21, 20}));
  EXPECT_EQ(CountsOf(GatherMatmul(Algorithm::kRing, 64), 2), (Counts{13, 12}));
  EXPECT_EQ(CountsOf(GatherMatmul(Algorithm::kRing, 64), 4), (Counts{21, 20}));
  auto scatter = [](Algorithm algorithm, int64_t world) {
    return Request(Op::kMatmulReduceScatter, algorithm,
                   {{Role::kA, {64 * world, 64}}, {Role::kB, {64, 64}}, {Role::kC, {64, 64}}});
  };
  EXPECT_EQ(CountsOf(scatter(Algorithm::kPipeline, 2), 2), (Counts{14, 13}));
  EXPECT_EQ(CountsOf(scatter(Algorithm::kPipeline, 4), 4), (Counts{22, 19}));
  EXPECT_EQ(CountsOf(scatter(Algorithm::kRing, 4), 4), (Counts{24, 20}));
  auto reduce = Request(Op::kMatmulAllReduce, Algorithm::kTiledTwoShot,
                        {{Role::kA, {256, 64}}, {Role::kB, {64, 64}}, {Role::kC, {256, 64}}});
  EXPECT_EQ(CountsOf(reduce, 2), (Counts{35, 33}));
  EXPECT_EQ(CountsOf(reduce, 4), (Counts{67, 61}));
}

// A record on lane 0 and a wait on lane 1 are saved.
TEST(DriverCallsTest, LanesThatAreIdleAreNotForked) {
  const OpRequest gather = GatherMatmul(Algorithm::kPipeline, 64);
  EXPECT_EQ(CallsOf(gather, 2, true, true), CallsOf(gather, 2, true, false) - 2);
  const OpRequest one_lane =
      Request(Op::kAllGather, Algorithm::kCopyEngine, {{Role::kInput, {64}}, {Role::kOutput, {128}}});
  EXPECT_EQ(CallsOf(one_lane, 2, true, true), CallsOf(one_lane, 2, true, false));
}

}  // namespace
}  // namespace tandem::runtime
