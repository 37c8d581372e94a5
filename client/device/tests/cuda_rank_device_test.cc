#include "client/device/cuda_rank_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "drivers/cuda/mock_cuda_driver.h"

namespace tandem {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Return;

class OwnMemory : public Memory {
 public:
  uint64_t registration_id() const override { return 1; }
  std::byte* data() const override { return const_cast<std::byte*>(bytes_); }
  size_t bytes() const override { return sizeof(bytes_); }
  const std::string& gpu_uuid() const override { return gpu_uuid_; }

 private:
  const std::string gpu_uuid_ = "GPU-1";
  std::byte bytes_[100] = {};
};

class CudaRankDeviceTest : public ::testing::Test {
 protected:
  CudaRankDeviceTest() {
    ON_CALL(driver_, DeviceGetCount).WillByDefault(Return(Result<int>(2)));
    ON_CALL(driver_, DeviceGet).WillByDefault([](int ordinal) { return Result<CUdevice>(ordinal); });
    ON_CALL(driver_, DeviceGetUuid).WillByDefault([](CUdevice device) {
      return Result<std::string>("GPU-" + std::to_string(device));
    });
    ON_CALL(driver_, DevicePrimaryCtxRetain).WillByDefault(Return(Result<CUcontext>(context_)));
    ON_CALL(driver_, CtxGetCurrent).WillByDefault(Return(Result<CUcontext>(context_)));
    ON_CALL(driver_, StreamCreateWithPriority).WillByDefault(Return(Result<CUstream>(stream_)));
    ON_CALL(driver_, LaunchHostFunc).WillByDefault([this](CUstream, CUhostFn function, void* argument) {
      function_ = function;
      argument_ = argument;
      return Status::Ok();
    });
  }
  std::shared_ptr<RankDevice> Device() {
    auto device = MakeCudaRankDevice(&driver_, "GPU-1");
    EXPECT_TRUE(device.ok()) << device.status().ToString();
    return *device;
  }

  NiceMock<cuda::MockCudaDriver> driver_;
  CUcontext context_ = reinterpret_cast<CUcontext>(0x10);
  CUstream stream_ = reinterpret_cast<CUstream>(0x20);
  CUhostFn function_ = nullptr;
  void* argument_ = nullptr;
};

TEST_F(CudaRankDeviceTest, TakesTheDeviceByItsUuid) {
  EXPECT_CALL(driver_, DevicePrimaryCtxRetain(1));
  Device();
}

TEST_F(CudaRankDeviceTest, NamesTheDevicesItSees) {
  auto device = MakeCudaRankDevice(&driver_, "GPU-7");
  EXPECT_EQ(device.status().code(), Code::kNotFound);
  EXPECT_THAT(device.status().message(), HasSubstr("GPU-0, GPU-1"));
}

TEST_F(CudaRankDeviceTest, RunsAHostFunctionOnceAndFreesIt) {
  auto stream = Device()->MakeStream();
  ASSERT_TRUE(stream.ok());
  auto held = std::make_shared<int>(0);
  ASSERT_TRUE((*stream)->Enqueue([held] { ++*held; }).ok());
  EXPECT_EQ(held.use_count(), 2);
  function_(argument_);
  EXPECT_EQ(*held, 1);
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(CudaRankDeviceTest, FreesAFunctionThatCouldNotBeEnqueued) {
  auto stream = Device()->MakeStream();
  EXPECT_CALL(driver_, LaunchHostFunc).WillOnce(Return(Internal("no")));
  auto held = std::make_shared<int>(0);
  EXPECT_FALSE((*stream)->Enqueue([held] {}).ok());
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(CudaRankDeviceTest, KeepsCapturedFunctionsForEveryReplay) {
  ON_CALL(driver_, StreamEndCapture).WillByDefault(Return(Result<CUgraph>(reinterpret_cast<CUgraph>(0x30))));
  ON_CALL(driver_, GraphInstantiate)
      .WillByDefault(Return(Result<CUgraphExec>(reinterpret_cast<CUgraphExec>(0x40))));
  auto stream = Device()->MakeStream();
  ASSERT_TRUE((*stream)->BeginCapture().ok());
  auto held = std::make_shared<int>(0);
  ASSERT_TRUE((*stream)->Enqueue([held] { ++*held; }).ok());
  {
    auto graph = (*stream)->EndCapture();
    ASSERT_TRUE(graph.ok());
    function_(argument_);
    function_(argument_);
    EXPECT_EQ(*held, 2);
    EXPECT_EQ(held.use_count(), 2);
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST_F(CudaRankDeviceTest, GivesUpOnAStreamThatHangs) {
  ON_CALL(driver_, StreamQuery).WillByDefault(Return(Result<bool>(false)));
  auto stream = Device()->MakeStream();
  EXPECT_EQ((*stream)->Synchronize(Milliseconds(5)).code(), Code::kDeadlineExceeded);
}

TEST_F(CudaRankDeviceTest, MirrorsCopyBothWays) {
  auto device = Device();
  auto stream = device->MakeStream();
  OwnMemory memory;
  auto mirror = device->MakeMirror(memory);
  ASSERT_TRUE(mirror.ok());
  const auto host = reinterpret_cast<CUdeviceptr>((*mirror)->data());
  const auto own = reinterpret_cast<CUdeviceptr>(memory.data());
  EXPECT_CALL(driver_, MemcpyAsync(own + 8, host + 8, 16, stream_));
  EXPECT_TRUE((*mirror)->ToDevice(**stream, 8, 16).ok());
  EXPECT_CALL(driver_, MemcpyAsync(host + 4, own + 4, 12, stream_));
  EXPECT_TRUE((*mirror)->ToHost(**stream, 4, 12).ok());
  EXPECT_CALL(driver_, MemHostUnregister(reinterpret_cast<void*>(host)));
}

TEST_F(CudaRankDeviceTest, PinningThatFailsLeavesNothing) {
  auto device = Device();
  OwnMemory memory;
  EXPECT_CALL(driver_, MemHostRegister).WillOnce(Return(ResourceExhausted("cuMemHostRegister: no")));
  EXPECT_CALL(driver_, MemHostUnregister).Times(0);
  auto mirror = device->MakeMirror(memory);
  EXPECT_EQ(mirror.status().code(), Code::kResourceExhausted);
}

}  // namespace
}  // namespace tandem
