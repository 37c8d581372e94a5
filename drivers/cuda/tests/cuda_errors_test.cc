// Error paths of the CUDA backend without a GPU: what statuses say, what a device refuses, and that memory is
// given back when a later step fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "drivers/cublaslt/cublas_lt.h"
#include "drivers/cuda/mock_cuda_driver.h"
#include "drivers/dynamic_library.h"
#include "drivers/nccl/nccl_library.h"
#include "kernels/cuda/device/cuda_device.h"
#include "kernels/cuda/lane/copy_plan.h"
#include "kernels/cuda/matmul/matmul_plan.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::HasSubstr;
using testing::NiceMock;
using testing::Return;

auto* const kContextHandle = reinterpret_cast<CUcontext>(16);
auto* const kStream = reinterpret_cast<CUstream>(32);
auto* const kEvent = reinterpret_cast<CUevent>(48);
constexpr size_t kGranularity = size_t{2} << 20;

TEST(CudaStatusTest, CarriesCallCodeAndText) {
  Status status =
      CudaStatus("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory");
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
  EXPECT_EQ(status.detail().reason, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(CudaStatus("cuInit", CUDA_ERROR_MPS_SERVER_NOT_READY, nullptr, nullptr).code(),
            Code::kUnavailable);
  EXPECT_EQ(CudaStatus("cuEventQuery", CUDA_ERROR_ILLEGAL_ADDRESS, nullptr, nullptr).code(), Code::kAborted);
  EXPECT_TRUE(CudaStatus("cuInit", CUDA_SUCCESS, nullptr, nullptr).ok());
  Status nccl = NcclStatus("ncclAllReduce", ncclRemoteError, "remote process exited");
  EXPECT_EQ(nccl.code(), Code::kUnavailable);
  EXPECT_THAT(nccl.message(), HasSubstr("ncclAllReduce: NCCL error 6: remote process exited"));
  EXPECT_TRUE(NcclStatus("ncclAllReduce", ncclInProgress, "").ok());
  EXPECT_EQ(CublasStatus("cublasLtMatmul", CUBLAS_STATUS_NOT_SUPPORTED, "x").code(), Code::kUnimplemented);
}

TEST(DynamicLibraryTest, SaysWhatCannotBeLoadedOrFound) {
  auto none = DynamicLibrary::Open({"libtandem-no-such-a.so", "libtandem-no-such-b.so"});
  EXPECT_EQ(none.status().code(), Code::kUnavailable);
  EXPECT_THAT(none.status().message(), HasSubstr("no-such-a"));
  EXPECT_THAT(none.status().message(), HasSubstr("no-such-b"));
  auto library = DynamicLibrary::Open({"libtandem-no-such-a.so", "libm.so.6"});
  ASSERT_TRUE(library.ok());
  double (*function)(double) = nullptr;
  EXPECT_TRUE(library->Find("cos", &function).ok());
  EXPECT_EQ(function(0.0), 1.0);
  Status missing = library->Find("no_such_symbol", &function);
  EXPECT_EQ(missing.code(), Code::kUnimplemented);
  EXPECT_THAT(missing.message(), HasSubstr("no_such_symbol"));
}

class CudaDeviceTest : public testing::Test {
 protected:
  CudaDeviceTest() {
    MakeUsable(driver, kGranularity, kContextHandle, kStream, kEvent);
    ON_CALL(driver, MemCreate(_, _)).WillByDefault(Return(Result<CUmemGenericAllocationHandle>(7)));
    ON_CALL(driver, MemImportFromFd(_)).WillByDefault(Return(Result<CUmemGenericAllocationHandle>(8)));
  }
  std::shared_ptr<CudaDevice> Device() { return *CudaDevice::Create(&driver, 0); }
  NiceMock<MockCudaDriver> driver;
};

TEST_F(CudaDeviceTest, KnowsThatItsContextIsLost) {
  auto device = Device();
  ON_CALL(driver, StreamQuery(kStream)).WillByDefault(Return(Result<bool>(false)));
  EXPECT_TRUE(device->Health().ok()) << "work on the service stream is no illness";
  ON_CALL(driver, StreamQuery(kStream))
      .WillByDefault(Return(
          Result<bool>(CudaStatus("cuStreamQuery", CUDA_ERROR_MPS_CLIENT_TERMINATED, "name", "text"))));
  Status lost = device->Health();
  EXPECT_EQ(lost.code(), Code::kAborted);
  EXPECT_EQ(lost.detail().reason, kContextLost);
  EXPECT_THAT(lost.message(), HasSubstr("cuStreamQuery"));
}

TEST_F(CudaDeviceTest, SaysWhyADeviceCannotServe) {
  EXPECT_EQ(CudaDevice::Create(&driver, 1).status().code(), Code::kUnavailable);
  EXPECT_CALL(driver, DeviceGetAttribute(_, _)).WillRepeatedly(Return(Result<int>(1)));
  EXPECT_CALL(driver, DeviceGetAttribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, _))
      .WillRepeatedly(Return(Result<int>(0)));
  auto device = CudaDevice::Create(&driver, 0);
  EXPECT_EQ(device.status().code(), Code::kUnimplemented);
  EXPECT_THAT(device.status().message(), HasSubstr("64-bit stream memory operations"));
  EXPECT_CALL(driver, Init()).WillOnce(Return(Unavailable("cuInit: no driver")));
  EXPECT_EQ(CudaDevice::Create(&driver, 0).status().code(), Code::kUnavailable);
}

TEST_F(CudaDeviceTest, PrioritiesStayInTheRange) {
  auto device = Device();
  EXPECT_EQ(device->StreamPriority(0), -5);
  EXPECT_EQ(device->StreamPriority(2), -3);
  EXPECT_EQ(device->StreamPriority(99), 0);
}

TEST_F(CudaDeviceTest, AFailedMapGivesEverythingBack) {
  auto device = Device();
  EXPECT_CALL(driver, MemMap(_, _, _)).WillOnce(Return(Internal("cuMemMap")));
  EXPECT_CALL(driver, MemUnmap(_, _)).Times(0);
  EXPECT_CALL(driver, MemAddressFree(kGranularity, kGranularity));
  EXPECT_CALL(driver, MemRelease(7));
  EXPECT_EQ(VmmAllocation::Create(device, 1).status().code(), Code::kInternal);
}

TEST_F(CudaDeviceTest, FailedAccessUnmapsToo) {
  auto device = Device();
  EXPECT_CALL(driver, MemSetAccess(_, _, _)).WillOnce(Return(Internal("cuMemSetAccess")));
  EXPECT_CALL(driver, MemUnmap(kGranularity, kGranularity));
  EXPECT_CALL(driver, MemAddressFree(kGranularity, kGranularity));
  EXPECT_CALL(driver, MemRelease(8));
  EXPECT_FALSE(VmmAllocation::Import(device, 3, kGranularity).ok());
}

TEST_F(CudaDeviceTest, ImportsAreChecked) {
  auto device = Device();
  EXPECT_EQ(VmmAllocation::Import(device, 3, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(VmmAllocation::Import(device, 3, 4096).status().code(), Code::kInvalidArgument);
  EXPECT_CALL(driver, MemImportFromFd(3)).WillOnce(Return(Internal("cuMemImportFromShareableHandle: bad")));
  auto foreign = VmmAllocation::Import(device, 3, kGranularity);
  EXPECT_EQ(foreign.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(foreign.status().message(), HasSubstr("cuMemImportFromShareableHandle"));
}

TEST_F(CudaDeviceTest, MovesOwnItsMemoryOnce) {
  auto device = Device();
  EXPECT_CALL(driver, MemRelease(7)).Times(1);
  VmmAllocation first = *VmmAllocation::Create(device, 5);
  EXPECT_EQ(first.bytes(), kGranularity);
  VmmAllocation second = std::move(first);
  first = std::move(second);
}

TEST_F(CudaDeviceTest, CopiesTakeTheEngineCallThatFits) {
  std::byte source[4096], destination[4096];
  auto copy = [&](std::vector<int64_t> extent, std::vector<int64_t> from, std::vector<int64_t> to) {
    CopyArgs args{{{source, DType::kF32, extent, std::move(from)},
                   {destination, DType::kF32, extent, std::move(to)},
                   true}};
    return EnqueueCopy(args, driver, kStream);
  };
  EXPECT_CALL(driver, MemcpyBesideKernelsAsync(_, _, 6 * 4, kStream))
      .WillOnce(Return(Internal("cuMemcpyBatchAsync")));
  EXPECT_EQ(copy({2, 3}, {3, 1}, {3, 1}).code(), Code::kInternal);
  EXPECT_CALL(driver, Memcpy3DBesideKernelsAsync(_, kStream))
      .WillOnce([](const CUDA_MEMCPY3D& call, CUstream) {
        EXPECT_EQ(call.srcPitch, 20u);
        EXPECT_EQ(call.dstPitch, 12u);
        EXPECT_EQ(call.WidthInBytes, 12u);
        EXPECT_EQ(call.Height, 2u);
        EXPECT_EQ(call.Depth, 1u);
        return Status::Ok();
      });
  EXPECT_TRUE(copy({2, 3}, {5, 1}, {3, 1}).ok());
  EXPECT_CALL(driver, Memcpy3DBesideKernelsAsync(_, kStream))
      .WillOnce([](const CUDA_MEMCPY3D& call, CUstream) {
        EXPECT_EQ(call.srcHeight, 4u);
        EXPECT_EQ(call.Depth, 2u);
        return Status::Ok();
      });
  EXPECT_TRUE(copy({2, 3, 3}, {20, 5, 1}, {16, 4, 1}).ok());
}

TEST(MapToLtTest, SaysWhatCublasLtCannotTake) {
  std::byte data[16];
  MatmulArgs args;
  args.a = {data, DType::kBf16, {64, 32}, {32, 1}};
  args.b = {data, DType::kBf16, {32, 16}, {16, 1}};
  args.c = {data, DType::kBf16, {64, 16}, {16, 1}};
  std::string reason;
  auto mapping = MapToLt(args, 64, 16, &reason);
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(mapping->swapped);
  EXPECT_EQ(mapping->product.d.rows, 16u);
  EXPECT_EQ(mapping->product.d.columns, 64u);
  EXPECT_FALSE(mapping->product.x.transposed);
  MatmulArgs strided = args;
  strided.b.stride = {32, 2};
  EXPECT_FALSE(MapToLt(strided, 64, 16, &reason));
  EXPECT_THAT(reason, HasSubstr("strides"));
  MatmulArgs mixed = args;
  mixed.b.dtype = DType::kF16;
  EXPECT_FALSE(MapToLt(mixed, 64, 16, &reason));
  EXPECT_THAT(reason, HasSubstr("type"));
  MatmulArgs float8 = args;
  float8.a.dtype = float8.b.dtype = DType::kF8E4M3;
  EXPECT_FALSE(MapToLt(float8, 64, 16, &reason));
  EXPECT_THAT(reason, HasSubstr("dense along K"));
  float8.b.stride = {1, 32};
  EXPECT_TRUE(MapToLt(float8, 64, 16, &reason));
}

}  // namespace
}  // namespace tandem::cuda
