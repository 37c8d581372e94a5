// File: hooked_gpu_test.h
//
// The common fixture of tests of fused kernels with pauses and planted faults: one GPU with the test hooks
// loaded, and its memory. Words of the host that kernels see, a lane for a squatter, and a stream for copies
// that are waited for.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/lane/cuda_lane.h"
#include "tests/gpu/fused/fused_test_hooks.h"

namespace tandem::cuda {

class HookedGpuTest : public testing::Test {
 protected:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kPage = 4096;
  static constexpr size_t kMemory = size_t{64} << 20;

  // Skips where there are no fused kernels: what derives from this looks at IsSkipped().
  void SetUp() override {
    auto made = MakeCudaBackend({});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend_ = std::move(*made);
    if (!backend_->FusedKernels().ok()) GTEST_SKIP() << backend_->FusedKernels().ToString();
    driver_ = *LoadCudaDriver();
    auto fd = backend_->AllocateSegment(kMemory);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    auto segment = backend_->MapSegment(fd->get(), kMemory);
    ASSERT_TRUE(segment.ok()) << segment.status().ToString();
    segment_ = std::move(*segment);
    next_ = segment_->data();
    end_ = next_ + kMemory;
    page_ = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page_, MAP_FAILED);
    ASSERT_TRUE(backend_->RegisterHostMemory(page_, kPage).ok());
    squatter_ = std::move(*backend_->MakeLane(0));
    service_ = *driver_->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, 0);
    ASSERT_TRUE(LoadFusedTestHooks().ok());
  }
  void TearDown() override {
    if (driver_ == nullptr) return;
    *HostWord(1) = 1;  // the squatter, if a check failed
    if (squatter_) Sync(squatter_);
    if (service_ != nullptr) {
      EXPECT_TRUE(driver_->StreamDestroy(service_).ok());
    }
    EXPECT_TRUE(backend_->UnregisterHostMemory(page_).ok());
    ::munmap(page_, kPage);
  }

  std::byte* Take(size_t bytes) {
    std::byte* taken = next_;
    next_ += (bytes + 1023) / 1024 * 1024;
    EXPECT_LE(next_, end_);
    return taken;
  }
  volatile uint32_t* HostWord(int index) const { return static_cast<uint32_t*>(page_) + 32 * index; }
  CUstream stream(const std::unique_ptr<Lane>& lane) const { return dynamic_cast<CudaLane&>(*lane).stream(); }
  void Sync(const std::unique_ptr<Lane>& lane) {
    ASSERT_TRUE(backend_->MakeEvent().ok());  // makes the context current
    ASSERT_TRUE(driver_->StreamSynchronize(stream(lane)).ok());
  }
  static bool EndsWithin(const Event& ended, std::chrono::milliseconds time) {
    const auto deadline = Clock::now() + time;
    while (!ended.Done()) {
      if (Clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  void Move(void* to, const void* from, size_t bytes) {
    ASSERT_TRUE(driver_
                    ->MemcpyAsync(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from),
                                  bytes, service_)
                    .ok());
    ASSERT_TRUE(driver_->StreamSynchronize(service_).ok());
  }
  // In bf16.
  void Upload(std::byte* to, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * 2);
    for (size_t i = 0; i < values.size(); ++i) StoreFromFloat(bytes.data(), DType::kBf16, i, values[i]);
    Move(to, bytes.data(), bytes.size());
  }

  std::unique_ptr<Backend> backend_;
  CudaDriver* driver_ = nullptr;
  std::unique_ptr<Segment> segment_;
  std::byte *next_ = nullptr, *end_ = nullptr;
  void* page_ = nullptr;
  std::unique_ptr<Lane> squatter_;
  CUstream service_ = nullptr;
};

}  // namespace tandem::cuda
