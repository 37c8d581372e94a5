// Words on a GPU: lanes write and wait for them in device memory and in registered host memory, and the CPU's
// writes pass lanes that wait.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "drivers/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPage = 4096;
constexpr uint64_t kRelease = uint64_t{1} << 62;

template <typename Condition>
bool Eventually(Condition condition) {
  auto deadline = Clock::now() + std::chrono::seconds(10);
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

class CudaWordsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = MakeCudaBackend({});
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    backend_ = std::move(*made);
    size_t bytes = backend_->SegmentGranularity();
    auto fd = backend_->AllocateSegment(bytes);
    ASSERT_TRUE(fd.ok()) << fd.status().ToString();
    auto segment = backend_->MapSegment(fd->get(), bytes);
    ASSERT_TRUE(segment.ok()) << segment.status().ToString();
    segment_ = std::move(*segment);
    for (int i = 0; i < 8; ++i) {
      lanes_.push_back(std::move(*backend_->MakeLane(i == 0 ? 0 : 1)));
      events_.push_back(std::move(*backend_->MakeEvent()));
    }
  }
  Word* DeviceWord(size_t index) { return reinterpret_cast<Word*>(segment_->data()) + index; }
  // Reads device memory; on a separate stream, since lanes may wait.
  std::vector<uint64_t> Read(size_t first, size_t count) {
    std::vector<uint64_t> words(count);
    auto* driver = *cuda::LoadCudaDriver();
    CUstream stream = *driver->StreamCreateWithPriority(CU_STREAM_NON_BLOCKING, 0);
    EXPECT_TRUE(driver
                    ->MemcpyAsync(reinterpret_cast<CUdeviceptr>(words.data()),
                                  reinterpret_cast<CUdeviceptr>(DeviceWord(first)), count * 8, stream)
                    .ok());
    EXPECT_TRUE(driver->StreamSynchronize(stream).ok());
    EXPECT_TRUE(driver->StreamDestroy(stream).ok());
    return words;
  }
  void* NewPage() {
    void* page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(page, MAP_FAILED);
    return page;
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Segment> segment_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<std::unique_ptr<Event>> events_;
};

TEST_F(CudaWordsTest, WritesOfTheCpuPassAllWaitingLanes) {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    ASSERT_TRUE(lanes_[i]->WaitWord(DeviceWord(i), 5).ok());
    ASSERT_TRUE(lanes_[i]->Record(events_[i].get()).ok());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  for (const auto& event : events_) EXPECT_FALSE(event->Done());
  EXPECT_TRUE(backend_->StoreWord(DeviceWord(0), 4).ok());
  EXPECT_EQ(Read(0, 1)[0], 4u);
  EXPECT_EQ(*backend_->LoadWord(DeviceWord(0)), 4u);
  EXPECT_FALSE(events_[0]->Done());
  for (size_t i = 0; i < lanes_.size(); ++i) {
    auto begin = Clock::now();
    EXPECT_TRUE(backend_->StoreWord(DeviceWord(i), 5).ok());
    ASSERT_TRUE(Eventually([&] { return events_[i]->Done(); })) << "lane " << i << " still waits";
    std::chrono::duration<double, std::micro> took = Clock::now() - begin;
    if (i > 0) RecordProperty("release_us_" + std::to_string(i), std::to_string(took.count()));
  }
}

TEST_F(CudaWordsTest, FillsPassWaitingLanesAndFillNothingElse) {
  constexpr size_t kFirst = 100, kCount = 10000;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    ASSERT_TRUE(lanes_[i]->WaitWord(DeviceWord(kFirst + i * 1000), 1).ok());
    ASSERT_TRUE(lanes_[i]->Record(events_[i].get()).ok());
  }
  ASSERT_TRUE(backend_->FillWords(DeviceWord(kFirst), kRelease, kCount).ok());
  for (const auto& event : events_) ASSERT_TRUE(Eventually([&] { return event->Done(); }));
  std::vector<uint64_t> words = Read(kFirst - 1, kCount + 2);
  EXPECT_EQ(words.front(), 0u);
  EXPECT_EQ(words.back(), 0u);
  for (size_t i = 1; i <= kCount; ++i) ASSERT_EQ(words[i], kRelease) << i;
  // Another value, while the first may still be on its way.
  ASSERT_TRUE(backend_->FillWords(DeviceWord(kFirst), 7, 50).ok());
  ASSERT_TRUE(backend_->FillWords(DeviceWord(kFirst), 9, 20).ok());
  ASSERT_TRUE(Eventually([&] { return Read(kFirst, 1)[0] == 9; }));
  EXPECT_EQ(Read(kFirst + 20, 1)[0], 7u);
}

TEST_F(CudaWordsTest, RegisteredHostWordsGoBothWays) {
  auto* words = static_cast<Word*>(NewPage());
  ASSERT_TRUE(backend_->RegisterHostMemory(words, kPage).ok());
  EXPECT_EQ(backend_->RegisterHostMemory(words, kPage).code(), Code::kAlreadyExists);
  ASSERT_TRUE(lanes_[1]->WaitWord(words, 3).ok());
  ASSERT_TRUE(lanes_[1]->WriteWord(words + 1, 11).ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(words[1].load(), 0u);
  ASSERT_TRUE(backend_->StoreWord(words, 3).ok());
  EXPECT_EQ(words[0].load(), 3u);
  EXPECT_TRUE(Eventually([&] { return words[1].load() == 11; }));
  ASSERT_TRUE(lanes_[1]->Record(events_[1].get()).ok());
  ASSERT_TRUE(Eventually([&] { return events_[1]->Done(); }));
  EXPECT_TRUE(backend_->UnregisterHostMemory(words).ok());
  EXPECT_EQ(backend_->UnregisterHostMemory(words).code(), Code::kNotFound);
  ::munmap(words, kPage);
}

TEST_F(CudaWordsTest, ClearedMemoryIsZeroAndNothingElse) {
  ASSERT_TRUE(backend_->FillWords(DeviceWord(0), 5, 100).ok());
  ASSERT_TRUE(Eventually([&] { return Read(99, 1)[0] == 5; }));
  ASSERT_TRUE(backend_->ClearMemory(segment_->data() + 8, 8 * 50).ok());
  std::vector<uint64_t> words = Read(0, 100);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(words[i], i >= 1 && i <= 50 ? 0u : 5u) << i;
}

TEST_F(CudaWordsTest, HealthIsFineAndCheap) {
  auto begin = Clock::now();
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(backend_->Health().ok());
  std::chrono::duration<double, std::micro> took = Clock::now() - begin;
  EXPECT_LT(took.count() / 1000, 50.0);
}

}  // namespace
}  // namespace tandem
