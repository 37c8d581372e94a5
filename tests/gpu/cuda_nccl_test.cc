// NCCL through the backend: bad ids are refused; a collective whose peer never comes holds its lane until it is aborted.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "daemon/planner/program.h"
#include "kernels/cuda/cuda_backend.h"

namespace tandem {
namespace {

bool DoneWithin(const Event& event, std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  while (!event.Done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(CudaNcclTest, BadOptionsAreRefused) {
  auto backend = MakeCudaBackend({});
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  CommunicatorOptions options;
  options.unique_id = "short";
  EXPECT_EQ((*backend)->MakeCommunicator(options).status().code(), Code::kInvalidArgument);
  options.unique_id = *MakeNcclUniqueId();
  options.rank = 1;
  EXPECT_EQ((*backend)->MakeCommunicator(options).status().code(), Code::kInvalidArgument);
}

TEST(CudaNcclTest, AbortEndsACollectiveWhosePeerNeverComes) {
  if (CudaDeviceCount() < 2) GTEST_SKIP() << "needs 2 GPUs";
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<Communicator>> communicators;
  CommunicatorOptions options;
  options.world_size = 2;
  options.unique_id = *MakeNcclUniqueId();
  for (options.rank = 0; options.rank < 2; ++options.rank) {
    backends.push_back(std::move(*MakeCudaBackend({.device = options.rank})));
    auto communicator = backends.back()->MakeCommunicator(options);
    ASSERT_TRUE(communicator.ok()) << communicator.status().ToString();
    communicators.push_back(std::move(*communicator));
  }
  std::vector<std::unique_ptr<Segment>> segments;
  std::vector<std::unique_ptr<Lane>> lanes;
  std::vector<std::unique_ptr<Event>> events;
  auto enqueue = [&](size_t rank) {
    NcclArgs args;
    args.kind = static_cast<int>(plan::NcclKind::kAllReduce);
    args.in = args.out = {segments[rank]->data(), DType::kF32, {1000}, {1}};
    args.communicator = communicators[rank].get();
    Status status = lanes[rank]->Nccl(args);
    return status.ok() ? lanes[rank]->Record(events[rank].get()) : status;
  };
  for (auto& backend : backends) {
    size_t bytes = backend->SegmentGranularity();
    auto fd = backend->AllocateSegment(bytes);
    ASSERT_TRUE(fd.ok());
    segments.push_back(std::move(*backend->MapSegment(fd->get(), bytes)));
    lanes.push_back(std::move(*backend->MakeLane(0)));
    events.push_back(std::move(*backend->MakeEvent()));
  }
  // Once together, each rank on a thread of its own as in engines.
  Status peer_status;
  std::thread peer([&] { peer_status = enqueue(1); });
  Status status = enqueue(0);
  peer.join();
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_TRUE(peer_status.ok()) << peer_status.ToString();
  ASSERT_TRUE(DoneWithin(*events[0], std::chrono::seconds(20)));
  ASSERT_TRUE(DoneWithin(*events[1], std::chrono::seconds(20)));
  // Then rank 0 alone.
  status = enqueue(0);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_FALSE(DoneWithin(*events[0], std::chrono::milliseconds(200)));
  communicators[0]->Abort();
  EXPECT_TRUE(DoneWithin(*events[0], std::chrono::seconds(20)));
  EXPECT_EQ(enqueue(0).code(), Code::kAborted);
}

}  // namespace
}  // namespace tandem
