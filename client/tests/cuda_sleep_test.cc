// A CUDA client's queue gives up its memory on the GPU while its group sleeps, without a GPU. The driver's memory is memory
// of this process: a read where nothing is mapped ends the test.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <map>

#include "client/lib/base/deferred_reclaimer.h"
#include "client/lib/client_launch/client_group.h"
#include "client/lib/client_launch/cuda/client_fused_state.h"
#include "client/lib/client_launch/cuda/cuda_client_queue.h"
#include "client/lib/devices/cuda_client_device.h"
#include "client/tests/fake_gpus.h"

namespace tandem::client {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;

// Memory that is created, in files, and mapped where it is asked for.
class MemoryGpus : public FakeGpus {
 public:
  MemoryGpus() {
    ON_CALL(*this, MemCreate).WillByDefault([this](size_t bytes, const CUmemAllocationProp&) {
      return Create(bytes);
    });
    ON_CALL(*this, MemRelease).WillByDefault([this](CUmemGenericAllocationHandle handle) {
      return files_.erase(handle) == 1 ? Status::Ok() : BadValue();
    });
    ON_CALL(*this, MemAddressReserve).WillByDefault([this](size_t bytes, size_t) -> Result<CUdeviceptr> {
      ++reserved;
      return reinterpret_cast<CUdeviceptr>(
          ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    });
    ON_CALL(*this, MemAddressFree).WillByDefault([this](CUdeviceptr address, size_t bytes) {
      --reserved;
      return ::munmap(reinterpret_cast<void*>(address), bytes) == 0 ? Status::Ok() : BadValue();
    });
    ON_CALL(*this, MemMap)
        .WillByDefault([this](CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle) {
          return Place(address, bytes, MAP_SHARED, files_.at(handle).get());
        });
    ON_CALL(*this, MemUnmap).WillByDefault([](CUdeviceptr address, size_t bytes) {
      return Place(address, bytes, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    });
    ON_CALL(*this, MemsetD8Async)
        .WillByDefault([](CUdeviceptr to, unsigned char value, size_t bytes, CUstream) {
          std::memset(reinterpret_cast<void*>(to), value, bytes);
          return Status::Ok();
        });
    ON_CALL(*this, MemcpyAsync).WillByDefault([](CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream) {
      std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
      return Status::Ok();
    });
  }
  size_t held() const { return files_.size(); }

  int reserved = 0;
  bool full = false;  // no memory can be created

 private:
  Result<CUmemGenericAllocationHandle> Create(size_t bytes) {
    if (full) return ResourceExhausted("CUDA_ERROR_OUT_OF_MEMORY (2)");
    TANDEM_ASSIGN_OR_RETURN(UniqueFd file, CreateSealedMemfd("gpu", bytes));
    files_[++last_] = std::move(file);
    return last_;
  }
  static Status Place(CUdeviceptr address, size_t bytes, int flags, int file) {
    const int access = file < 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
    void* const at = reinterpret_cast<void*>(address);
    return ::mmap(at, bytes, access, flags | MAP_FIXED, file, 0) == at ? Status::Ok() : BadValue();
  }
  std::map<CUmemGenericAllocationHandle, UniqueFd> files_;
  CUmemGenericAllocationHandle last_ = 0;
};

class CudaSleepTest : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeGpus::current = gpus_.ContextOf(0);
    device_ = cuda::CudaDevice::Create(&gpus_, 0).value();
    DeferredReclaimer::Get().SetGrace(Milliseconds(0));
  }
  void TearDown() override {
    AwaitReclaimer();
    EXPECT_EQ(gpus_.held(), 0u);
    EXPECT_EQ(gpus_.reserved, 0);
  }
  static void AwaitReclaimer() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (DeferredReclaimer::Get().kept() != 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(DeferredReclaimer::Get().kept(), 0u);
  }

  MemoryGpus gpus_;
  std::shared_ptr<cuda::CudaDevice> device_;
};

TEST_F(CudaSleepTest, MemoryComesBackAtItsAddress) {
  auto memory = cuda::VmmAllocation::Create(device_, 2 * kGranularity).value();
  std::byte* const place = memory.data();
  place[0] = std::byte{1};
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(memory.Vacate().ok());
    ASSERT_TRUE(memory.Vacate().ok());
    EXPECT_EQ(gpus_.held(), 0u);
    ASSERT_TRUE(memory.RefillAnew().ok());
    EXPECT_EQ(gpus_.held(), 1u);
    EXPECT_EQ(memory.data(), place);
    EXPECT_EQ(place[0], std::byte{0});
    place[2 * kGranularity - 1] = std::byte{2};
    ASSERT_TRUE(memory.RefillAnew().ok());
    EXPECT_EQ(place[2 * kGranularity - 1], std::byte{2});
  }
}

TEST_F(CudaSleepTest, WithoutMemoryItMayBeAskedForAgain) {
  auto memory = cuda::VmmAllocation::Create(device_, kGranularity).value();
  ASSERT_TRUE(memory.Vacate().ok());
  gpus_.full = true;
  EXPECT_EQ(memory.RefillAnew().code(), Code::kResourceExhausted);
  EXPECT_EQ(memory.RefillAnew().code(), Code::kResourceExhausted);
  gpus_.full = false;
  ASSERT_TRUE(memory.RefillAnew().ok());
  memory.data()[0] = std::byte{1};
}

TEST_F(CudaSleepTest, AFusedStateGivesUpAllThatItHasAllocated) {
  auto state = ClientFusedState::Make(device_).value();
  auto staged = state->Allocate(100).value();
  auto dropped = state->Allocate(100).value();
  std::byte* const place = staged.get();
  const uint64_t* const cancelled = state->memory().cancelled;
  EXPECT_EQ(gpus_.held(), 3u);
  ASSERT_TRUE(state->Vacate().ok());
  EXPECT_EQ(gpus_.held(), 0u);
  dropped.reset();
  AwaitReclaimer();
  ASSERT_TRUE(state->Refill().ok());
  EXPECT_EQ(gpus_.held(), 2u);
  EXPECT_EQ(staged.get(), place);
  place[99] = std::byte{1};
  EXPECT_EQ(state->memory().cancelled, cancelled);
  EXPECT_EQ(*cancelled, 0u);
}

class SleepingQueueTest : public CudaSleepTest {
 protected:
  void SetUp() override {
    CudaSleepTest::SetUp();
    client_ = CudaClientDevice::Create(&gpus_).value();
    const auto fd = VerdictPage::Create().value();
    group_ =
        std::make_unique<ClientGroup>(1, 0, VerdictPage::Map(fd.get()).value(), [](const FailureReport&) {});
    auto pages = ClientPages::Make(device_, *client_, "GPU-0", group_->page()).value();
    pages_ = pages.get();
    group_->SetQueue(std::make_unique<CudaClientQueue>(*group_, std::move(pages), nullptr));
  }
  void TearDown() override {
    group_.reset();
    CudaSleepTest::TearDown();
  }

  std::shared_ptr<ClientDevice> client_;
  std::unique_ptr<ClientGroup> group_;
  ClientPages* pages_ = nullptr;
};

TEST_F(SleepingQueueTest, CountsAreReadAndGoOnAcrossASleep) {
  ClientQueue& queue = group_->queue();
  ASSERT_TRUE(queue.Restart(7).ok());
  const cuda::GroupDeviceState places = pages_->group_state();
  *places.looked = 5;
  EXPECT_EQ(gpus_.held(), 1u);
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_TRUE(queue.Vacate().ok());
    ASSERT_TRUE(queue.Vacate().ok());
    EXPECT_EQ(gpus_.held(), 0u);
    queue.ReportProgress();
    queue.PollFailures();
    EXPECT_EQ(pages_->ReadCount().value(), 7u + static_cast<uint64_t>(turn));
    ASSERT_TRUE(queue.Refill().ok());
    ASSERT_TRUE(queue.Refill().ok());
    EXPECT_EQ(gpus_.held(), 1u);
    EXPECT_EQ(pages_->group_state().counters, places.counters);
    EXPECT_EQ(*places.counters, 7u + static_cast<uint64_t>(turn));
    EXPECT_EQ(*places.looked, 5u);
    ASSERT_TRUE(queue.Restart(8 + static_cast<uint64_t>(turn)).ok());
    EXPECT_EQ(pages_->ReadCount().value(), 8u + static_cast<uint64_t>(turn));
  }
}

TEST_F(SleepingQueueTest, WithoutMemoryItSleepsOn) {
  ClientQueue& queue = group_->queue();
  ASSERT_TRUE(queue.Restart(7).ok());
  ASSERT_TRUE(queue.Vacate().ok());
  gpus_.full = true;
  EXPECT_EQ(queue.Refill().code(), Code::kResourceExhausted);
  queue.ReportProgress();
  gpus_.full = false;
  ASSERT_TRUE(queue.Refill().ok());
  EXPECT_EQ(pages_->ReadCount().value(), 7u);
}

TEST_F(SleepingQueueTest, AGroupMayEndAsleep) {
  ASSERT_TRUE(group_->queue().Vacate().ok());
  group_.reset();
}

}  // namespace
}  // namespace tandem::client
