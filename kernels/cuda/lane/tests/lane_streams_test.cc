// A lane of two streams with a mocked driver: all that comes after the change goes to the other one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/lane/cuda_lane.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::NiceMock;

Word* const kWord = reinterpret_cast<Word*>(0x1000);
auto* const kEvent = reinterpret_cast<CUevent>(48);

CUstream StreamOf(uintptr_t number) { return reinterpret_cast<CUstream>(number); }

class LaneStreamsTest : public testing::Test {
 protected:
  // cuBLASLt, of which only the stream is of interest.
  class StreamsOfProducts : public CublasLt {
   public:
    uint64_t Version() const override { return 130200; }
    explicit StreamsOfProducts(LaneStreamsTest* test) : test_(test) {}
    Result<std::vector<cublasLtMatmulAlgo_t>> Candidates(const LtProduct&, size_t, int) override {
      return std::vector<cublasLtMatmulAlgo_t>(1);
    }
    Result<bool> Supports(const LtProduct&, const cublasLtMatmulAlgo_t&, size_t) override { return true; }
    Status Run(const LtProduct&, const LtOperands&, const cublasLtMatmulAlgo_t&, void*, size_t,
               CUstream stream) override {
      return test_->Note("product", stream);
    }

   private:
    LaneStreamsTest* test_;
  };

  LaneStreamsTest() {
    MakeUsable(driver_, size_t{2} << 20, nullptr, StreamOf(1), kEvent);
    ON_CALL(driver_, StreamCreateWithPriority(_, _))
        .WillByDefault([this](unsigned, int priority) -> Result<CUstream> {
          priorities_.push_back(priority);
          return StreamOf(priorities_.size());
        });
    ON_CALL(driver_, StreamDestroy(_)).WillByDefault([this](CUstream stream) {
      return Note("destroy", stream);
    });
    ON_CALL(driver_, StreamWriteValue64(_, _, _))
        .WillByDefault([this](CUstream stream, CUdeviceptr, uint64_t) { return Note("write", stream); });
    ON_CALL(driver_, StreamWaitValue64(_, _, _, _))
        .WillByDefault(
            [this](CUstream stream, CUdeviceptr, uint64_t, unsigned) { return Note("wait", stream); });
    ON_CALL(driver_, StreamBatchMemOp(_, _, _))
        .WillByDefault(
            [this](CUstream stream, CUstreamBatchMemOpParams*, unsigned) { return Note("batch", stream); });
    ON_CALL(driver_, EventRecord(_, _)).WillByDefault([this](CUevent, CUstream stream) {
      return Note("record", stream);
    });
    ON_CALL(driver_, StreamWaitEvent(_, _)).WillByDefault([this](CUstream stream, CUevent) {
      return Note("wait for the event", stream);
    });
    ON_CALL(driver_, MemcpyBesideKernelsAsync(_, _, _, _))
        .WillByDefault(
            [this](CUdeviceptr, CUdeviceptr, size_t, CUstream stream) { return Note("copy", stream); });
    ON_CALL(driver_, MemsetD8Async(_, _, _, _))
        .WillByDefault(
            [this](CUdeviceptr, unsigned char, size_t, CUstream stream) { return Note("clear", stream); });
    device_ = *CudaDevice::Create(&driver_, 0);
    priorities_.clear();
    for (uintptr_t i = 0; i < 8; ++i)
      priorities_.push_back(0);  // the lane's are StreamOf(9) and StreamOf(10)
    lane_ = *CudaLane::Create(device_, std::make_shared<MatmulChooser>(device_, &lt_, 1), 0, 2);
    event_ = *CudaEvent::Create(device_);
    calls_.clear();
  }
  Status Note(const std::string& what, CUstream stream) {
    calls_.push_back(what + " " + std::to_string(reinterpret_cast<uintptr_t>(stream)));
    return Status::Ok();
  }
  std::vector<std::string> TakeCalls() { return std::exchange(calls_, {}); }

  // Some of everything that a lane does, as far as that is enqueued without a GPU.
  void DoAll() {
    ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
    ASSERT_TRUE(lane_->WaitWord(kWord, 1).ok());
    ASSERT_TRUE(lane_->FlushWords().ok());
    ASSERT_TRUE(lane_->WaitWord(kWord, 2).ok());
    const CopyArgs copy{{{bytes_, DType::kU8, {8}, {1}}, {bytes_ + 8, DType::kU8, {8}, {1}}, true}};
    ASSERT_TRUE(lane_->Copy(copy).ok());
    const auto at = [](uintptr_t address, DType type, std::vector<int64_t> extent,
                       std::vector<int64_t> stride) {
      return DeviceView{reinterpret_cast<std::byte*>(address), type, std::move(extent), std::move(stride)};
    };
    MatmulArgs product;
    product.a = at(0x10000, DType::kBf16, {64, 64}, {64, 1});
    product.b = at(0x20000, DType::kBf16, {64, 64}, {64, 1});
    product.c = at(0x30000, DType::kBf16, {64, 64}, {64, 1});
    ASSERT_TRUE(lane_->Matmul(product).ok());
    ASSERT_TRUE(lane_->Record(event_.get()).ok());
    ASSERT_TRUE(lane_->Wait(event_.get()).ok());
    ASSERT_TRUE(lane_->WriteWord(kWord, 3).ok());
    ASSERT_TRUE(lane_->FlushWords().ok());
  }

  std::vector<int> priorities_;
  std::vector<std::string> calls_;  // also of what the members below do when they end
  NiceMock<MockCudaDriver> driver_;
  StreamsOfProducts lt_{this};
  std::shared_ptr<CudaDevice> device_;
  std::unique_ptr<CudaLane> lane_;
  std::unique_ptr<CudaEvent> event_;
  std::byte bytes_[16];
};

TEST_F(LaneStreamsTest, TheyAreMadeOneAfterTheOtherWithOnePriority) {
  EXPECT_EQ(lane_->stream_count(), 2);
  ASSERT_EQ(priorities_.size(), 10u);
  EXPECT_EQ(priorities_[8], priorities_[9]);
  EXPECT_EQ(lane_->stream(), StreamOf(9));
  lane_.reset();
  EXPECT_THAT(TakeCalls(), ElementsAre("destroy 9", "destroy 10"));
}

TEST_F(LaneStreamsTest, AllWorkGoesToTheOneInUse) {
  lane_->HoldWords();
  const auto expected = [](const std::string& n) {
    return std::vector<std::string>{"batch " + n,   "wait " + n,   "copy " + n,
                                    "product " + n, "record " + n, "wait for the event " + n,
                                    "write " + n};
  };
  DoAll();
  EXPECT_EQ(TakeCalls(), expected("9"));
  ASSERT_TRUE(lane_->UseStream(1).ok());
  EXPECT_EQ(lane_->stream(), StreamOf(10));
  DoAll();
  EXPECT_EQ(TakeCalls(), expected("10"));
  ASSERT_TRUE(lane_->UseStream(0).ok());
  DoAll();
  EXPECT_EQ(TakeCalls(), expected("9"));
}

// The state of kernels on the lane is cleared once, on the stream that runs the first kernel.
TEST_F(LaneStreamsTest, TheStateOfFusedKernelsIsTheLanesNotTheStreams) {
  ASSERT_TRUE(lane_->UseStream(1).ok());
  CollectiveArgs fused;
  fused.work.emplace<SkinnyArgs>();
  EXPECT_FALSE(lane_->Collective(fused).ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("clear 10"));
  ASSERT_TRUE(lane_->UseStream(0).ok());
  EXPECT_FALSE(lane_->Collective(fused).ok());
  EXPECT_THAT(TakeCalls(), IsEmpty());
}

TEST_F(LaneStreamsTest, NoWordIsLeftBehindOnTheOther) {
  lane_->HoldWords();
  ASSERT_TRUE(lane_->WriteWord(kWord, 1).ok());
  EXPECT_EQ(lane_->UseStream(1).code(), Code::kFailedPrecondition);
  EXPECT_EQ(lane_->stream(), StreamOf(9));
  ASSERT_TRUE(lane_->FlushWords().ok());
  EXPECT_THAT(TakeCalls(), ElementsAre("write 9"));
  EXPECT_TRUE(lane_->UseStream(1).ok());
}

TEST_F(LaneStreamsTest, ThereIsNoThird) {
  EXPECT_EQ(lane_->UseStream(2).code(), Code::kOutOfRange);
  EXPECT_EQ(lane_->UseStream(-1).code(), Code::kOutOfRange);
  auto one = *CudaLane::Create(device_, std::make_shared<MatmulChooser>(device_, &lt_, 1), 0);
  EXPECT_EQ(one->stream_count(), 1);
  EXPECT_EQ(one->UseStream(1).code(), Code::kOutOfRange);
}

}  // namespace
}  // namespace tandem::cuda
