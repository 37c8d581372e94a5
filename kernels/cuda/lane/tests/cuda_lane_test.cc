// Words on a lane with a mocked driver: when they are kept back, what enqueues them, in which order, and what
// errors do.
#include "kernels/cuda/lane/cuda_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/collectives/collective_plan.h"
#include "kernels/cuda/device/guarded.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::NiceMock;
using testing::Return;

auto* const kStream = reinterpret_cast<CUstream>(32);
auto* const kEvent = reinterpret_cast<CUevent>(48);
Word* const kWord = reinterpret_cast<Word*>(0x1000);

// The word operations of a call, as text: "write 1", "wait 2".
std::string Text(const CUstreamBatchMemOpParams& operation) {
  if (operation.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
    EXPECT_EQ(operation.writeValue.flags, CU_STREAM_WRITE_VALUE_DEFAULT) << "without its memory barrier";
    return "write " + std::to_string(operation.writeValue.value64);
  }
  EXPECT_EQ(operation.operation, CU_STREAM_MEM_OP_WAIT_VALUE_64);
  EXPECT_EQ(operation.waitValue.flags, CU_STREAM_WAIT_VALUE_GEQ);
  return "wait " + std::to_string(operation.waitValue.value64);
}

class CudaLaneTest : public testing::Test {
 protected:
  CudaLaneTest() {
    MakeUsable(driver_, size_t{2} << 20, nullptr, kStream, kEvent);
    ON_CALL(driver_, StreamWriteValue64(_, _, _))
        .WillByDefault([this](CUstream, CUdeviceptr, uint64_t value) {
          calls_.push_back("write " + std::to_string(value));
          return Status::Ok();
        });
    ON_CALL(driver_, StreamWaitValue64(_, _, _, _))
        .WillByDefault([this](CUstream, CUdeviceptr, uint64_t value, unsigned) {
          calls_.push_back("wait " + std::to_string(value));
          return Status::Ok();
        });
    ON_CALL(driver_, StreamBatchMemOp(_, _, _))
        .WillByDefault([this](CUstream stream, CUstreamBatchMemOpParams* operations, unsigned count) {
          EXPECT_EQ(stream, kStream);
          std::string text;
          for (unsigned i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + Text(operations[i]);
          calls_.push_back("[" + text + "]");
          return batch_status_;
        });
    ON_CALL(driver_, EventRecord(_, _)).WillByDefault([this](CUevent, CUstream) {
      if (started_) calls_.push_back("record");
      return Status::Ok();
    });
    ON_CALL(driver_, StreamWaitEvent(_, _)).WillByDefault([this](CUstream, CUevent) {
      calls_.push_back("wait for the event");
      return Status::Ok();
    });
    ON_CALL(driver_, MemcpyBesideKernelsAsync(_, _, _, _))
        .WillByDefault([this](CUdeviceptr, CUdeviceptr, size_t, CUstream) {
          calls_.push_back("copy");
          return Status::Ok();
        });
    device_ = *CudaDevice::Create(&driver_, 0);
    lane_ = *CudaLane::Create(device_, std::make_shared<MatmulChooser>(device_, nullptr, 1), 0);
    event_ = *CudaEvent::Create(device_);
    started_ = true;
  }
  Status Copy() {
    CopyArgs args{{{bytes_, DType::kU8, {8}, {1}}, {bytes_ + 8, DType::kU8, {8}, {1}}, true}};
    return lane_->Copy(args);
  }
  std::vector<std::string> TakeCalls() { return std::exchange(calls_, {}); }

  NiceMock<MockCudaDriver> driver_;
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CudaLane> lane_;
  std::unique_ptr<CudaEvent> event_;
  std::vector<std::string> calls_;
  Status batch_status_;
  bool started_ = false;
  std::byte bytes_[16];
};

TEST_F(CudaLaneTest, WithoutHoldingEachWordIsEnqueuedAtOnce) {
  ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
  ASSERT_TRUE(lane_->WaitWord(kWord, 2).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("write 1", "wait 2"));
  EXPECT_TRUE(lane_->FlushWords().ok());
  EXPECT_TRUE(TakeCalls().empty());
}

TEST_F(CudaLaneTest, HeldWordsGoOutTogetherInOrder) {
  lane_->HoldWords();
  ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
  ASSERT_TRUE(lane_->WaitWord(kWord, 2).ok());
  ASSERT_TRUE(lane_->WriteWord(kWord, 3).ok());
  EXPECT_TRUE(TakeCalls().empty());
  ASSERT_TRUE(lane_->FlushWords().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 1, wait 2, write 3]"));
  // One alone needs no batch; afterwards nothing is left.
  ASSERT_TRUE(lane_->WriteWord(kWord, 4).ok());
  ASSERT_TRUE(lane_->FlushWords().ok());
  ASSERT_TRUE(lane_->FlushWords().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("write 4"));
}

// Work that cannot be cancelled refuses a guard, and nothing is enqueued.
TEST_F(CudaLaneTest, WorkThatWouldRunAllTheSameTakesNoGuard) {
  const Guard guard{.word = kWord, .value = 3};
  CopyArgs copy{{{bytes_, DType::kU8, {8}, {1}}, {bytes_ + 8, DType::kU8, {8}, {1}}, true}, guard};
  EXPECT_EQ(lane_->Copy(copy).code(), Code::kFailedPrecondition);
  MatmulArgs matmul;
  matmul.guard = guard;
  EXPECT_EQ(lane_->Matmul(matmul).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(TakeCalls().empty());
  // Fused kernels take it: these are refused for what they are.
  CollectiveArgs fused;
  fused.work.emplace<FusedArgs>().parts.resize(1);
  fused.guard = guard;
  EXPECT_EQ(lane_->Collective(fused).code(), Code::kUnimplemented);
  fused.work.emplace<SkinnyArgs>();
  EXPECT_EQ(lane_->Collective(fused).code(), Code::kUnimplemented);
  for (Guarded kind : {Guarded::kCopyEngine, Guarded::kMatmul}) EXPECT_FALSE(HonoursGuard(kind));
  for (Guarded kind : {Guarded::kCopy, Guarded::kReduce, Guarded::kCollective, Guarded::kFused})
    EXPECT_TRUE(HonoursGuard(kind));
}

TEST(CollectivePlanTest, TheGuardReachesTheKernels) {
  float in[4] = {}, out[4] = {};
  Word packets[2][64] = {};
  auto view = [](float* values) {
    return DeviceView{reinterpret_cast<std::byte*>(values), DType::kF32, {4}, {1}};
  };
  CollectiveArgs args;
  args.dtype = DType::kF32;
  args.world_size = 2;
  args.blocks = 1;
  args.launch_number = 9;
  args.guard = {.word = kWord, .value = 9};
  CollectiveItem& item = args.work.emplace<PhasesArgs>().phases.emplace_back().items.emplace_back();
  item.sources = {view(in)};
  item.destinations = {view(out)};
  auto phases = MakePhasesLaunch(args);
  ASSERT_TRUE(phases.ok()) << phases.status().ToString();
  EXPECT_EQ(phases->guard.word, reinterpret_cast<const uint64_t*>(kWord));
  EXPECT_EQ(phases->guard.value, 9u);
  auto& exchange = args.work.emplace<PacketsArgs>();
  exchange.exchange = plan::PacketExchange::kGather;
  exchange.pieces = {4, 4};
  exchange.source = {view(in), view(in)};
  exchange.destination = {view(out), view(out)};
  exchange.packets = {reinterpret_cast<std::byte*>(packets[0]), reinterpret_cast<std::byte*>(packets[1])};
  exchange.packet_bytes = sizeof(packets[0]);
  auto packet = MakePacketsLaunch(args);
  ASSERT_TRUE(packet.ok()) << packet.status().ToString();
  EXPECT_EQ(packet->guard.word, reinterpret_cast<const uint64_t*>(kWord));
  EXPECT_EQ(packet->guard.value, 9u);
  args.guard = {};
  EXPECT_EQ(MakePacketsLaunch(args)->guard.word, nullptr);
}

TEST_F(CudaLaneTest, NoOtherWorkOvertakesHeldWords) {
  lane_->HoldWords();
  auto hold = [&](uint64_t value) {
    ASSERT_TRUE(lane_->WriteWord(kWord, value).ok());
    ASSERT_TRUE(lane_->WaitWord(kWord, value + 1).ok());
  };
  hold(1);
  ASSERT_TRUE(Copy().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 1, wait 2]", "copy"));
  hold(3);
  ASSERT_TRUE(lane_->Record(event_.get()).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 3, wait 4]", "record"));
  hold(5);
  ASSERT_TRUE(lane_->Wait(event_.get()).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 5, wait 6]", "wait for the event"));
  // Without a GPU no kernel is launched, but the words before it are enqueued.
  hold(7);
  MatmulArgs product;
  product.a = product.b = product.c = {bytes_, DType::kF32, {1, 1}, {1, 1}};
  EXPECT_FALSE(lane_->Matmul(product).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 7, wait 8]"));
  hold(9);
  EXPECT_FALSE(lane_->Reduce({}).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 9, wait 10]"));
}

TEST_F(CudaLaneTest, AFullBatchIsEnqueued) {
  lane_->HoldWords();
  for (unsigned i = 0; i <= WordBatch::kMax; ++i) ASSERT_TRUE(lane_->WriteWord(kWord, i).ok());
  ASSERT_EQ(calls_.size(), 1u);
  ASSERT_TRUE(lane_->FlushWords().ok());
  ASSERT_EQ(calls_.size(), 2u);
  EXPECT_EQ(calls_[1], "write " + std::to_string(WordBatch::kMax));
}

TEST_F(CudaLaneTest, WithoutBatchesWordsAreEnqueuedOneByOneFromThenOn) {
  batch_status_ =
      CudaStatus("cuStreamBatchMemOp", CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "no");
  lane_->HoldWords();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
    ASSERT_TRUE(lane_->WaitWord(kWord, 2).ok());
    ASSERT_TRUE(lane_->FlushWords().ok());
  }
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 1, wait 2]", "write 1", "wait 2", "write 1", "wait 2"));
}

TEST_F(CudaLaneTest, AFailedBatchIsReportedOnceAndForgotten) {
  batch_status_ =
      CudaStatus("cuStreamBatchMemOp", CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "lost");
  lane_->HoldWords();
  ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
  ASSERT_TRUE(lane_->WriteWord(kWord, 2).ok());
  EXPECT_EQ(lane_->Record(event_.get()).code(), Code::kAborted);
  EXPECT_THAT(TakeCalls(), ElementsAre("[write 1, write 2]")) << "no record behind words that are not there";
  EXPECT_TRUE(lane_->Record(event_.get()).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("record"));
  EXPECT_EQ(lane_->WriteWord(nullptr, 1).code(), Code::kInvalidArgument);
}

// Memory for transposed fp8 operands, in MiB; without a GPU every product fails behind it.
class LaneScratchTest : public CudaLaneTest {
 protected:
  LaneScratchTest() {
    ON_CALL(driver_, MemCreate(_, _)).WillByDefault([this](size_t bytes, const CUmemAllocationProp&) {
      if (bytes >> 20 > most_) return Result<CUmemGenericAllocationHandle>(ResourceExhausted("full"));
      made_.push_back(bytes >> 20);
      return Result<CUmemGenericAllocationHandle>(bytes >> 20);
    });
    ON_CALL(driver_, MemRelease(_)).WillByDefault([this](CUmemGenericAllocationHandle handle) {
      released_.push_back(handle);
      return Status::Ok();
    });
    ON_CALL(driver_, EventQuery(_)).WillByDefault([this](CUevent) { return Result<bool>(done_); });
    Product(16);
    made_.erase(made_.begin());  // the workspace
  }
  ~LaneScratchTest() override { lane_.reset(); }  // it releases what it has
  // B has contiguous rows of 256 · `mib` columns: it is copied.
  void Product(int64_t mib) {
    const int64_t n = 256 * mib, k = 4096;
    MatmulArgs args;
    args.a = {bytes_, DType::kF8E4M3, {64, k}, {k, 1}};
    args.b = {bytes_, DType::kF8E4M3, {k, n}, {n, 1}};
    args.c = {bytes_, DType::kBf16, {64, n}, {n, 1}};
    EXPECT_FALSE(lane_->Matmul(args).ok());
  }

  size_t most_ = 1024;
  bool done_ = false;
  std::vector<size_t> made_, released_;
};

TEST_F(LaneScratchTest, WhatIsOutgrownIsGivenBackBehindItsWork) {
  TakeCalls();
  Product(17);
  EXPECT_THAT(TakeCalls(), ElementsAre("record"));
  Product(20);  // fits
  EXPECT_THAT(TakeCalls(), ElementsAre());
  Product(28);
  EXPECT_THAT(made_, ElementsAre(16, 24, 36)) << "by a half at least";
  EXPECT_THAT(released_, ElementsAre()) << "work of the lane may still read it";
  done_ = true;
  Product(90);
  EXPECT_THAT(made_, ElementsAre(16, 24, 36, 90));
  EXPECT_THAT(released_, ElementsAre(16, 24));
  Product(91);
  EXPECT_THAT(released_, ElementsAre(16, 24, 36));
}

TEST_F(LaneScratchTest, OnAFullGpuItGrowsByWhatIsNeeded) {
  most_ = 23;
  Product(17);
  EXPECT_THAT(made_, ElementsAre(16, 18)) << "in granules of 2 MiB";
  Product(24);
  EXPECT_THAT(made_, ElementsAre(16, 18)) << "no memory: the product fails";
  most_ = 1024;
  Product(24);
  EXPECT_THAT(made_, ElementsAre(16, 18, 24));
}

}  // namespace
}  // namespace tandem::cuda
