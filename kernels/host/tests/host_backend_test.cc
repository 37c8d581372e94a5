// The emulated GPU: segments and their limits, imports, lanes and events.
#include "kernels/host/host_backend.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "common/shared_memory.h"

namespace tandem {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

std::unique_ptr<Backend> Make(HostBackendOptions options = {}) {
  return std::move(*MakeHostBackend(options));
}

bool WaitFor(const std::function<bool()>& condition) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(HostBackendTest, RefusesBadOptions) {
  EXPECT_FALSE(MakeHostBackend({.hardware_queues = 0}).ok());
  EXPECT_FALSE(MakeHostBackend({.hardware_queues = 33}).ok());
  EXPECT_EQ(Make()->Name(), "host");
}

TEST(HostBackendTest, SegmentsAreZeroedSealedAndSharedBetweenGpus) {
  auto owner = Make({.gpu = 0}), peer = Make({.gpu = 1});
  auto fd = owner->AllocateSegment(2 * kMiB);
  ASSERT_TRUE(fd.ok());
  auto mine = owner->MapSegment(fd->get(), 2 * kMiB);
  auto theirs = peer->MapSegment(fd->get(), 2 * kMiB);
  ASSERT_TRUE(mine.ok() && theirs.ok());
  EXPECT_EQ((*mine)->bytes(), 2 * kMiB);
  EXPECT_EQ(static_cast<int>((*theirs)->data()[kMiB]), 0);
  (*mine)->data()[kMiB] = std::byte{7};
  EXPECT_EQ(static_cast<int>((*theirs)->data()[kMiB]), 7);
  EXPECT_TRUE(CheckForeignMemfd(fd->get(), 2 * kMiB).ok());
  EXPECT_EQ(owner->MapSegment(fd->get(), 4 * kMiB).status().code(), Code::kInvalidArgument);
}

TEST(HostBackendTest, MemoryIsLimitedAndComesBack) {
  auto backend = Make({.memory_bytes = 8 * kMiB});
  EXPECT_EQ(backend->MemoryBytes(), 8 * kMiB);
  EXPECT_EQ(backend->AllocateSegment(kMiB).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->AllocateSegment(0).status().code(), Code::kInvalidArgument);
  auto fd = backend->AllocateSegment(6 * kMiB);
  ASSERT_TRUE(fd.ok());
  auto segment = backend->MapSegment(fd->get(), 6 * kMiB);
  ASSERT_TRUE(segment.ok());
  Status full = backend->AllocateSegment(4 * kMiB).status();
  EXPECT_EQ(full.code(), Code::kResourceExhausted);
  EXPECT_EQ(full.detail().limit, static_cast<long long>(8 * kMiB));
  EXPECT_EQ(full.detail().usage, static_cast<long long>(6 * kMiB));
  // A peer's segment is not charged.
  auto peer = Make();
  auto foreign = peer->AllocateSegment(8 * kMiB);
  EXPECT_TRUE(backend->MapSegment(foreign->get(), 8 * kMiB).ok());
  segment->reset();
  EXPECT_TRUE(backend->AllocateSegment(8 * kMiB).ok());
}

TEST(HostBackendTest, ImportChecksTheDescriptor) {
  auto backend = Make();
  UniqueFd unsealed(memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  EXPECT_EQ(backend->ImportMemory(unsealed.get(), 4096).status().code(), Code::kInvalidArgument);
  auto sealed = CreateSealedMemfd("client", 8192);
  EXPECT_TRUE(backend->ImportMemory(sealed->get(), 8192).ok());
  EXPECT_EQ(backend->ImportMemory(sealed->get(), 8193).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(backend->ImportMemory(0, 1).status().code(), Code::kInvalidArgument);
}

TEST(HostBackendTest, LanesCopyAfterTheirWaitAndEventsTellTheTime) {
  auto backend = Make({.hardware_queues = 2});
  auto first = *backend->MakeLane(1), second = *backend->MakeLane(1);
  auto event = *backend->MakeEvent();
  EXPECT_TRUE(event->Done());
  EXPECT_EQ(event->TimeNs(), 0);
  float source = 3, middle = 0, destination = 0;
  Word gate{0}, done{0};
  auto view = [](float* value) {
    return DeviceView{reinterpret_cast<std::byte*>(value), DType::kF32, {1}, {1}};
  };
  ASSERT_TRUE(first->WaitWord(&gate, 5).ok());
  ASSERT_TRUE(first->Copy({view(&source), view(&middle), true}).ok());
  ASSERT_TRUE(first->Record(event.get()).ok());
  ASSERT_TRUE(second->Wait(event.get()).ok());
  ASSERT_TRUE(second->Copy({view(&middle), view(&destination), true}).ok());
  ASSERT_TRUE(second->WriteWord(&done, 1).ok());
  EXPECT_FALSE(event->Done());
  EXPECT_EQ(event->TimeNs(), 0);
  gate.store(5, std::memory_order_release);
  ASSERT_TRUE(WaitFor([&] { return done.load(std::memory_order_acquire) == 1; }));
  EXPECT_EQ(destination, 3);
  EXPECT_TRUE(event->Done());
  EXPECT_GT(event->TimeNs(), 0);
}

TEST(HostBackendTest, AGuardCallsWorkOffWhenItsTurnComes) {
  auto backend = Make();
  auto lane = *backend->MakeLane(1);
  for (Guarded kind : {Guarded::kCopy, Guarded::kCopyEngine, Guarded::kMatmul, Guarded::kReduce,
                       Guarded::kCollective, Guarded::kFused}) {
    EXPECT_TRUE(backend->HonoursGuard(kind));
  }
  float source[4] = {1, 2, 3, 4}, copied[4] = {}, summed[4] = {}, product[4] = {};
  auto view = [](float* values, std::vector<int64_t> extent, std::vector<int64_t> stride) {
    return DeviceView{reinterpret_cast<std::byte*>(values), DType::kF32, std::move(extent),
                      std::move(stride)};
  };
  Word gate{0}, guard{3}, done{0};
  // Launch numbers 4 and 5: the guard has reached 4 by the time that the gate opens, and was below when the
  // work was enqueued.
  ASSERT_TRUE(lane->WaitWord(&gate, 1).ok());
  auto enqueue = [&](uint64_t launch_number) {
    const Guard off{.word = &guard, .value = launch_number};
    EXPECT_TRUE(lane->Copy({view(source, {4}, {1}), view(copied, {4}, {1}), true, off}).ok());
    ReduceArgs reduce;
    reduce.sources = {view(source, {4}, {1}), view(source, {4}, {1})};
    reduce.dst = view(summed, {4}, {1});
    reduce.guard = off;
    EXPECT_TRUE(lane->Reduce(reduce).ok());
    MatmulArgs matmul;
    matmul.a = matmul.b = view(source, {2, 2}, {2, 1});
    matmul.c = view(product, {2, 2}, {2, 1});
    matmul.guard = off;
    EXPECT_TRUE(lane->Matmul(matmul).ok());
  };
  enqueue(4);
  ASSERT_TRUE(lane->WriteWord(&done, 1).ok());
  guard.store(4);
  gate.store(1);
  ASSERT_TRUE(WaitFor([&] { return done.load(std::memory_order_acquire) == 1; }));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(copied[i] + summed[i] + product[i], 0) << i;
  enqueue(5);
  ASSERT_TRUE(lane->WriteWord(&done, 2).ok());
  ASSERT_TRUE(WaitFor([&] { return done.load(std::memory_order_acquire) == 2; }));
  const float expected[4] = {7, 10, 15, 22};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(copied[i], source[i]);
    EXPECT_EQ(summed[i], 2 * source[i]);
    EXPECT_EQ(product[i], expected[i]);
  }
}

TEST(HostBackendTest, EndsThoughALaneWaitsForEver) {
  Word gate{0};
  auto backend = Make();
  auto lane = *backend->MakeLane(1);
  ASSERT_TRUE(lane->WaitWord(&gate, 1).ok());
  backend.reset();
  EXPECT_FALSE(lane->Copy({}).ok());
}

TEST(HostBackendTest, LanesRefuseBadArguments) {
  auto backend = Make();
  auto lane = *backend->MakeLane(1);
  EXPECT_EQ(lane->WriteWord(nullptr, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane->WaitWord(nullptr, 1).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane->Reduce({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane->Matmul({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane->Nccl({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(lane->Wait(nullptr).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace tandem
