// Lanes allocate nothing per operation: counted by this program's own operator new. (Eigen's workspace for
// large products is not: it takes that by malloc.)
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "kernels/host/host_backend.h"

namespace {

std::atomic<uint64_t> allocations{0};

}  // namespace

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tandem {
namespace {

DeviceView View(std::vector<float>& memory, std::vector<int64_t> extent, std::vector<int64_t> stride,
                DType dtype = DType::kF32) {
  return {reinterpret_cast<std::byte*>(memory.data()), dtype, std::move(extent), std::move(stride)};
}

TEST(HostLaneTest, OperationsAllocateNothingOnceTheyHaveBeenSeen) {
  HostBackendOptions options;
  options.hardware_queues = 1;
  auto backend = MakeHostBackend(options);
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  auto lane = (*backend)->MakeLane(1);
  auto event = (*backend)->MakeEvent();
  ASSERT_TRUE(lane.ok() && event.ok());
  std::vector<float> a(64 * 64, 1.0f), b(64 * 64, 2.0f), c(64 * 64), d(64 * 64), bias(64, 3.0f);
  const CopyArgs row{{View(a, {4096}, {1}), View(d, {4096}, {1}), true}};
  const CopyArgs strided{{View(a, {64, 32}, {64, 2}), View(d, {64, 32}, {64, 1}), true}};
  ReduceArgs reduce;
  for (auto* source : {&a, &b, &d}) reduce.sources.push_back(View(*source, {64, 64}, {64, 1}));
  reduce.dst = View(c, {64, 64}, {64, 1});
  reduce.has_bias = true;
  reduce.bias = View(bias, {64}, {1});
  MatmulArgs product;
  product.a = View(a, {64, 64}, {64, 1}, DType::kBf16);  // converted: needs room
  product.b = View(b, {64, 64}, {64, 1}, DType::kBf16);
  product.c = View(c, {64, 64}, {64, 1}, DType::kBf16);
  product.has_bias = true;
  product.bias = View(bias, {64}, {1});
  NormArgs norm;
  norm.sum = View(a, {64, 64}, {64, 1});
  norm.out = View(d, {64, 64}, {64, 1});
  norm.weight = View(bias, {64}, {1});
  Word word{0};
  uint64_t rounds = 0;
  const auto round = [&] {
    for (int i = 0; i < 4; ++i) {
      ASSERT_TRUE((*lane)->Copy(row).ok());
      ASSERT_TRUE((*lane)->Copy(strided).ok());
      ASSERT_TRUE((*lane)->Reduce(reduce).ok());
      ASSERT_TRUE((*lane)->Matmul(product).ok());
      ASSERT_TRUE((*lane)->Norm(norm).ok());
      ASSERT_TRUE((*lane)->Record(event->get()).ok());
      ASSERT_TRUE((*lane)->Wait(event->get()).ok());
    }
    ASSERT_TRUE((*lane)->WriteWord(&word, ++rounds).ok());
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (word.load() < rounds) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
  };
  // How many operations wait at once depends on the threads' pace, and pools grow to the most that ever did.
  uint64_t last = 0;
  int quiet = 0;
  for (int i = 0; i < 1000 && quiet < 20; ++i) {
    const uint64_t before = allocations.load();
    ASSERT_NO_FATAL_FAILURE(round());
    last = allocations.load() - before;
    quiet = last == 0 ? quiet + 1 : 0;
  }
  EXPECT_GE(quiet, 20) << last << " allocations in a round of 28 operations";
}

}  // namespace
}  // namespace tandem
