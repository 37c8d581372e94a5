// When memory that was opened by CUDA IPC handle is closed again: the CUDA backend's with a mocked driver,
// under the engine's table.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "drivers/cuda/mock_cuda_driver.h"
#include "engine/memory/deferred_release.h"
#include "engine/memory/memory_table.h"
#include "engine/tests/wrapped_backend.h"
#include "kernels/cuda/lane/foreign_memory.h"
#include "kernels/host/host_backend.h"

namespace tandem::engine {
namespace {

using testing::_;
using testing::DoAll;
using testing::HasSubstr;
using testing::Mock;
using testing::NiceMock;
using testing::Return;
using testing::SetArgPointee;

constexpr size_t kAllocated = size_t{2} << 20;
constexpr CUdeviceptr kOpened = 0x700000200000;

// The host's, but for memory behind handles.
class ImportingBackend : public WrappedBackend {
 public:
  ImportingBackend(std::unique_ptr<Backend> host, std::shared_ptr<cuda::CudaDevice> device)
      : WrappedBackend(std::move(host),
                       [](std::unique_ptr<Lane> lane, int, WrappedBackend&) { return lane; }),
        foreign_(std::move(device)) {}
  Result<std::unique_ptr<Segment>> ImportIpc(std::string_view handle, uint64_t offset,
                                             size_t bytes) override {
    return foreign_.Open(handle, offset, bytes);
  }

 private:
  cuda::ForeignMemory foreign_;
};

class EngineImportTest : public testing::Test {
 protected:
  EngineImportTest() {
    cuda::MakeUsable(driver_, kAllocated, nullptr, reinterpret_cast<CUstream>(32), nullptr);
    ON_CALL(driver_, IpcOpenMemHandle(_)).WillByDefault(Return(Result<CUdeviceptr>(kOpened)));
    ON_CALL(driver_, MemGetAddressRange(_, _, _))
        .WillByDefault(DoAll(SetArgPointee<1>(kOpened), SetArgPointee<2>(kAllocated), Return(Status::Ok())));
    auto host = MakeHostBackend({.gpu = 0, .hardware_queues = 1, .memory_bytes = 1 << 20});
    backend_ = std::make_unique<ImportingBackend>(std::move(*host), *cuda::CudaDevice::Create(&driver_, 0));
    memory_ = std::make_unique<MemoryTable>(backend_.get(), dead_);
  }
  Status Add(uint64_t id, uint64_t bytes, uint64_t offset) {
    return memory_->AddIpc(id, 3, bytes, handle_, offset);
  }

  NiceMock<cuda::MockCudaDriver> driver_;
  const std::string handle_ = std::string(64, 'h');
  std::shared_ptr<DeferredRelease> dead_ = std::make_shared<DeferredRelease>();
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<MemoryTable> memory_;
};

// Closing may block behind every lane, of a range that is refused as of any other.
TEST_F(EngineImportTest, ARefusedRangeIsClosedWhileNoLaneHoldsWork) {
  EXPECT_CALL(driver_, IpcCloseMemHandle(_)).Times(0);
  const Status refused = Add(5, 4097, kAllocated - 4096);
  EXPECT_EQ(refused.code(), Code::kOutOfRange);
  EXPECT_THAT(refused.message(), HasSubstr("has 4096 bytes from 2093056 on"));
  EXPECT_EQ(Add(5, 1, kAllocated + 1).code(), Code::kOutOfRange);
  EXPECT_EQ(Add(5, 1, ~uint64_t{0}).code(), Code::kOutOfRange);
  EXPECT_EQ(memory_->RemoveRegistration(5).code(), Code::kNotFound);
  Mock::VerifyAndClearExpectations(&driver_);
  EXPECT_FALSE(dead_->empty());
  EXPECT_CALL(driver_, IpcCloseMemHandle(kOpened)).Times(1);
  while (!dead_->empty()) dead_->RunOne(backend_.get());
}

TEST_F(EngineImportTest, ARegistrationIsClosedBehindItsEnd) {
  EXPECT_CALL(driver_, IpcCloseMemHandle(_)).Times(0);
  ASSERT_TRUE(Add(5, 4096, kAllocated - 4096).ok());
  EXPECT_TRUE(dead_->empty());
  ASSERT_TRUE(memory_->RemoveRegistration(5).ok());
  Mock::VerifyAndClearExpectations(&driver_);
  EXPECT_CALL(driver_, IpcCloseMemHandle(kOpened)).Times(1);
  dead_->RunOne(backend_.get());
  EXPECT_TRUE(dead_->empty());
}

}  // namespace
}  // namespace tandem::engine
