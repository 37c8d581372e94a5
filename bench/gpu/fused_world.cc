#include "bench/gpu/fused_world.h"

#include <algorithm>
#include <barrier>
#include <thread>

#include "kernels/cuda/cuda_backend.h"

namespace tandem::bench {
namespace {

constexpr int kMaxLaunches = 32;
constexpr int kBarrierWord = 32, kGateWord = 33, kWordsOfSource = 34;
constexpr size_t kPage = size_t{2} << 20;

SharedArea ShareAmong(std::vector<std::unique_ptr<Gpu>>& gpus, size_t bytes) {
  SharedArea area;
  area.address.assign(gpus.size(), std::vector<std::byte*>(gpus.size()));
  for (size_t owner = 0; owner < gpus.size(); ++owner) {
    UniqueFd fd;
    area.address[owner][owner] = gpus[owner]->Zero(bytes, &fd);
    for (size_t viewer = 0; viewer < gpus.size(); ++viewer) {
      if (viewer != owner) area.address[viewer][owner] = gpus[viewer]->Map(fd, bytes);
    }
  }
  return area;
}

}  // namespace

World::World(int size) : size_(size) {
  CommunicatorOptions options;
  options.world_size = size;
  for (int rank = 0; rank < size; ++rank) {
    gpus_.push_back(std::make_unique<Gpu>(rank));
    keepers_.push_back(std::make_unique<Gpu>(rank));
    Backend& backend = gpu(rank).backend();
    for (int i = 0; i < kCopyLanes; ++i) {
      copy_lanes_.push_back(Must(backend.MakeLane(0), "lane"));
      joins_.push_back(Must(backend.MakeEvent(), "event"));
    }
    gate_lanes_.push_back(Must(backend.MakeLane(0), "lane"));
    forks_.push_back(Must(backend.MakeEvent(), "event"));
    gpu(rank).Enter();
    events_.emplace_back();
    for (int i = 0; i < kMaxLaunches; ++i) {
      events_.back().push_back({Must(gpu(rank).driver().EventCreate(CU_EVENT_DEFAULT), "event"),
                                Must(gpu(rank).driver().EventCreate(CU_EVENT_DEFAULT), "event")});
    }
  }
  words_ = ShareAmong(keepers_, kPage);
  options.unique_id = Must(MakeNcclUniqueId(), "NCCL id");
  for (options.rank = 0; options.rank < size; ++options.rank) {
    communicators_.push_back(Must(gpu(options.rank).backend().MakeCommunicator(options), "communicator"));
  }
}

Word* World::word(int viewer, int owner, int from, int index) const {
  return reinterpret_cast<Word*>(words_.at(viewer, owner)) +
         static_cast<size_t>((from * kWordsOfSource + index) * kWordStep);
}

SharedArea World::Share(size_t bytes) { return ShareAmong(gpus_, bytes); }

void World::Each(const std::function<void(int rank)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size_; ++rank) threads.emplace_back([&, rank] { work(rank); });
  for (auto& thread : threads) thread.join();
}

void World::Fork(int rank, int lanes) {
  Event* event = forks_[static_cast<size_t>(rank)].get();
  Must(gpu(rank).lane().Record(event), "fork");
  for (int i = 0; i < lanes; ++i) Must(copy_lane(rank, i).Wait(event), "fork");
}

void World::Join(int rank, int lanes) {
  for (int i = 0; i < lanes; ++i) {
    Event* event = joins_[static_cast<size_t>(rank * kCopyLanes + i)].get();
    Must(copy_lane(rank, i).Record(event), "join");
    Must(gpu(rank).lane().Wait(event), "join");
  }
}

void World::WarmUp(const Enqueue& enqueue) {
  Each([&](int rank) {
    gpu(rank).Enter();
    enqueue(rank, 0, launch_number_);
    Must(gpu(rank).driver().StreamSynchronize(gpu(rank).stream()), "warm-up");
  });
}

double World::Time(int launches, const Enqueue& enqueue) {
  launches = std::min(launches, kMaxLaunches);
  const uint64_t first_launch_number = launch_number_ + 1;
  launch_number_ += static_cast<uint64_t>(launches);
  ++gate_;
  std::vector<std::vector<double>> times(static_cast<size_t>(size_));
  std::barrier<> enqueued(size_);
  Each([&](int rank) {
    Gpu& own = gpu(rank);
    Lane& lane = own.lane();
    auto& events = events_[static_cast<size_t>(rank)];
    own.Enter();
    // Nothing starts before everything is enqueued: no launch waits for this thread.
    Must(lane.WaitWord(word(rank, rank, rank, kGateWord), gate_), "gate");
    for (int i = 0; i < launches; ++i) {
      const uint64_t launch_number = first_launch_number + static_cast<uint64_t>(i);
      for (int peer = 0; peer < size_; ++peer) {
        Must(lane.WriteWord(word(rank, peer, rank, kBarrierWord), launch_number), "barrier");
      }
      for (int peer = 0; peer < size_; ++peer) {
        Must(lane.WaitWord(word(rank, rank, peer, kBarrierWord), launch_number), "barrier");
      }
      Must(own.driver().EventRecord(events[static_cast<size_t>(i)].start, own.stream()), "record");
      enqueue(rank, i, launch_number);
      Must(own.driver().EventRecord(events[static_cast<size_t>(i)].end, own.stream()), "record");
    }
    enqueued.arrive_and_wait();
    Must(gate_lanes_[static_cast<size_t>(rank)]->WriteWord(word(rank, rank, rank, kGateWord), gate_), "gate");
    Must(own.driver().StreamSynchronize(own.stream()), "work");
    for (int i = 0; i < launches; ++i) {
      auto& pair = events[static_cast<size_t>(i)];
      times[static_cast<size_t>(rank)].push_back(
          1e3 * static_cast<double>(Must(own.driver().EventElapsedTime(pair.start, pair.end), "time")));
    }
  });
  double sum = 0;
  for (int i = 0; i < launches; ++i) {
    double slowest = 0;
    for (auto& own : times) slowest = std::max(slowest, own[static_cast<size_t>(i)]);
    sum += slowest;
  }
  return sum / launches;
}

double World::TimeInGraph(int launches, const Enqueue& enqueue) {
  const uint64_t first_launch_number = launch_number_ + 1;
  launch_number_ += static_cast<uint64_t>(launches);
  ++gate_;
  std::vector<double> times(static_cast<size_t>(size_));
  std::barrier<> enqueued(size_);
  Each([&](int rank) {
    Gpu& own = gpu(rank);
    cuda::CudaDriver& driver = own.driver();
    const Events& around = events_[static_cast<size_t>(rank)].front();
    own.Enter();
    Must(driver.StreamBeginCapture(own.stream(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capture");
    for (int i = 0; i < launches; ++i) enqueue(rank, i, first_launch_number + static_cast<uint64_t>(i));
    const CUgraph graph = Must(driver.StreamEndCapture(own.stream()), "capture");
    const CUgraphExec ready = Must(driver.GraphInstantiate(graph, 0), "graph");
    Must(driver.GraphDestroy(graph), "graph");
    Must(own.lane().WaitWord(word(rank, rank, rank, kGateWord), gate_), "gate");
    Must(own.lane().FlushWords(), "gate");
    Must(driver.EventRecord(around.start, own.stream()), "record");
    Must(driver.GraphLaunch(ready, own.stream()), "graph");
    Must(driver.EventRecord(around.end, own.stream()), "record");
    enqueued.arrive_and_wait();
    Must(gate_lanes_[static_cast<size_t>(rank)]->WriteWord(word(rank, rank, rank, kGateWord), gate_), "gate");
    Must(driver.StreamSynchronize(own.stream()), "work");
    times[static_cast<size_t>(rank)] =
        1e3 * static_cast<double>(Must(driver.EventElapsedTime(around.start, around.end), "time"));
    Must(driver.GraphExecDestroy(ready), "graph");
  });
  return *std::max_element(times.begin(), times.end()) / launches;
}

void World::Clear() {
  for (int rank = 0; rank < size_; ++rank) {
    gpu(rank).Clear();
  }
}

}  // namespace tandem::bench
