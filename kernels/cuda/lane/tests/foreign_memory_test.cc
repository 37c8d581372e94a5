// Words and foreign memory of the CUDA backend with a mocked driver: what is written where, what is shared,
// and what each refusal says.
#include "kernels/cuda/lane/foreign_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "drivers/cuda/mock_cuda_driver.h"
#include "kernels/cuda/lane/word_writer.h"

namespace tandem::cuda {
namespace {

using testing::_;
using testing::DoAll;
using testing::HasSubstr;
using testing::InSequence;
using testing::NiceMock;
using testing::Return;
using testing::SetArgPointee;

constexpr size_t kGranularity = size_t{2} << 20;
constexpr CUdeviceptr kOpened = 0x700000200000;
auto* const kStream = reinterpret_cast<CUstream>(32);
auto* const kWriterStream = reinterpret_cast<CUstream>(64);

class ForeignMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    MakeUsable(driver_, kGranularity, nullptr, kStream, nullptr);
    ON_CALL(driver_, StreamCreateWithPriority(_, -3)).WillByDefault(Return(Result<CUstream>(kWriterStream)));
    device_ = *CudaDevice::Create(&driver_, 0);
    ON_CALL(driver_, IpcOpenMemHandle(_)).WillByDefault(Return(Result<CUdeviceptr>(kOpened)));
    ON_CALL(driver_, MemGetAddressRange(_, _, _))
        .WillByDefault(
            DoAll(SetArgPointee<1>(kOpened - 4096), SetArgPointee<2>(kGranularity), Return(Status::Ok())));
  }
  static Status Driver(CUresult result, const char* name) {
    return CudaStatus("cuIpcOpenMemHandle", result, name, "text");
  }

  NiceMock<MockCudaDriver> driver_;
  std::shared_ptr<CudaDevice> device_;
  const std::string handle_ = std::string(64, 'h');
};

TEST_F(ForeignMemoryTest, OneMappingServesAllThatOpenAHandle) {
  ForeignMemory memory(device_);
  EXPECT_CALL(driver_, IpcOpenMemHandle(_)).Times(1);
  auto first = memory.Open(handle_, 0, 4096);
  auto second = memory.Open(handle_, 8192, 100);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*second)->data(), (*first)->data() + 8192);
  EXPECT_EQ((*second)->bytes(), 100u);
  EXPECT_TRUE((*first)->ReleaseBlocks());
  first->reset();
  testing::Mock::VerifyAndClearExpectations(&driver_);
  EXPECT_CALL(driver_, IpcCloseMemHandle(kOpened)).Times(1);
  second->reset();
  testing::Mock::VerifyAndClearExpectations(&driver_);
  EXPECT_CALL(driver_, IpcOpenMemHandle(_)).WillOnce(Return(Result<CUdeviceptr>(kOpened)));
  EXPECT_TRUE(memory.Open(handle_, 0, 1).ok()) << "opened anew after its end";
}

TEST_F(ForeignMemoryTest, NothingBeyondTheAllocationIsReached) {
  ForeignMemory memory(device_);
  const size_t left = kGranularity - 4096;  // the handle's memory begins inside its allocation
  const auto bytes = [&](uint64_t offset, size_t wanted) {
    auto part = memory.Open(handle_, offset, wanted);
    EXPECT_TRUE(part.ok()) << part.status().ToString();
    EXPECT_LE((*part)->data() + (*part)->bytes(), reinterpret_cast<std::byte*>(kOpened + left));
    return (*part)->bytes();
  };
  EXPECT_EQ(bytes(left - 1, 1), 1u);
  EXPECT_EQ(bytes(left, 1), 0u);
  EXPECT_EQ(bytes(~uint64_t{0}, 2), 0u);
  EXPECT_EQ(bytes(0, left + 1), left);
  EXPECT_EQ(bytes(left - 5, ~size_t{0}), 5u);
}

// Closing may block behind lanes: not before its caller lets go of it, then at once.
TEST_F(ForeignMemoryTest, ARangeThatIsTooShortIsClosedByItsCaller) {
  ForeignMemory memory(device_);
  EXPECT_CALL(driver_, IpcCloseMemHandle(_)).Times(0);
  auto part = memory.Open(handle_, kGranularity, 1);
  ASSERT_TRUE(part.ok());
  EXPECT_TRUE((*part)->ReleaseBlocks());
  testing::Mock::VerifyAndClearExpectations(&driver_);
  EXPECT_CALL(driver_, IpcCloseMemHandle(kOpened)).Times(1);
  part->reset();
}

TEST_F(ForeignMemoryTest, EachRefusalSaysWhatItMeans) {
  ForeignMemory memory(device_);
  EXPECT_EQ(memory.Open("short", 0, 1).status().code(), Code::kInvalidArgument);
  struct Case {
    CUresult result;
    const char* name;
    Code code;
    const char* text;
  };
  for (const Case& c :
       {Case{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", Code::kInvalidArgument,
             "this very process"},
        Case{CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED", Code::kFailedPrecondition, "freed"},
        Case{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", Code::kInvalidArgument, "is none"},
        Case{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", Code::kAborted,
             "cuIpcOpenMemHandle"}}) {
    EXPECT_CALL(driver_, IpcOpenMemHandle(_)).WillOnce(Return(Result<CUdeviceptr>(Driver(c.result, c.name))));
    Status status = memory.Open(handle_, 0, 1).status();
    EXPECT_EQ(status.code(), c.code) << c.name;
    EXPECT_THAT(status.message(), HasSubstr(c.text));
  }
}

TEST_F(ForeignMemoryTest, HostWordsAreStoredToAndDeviceWordsGoByTheWritersStream) {
  auto writer = *WordWriter::Create(device_);
  alignas(4096) static Word page[512];
  EXPECT_CALL(driver_, MemHostRegister(page, 4096, _));
  ASSERT_TRUE(writer->Register(page, 100).ok()) << "whole pages are registered";
  EXPECT_EQ(writer->Register(page, 4096).code(), Code::kAlreadyExists);
  EXPECT_CALL(driver_, StreamWriteValue64(_, _, _)).Times(0);
  ASSERT_TRUE(writer->Store(page + 511, 7).ok());
  EXPECT_EQ(page[511].load(), 7u);
  EXPECT_EQ(*writer->Load(page + 511), 7u);
  ASSERT_TRUE(writer->Fill(page, 9, 3).ok());
  EXPECT_EQ(page[2].load(), 9u);
  EXPECT_CALL(driver_, StreamWriteValue64(kWriterStream, reinterpret_cast<CUdeviceptr>(page + 512), 5));
  ASSERT_TRUE(writer->Store(page + 512, 5).ok()) << "the next page is the device's";
  EXPECT_CALL(driver_, MemHostUnregister(_)).Times(testing::AnyNumber());  // the writer's own, at its end
  EXPECT_CALL(driver_, MemHostUnregister(page)).Times(1);
  ASSERT_TRUE(writer->Unregister(page).ok());
  EXPECT_EQ(writer->Unregister(page).code(), Code::kNotFound);
  EXPECT_CALL(driver_, StreamWriteValue64(kWriterStream, reinterpret_cast<CUdeviceptr>(page), 6));
  ASSERT_TRUE(writer->Store(page, 6).ok());
}

TEST_F(ForeignMemoryTest, AFillCopiesItsValueAndWaitsBeforeItStagesAnother) {
  auto writer = *WordWriter::Create(device_);
  auto* device_words = reinterpret_cast<Word*>(kOpened);
  std::vector<uint64_t> copied;
  ON_CALL(driver_, MemcpyAsync(_, _, _, kWriterStream))
      .WillByDefault([&](CUdeviceptr, CUdeviceptr source, size_t bytes, CUstream) {
        copied.resize(bytes / 8);
        std::memcpy(copied.data(), reinterpret_cast<void*>(source), bytes);
        return Status::Ok();
      });
  {
    InSequence order;
    EXPECT_CALL(driver_, StreamSynchronize(kWriterStream));
    EXPECT_CALL(driver_, MemcpyAsync(kOpened, _, 4096 * 8, kWriterStream));
    EXPECT_CALL(driver_, MemcpyAsync(kOpened + 4096 * 8, _, 904 * 8, kWriterStream));
    EXPECT_CALL(driver_, MemcpyAsync(kOpened, _, 80, kWriterStream));  // the same value: nothing to wait for
    EXPECT_CALL(driver_, StreamSynchronize(kWriterStream));
    EXPECT_CALL(driver_, MemcpyAsync(kOpened, _, 16, kWriterStream));
  }
  ASSERT_TRUE(writer->Fill(device_words, 42, 5000).ok());
  EXPECT_EQ(std::accumulate(copied.begin(), copied.end(), uint64_t{0}), 42u * 904);
  ASSERT_TRUE(writer->Fill(device_words, 42, 10).ok());
  ASSERT_TRUE(writer->Fill(device_words, 43, 2).ok());
  EXPECT_EQ(copied, (std::vector<uint64_t>{43, 43}));
}

TEST_F(ForeignMemoryTest, AFailedWriteIsToldToTheCaller) {
  auto writer = *WordWriter::Create(device_);
  EXPECT_CALL(driver_, StreamWriteValue64(_, _, _)).WillOnce(Return(Aborted("cuStreamWriteValue64: lost")));
  EXPECT_EQ(writer->Store(reinterpret_cast<Word*>(kOpened), 1).code(), Code::kAborted);
  EXPECT_CALL(driver_, MemcpyAsync(_, _, _, _)).WillOnce(Return(Aborted("cuMemcpyAsync: lost")));
  EXPECT_EQ(writer->Fill(reinterpret_cast<Word*>(kOpened), 1, 1).code(), Code::kAborted);
}

}  // namespace
}  // namespace tandem::cuda
